"""Filters are parsed against the fields of an index, and wrong ones are refused with their place."""

import math

import pytest

from cai_pyserini.core.metadata import Kind, days
from cai_pyserini.indexes.filters import (
    DEPTH,
    AnyOf,
    BadFilter,
    Combined,
    Filter,
    Like,
    Range,
    parse_filter,
    without_operators,
)

KINDS: dict[str, Kind] = {
    "year": "number",
    "journal": "string",
    "published": "date",
    "authors": "list",
    "or-else": "list",
}
BMJ = AnyOf("journal", ("BMJ",))


def since(year: float) -> Range:
    return Range("year", year, math.inf)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("year>=2020", since(2020)),
        ("year > 2020", since(math.nextafter(2020, math.inf))),
        ("year<-1.5", Range("year", -math.inf, math.nextafter(-1.5, -math.inf))),
        ("year<=2020", Range("year", -math.inf, 2020)),
        ("year:2020", Range("year", 2020, 2020)),
        ('journal="BMJ"', BMJ),
        ("journal:BMJ", BMJ),
        (r'journal:"a \"b\" \\ (OR) c"', AnyOf("journal", ('a "b" \\ (OR) c',))),
        ("journal:E\u0301conomie", AnyOf("journal", ("\u00c9conomie",))),
        ("authors:(E\u0301, 9007199254740993)", AnyOf("authors", ("\u00c9", "9007199254740993"))),
        ("contents:E\u0301", Like("contents", "\u00c9")),
        ("journal:and", AnyOf("journal", ("and",))),  # a keyword is a value where only a value can be
        ('authors:(Doe, "Roe, R.")', AnyOf("authors", ("Doe", "Roe, R."))),
        ("year=(1, 2)", Combined("OR", (Range("year", 1, 1), Range("year", 2, 2)))),
        ("or-else:x", AnyOf("or-else", ("x",))),
        (
            'contents:("mouse model", rat)',
            Combined("OR", (Like("contents", "rat"), AnyOf("contents", ("mouse model",)))),
        ),
        # a pattern is one only without quotes, and a backslash takes its meaning away
        (
            'journal:(B*, "B*", B\\*, New\\ S*)',
            Combined("OR", (Like("journal", "B*"), Like("journal", "New\\ S*"), AnyOf("journal", ("B*", "B*")))),
        ),
        # AND binds more closely than OR, and NOT more closely than both
        ("year>=1 OR journal:BMJ AND year>=2", Combined("OR", (since(1), Combined("AND", (BMJ, since(2)))))),
        ("(year>=1 or journal:BMJ) and year>=2", Combined("AND", (Combined("OR", (since(1), BMJ)), since(2)))),
        ("NOT journal:BMJ AND year>=1", Combined("AND", (Combined("NOT", (BMJ,)), since(1)))),
        ("not not(journal:BMJ)", Combined("NOT", (Combined("NOT", (BMJ,)),))),
        ("year>=1 AND year>=2 AND year>=3", Combined("AND", (since(1), since(2), since(3)))),
    ],
)
def test_what_a_filter_means(text: str, expected: Filter) -> None:
    assert parse_filter(text, KINDS) == expected


@pytest.mark.parametrize(
    ("comparison", "first", "last"),
    [
        (":2020-02", "2020-02-01", "2020-02-29"),
        (">=2020", "2020-01-01", None),
        (">2020", "2021-01-01", None),
        ("<2020-03", None, "2020-02-29"),
        ("<=2020-03", None, "2020-03-31"),
        ('="2020-05-17T23:59:59+02:00"', "2020-05-17", "2020-05-17"),
        (":20200517", "2020-05-17", "2020-05-17"),
    ],
)
def test_dates_are_days_months_or_years(comparison: str, first: str | None, last: str | None) -> None:
    found = parse_filter(f"published{comparison}", KINDS)
    assert isinstance(found, Range)
    assert math.isinf(found.first) if first is None else days(first)[0] - 1 < found.first <= days(first)[0]
    assert math.isinf(found.last) if last is None else days(last)[0] <= found.last < days(last)[0] + 1


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", 1, "expected a field, not the end"),
        ("yaer>=2020", 1, "no field 'yaer'; those of this index: year (number), journal (string), published (date)"),
        ("year>=2020 AND (journal:BMJ OR juornal:BMJ)", 32, "no field 'juornal'"),
        ("year", 5, "expected one of < <= > >= = :, not the end"),
        ("year(2020)", 5, "expected one of < <= > >= = :, not ("),
        ("year>=", 7, "expected a value, in quotes if it has spaces, not the end"),
        ("year>=(1, 2)", 7, "expected a value"),
        ("year<9007199254740993", 6, "year should be compared with a number that 64 bits hold exactly (declare it"),
        ("year>=old", 7, "year should be compared with a number, not old"),
        ("year:nan", 6, "year should be compared with a number"),
        ("published<2020-13", 11, "published should be compared with a date in ISO 8601, such as 2020-05-17"),
        ("journal>=BMJ", 8, "journal is a string, which takes = or :, not >="),
        ("contents>=BMJ", 9, "contents is a string, which takes = or :, not >="),
        ("journal:BMJ Lancet", 13, "expected AND, OR or the end, not Lancet"),
        ("journal:BMJ)", 12, "expected AND, OR or the end, not )"),
        ("(journal:BMJ", 13, "expected ), not the end"),
        ("journal:(BMJ Lancet)", 14, "expected ), not Lancet"),
        ('year>=1 AND journal:"BMJ', 21, "the quotation mark is not closed"),
        ("*:*", 1, "no field '*'"),
        ("journal:/B.*/ OR year:[1 TO 2]", 23, "year should be compared with a number, not [1"),
        ("(" * 5000, DEPTH + 1, "expected at most 100 parentheses and NOT inside each other"),
        ("NOT " * 5000, 4 * DEPTH + 1, "expected at most 100 parentheses and NOT inside each other"),
    ],
)
def test_errors_name_the_place_and_what_is_expected(text: str, place: int, reason: str) -> None:
    with pytest.raises(BadFilter) as error:
        parse_filter(text, KINDS)
    assert str(error.value).startswith(f"filter, character {place}: {reason}")


@pytest.mark.parametrize(
    ("query", "text", "filters"),
    [
        ("tamoxifen -mouse, dose", "tamoxifen  , dose", ["NOT contents:mouse"]),
        ('"breast cancer" risk', "breast cancer risk", ['contents:"breast cancer"']),
        ('risk -"in mice" -rat\\s', "risk    ", ['NOT contents:"in mice"', r"NOT contents:rat\\s"]),
        ('"a" "b', 'a "b', ['contents:"a"']),
        ('5-HT or -5? - x--y "" 3" a"b c"', None, []),
    ],
)
def test_operators_of_a_query_are_filters(query: str, text: str | None, filters: list[str]) -> None:
    assert without_operators(query, "") == (text or query, tuple(filters) or None)
    assert without_operators(query, "year:1 OR year:2")[1] == ("year:1 OR year:2", *filters)
    for each in filters:
        parse_filter(each, {})


def test_a_query_has_more_than_what_is_to_be_missing() -> None:
    with pytest.raises(BadFilter, match="query: it only excludes words"):
        without_operators('-mouse -"in mice"')
