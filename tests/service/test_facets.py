"""Facets: ranges of numbers and dates as a reader expects them, and filters that can be taken back."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import date
from itertools import pairwise

import pytest

from cai_pyserini.core.metadata import EPOCH, Kind
from cai_pyserini.service.facets import _dates, _numbers, alternatives, chosen_of, clauses, label_of, narrowed
from cai_pyserini.service.readable import readable


def counter(values: Sequence[float]) -> Callable[[Sequence[float]], list[int]]:
    ordered = sorted(values)

    def count(edges: Sequence[float]) -> list[int]:
        return [bisect_left(ordered, end) - bisect_left(ordered, first) for first, end in pairwise(edges)]

    return count


@pytest.mark.parametrize(
    ("values", "limits", "labels"),
    [
        (
            range(1995, 2025),
            (1995, 2024),
            ["1995–1999", "2000–2004", "2005–2009", "2010–2014", "2015–2019", "2020–2024"],
        ),
        (range(1995, 1998), (1900, 2024), ["1995", "1996", "1997"]),
        ([1] * 90 + [20] * 9 + [123_456], (1, 123_456), ["0–19,999", "120,000–139,999"]),
        ([0.5, 2.5, 2.6, 7], (0.5, 7), ["0–1", "2–3", "7–8"]),
        ([-5, 5], (-5, 5), ["-6–-5", "4–5"]),
        ([3, 3], (3, 3), ["3"]),
        ([5, 6, 7, 1e308], (5, 1e308), ["0–2e+307", "1e+308–1.2e+308"]),
        ([-1e308, 1e308], (-1e308, 1e308), ["-1e+308–-5e+307", "1e+308–1.5e+308"]),
        ([], (1, 9), []),
    ],
)
def test_numbers(values: Sequence[float], limits: tuple[float, float], labels: list[str]) -> None:
    integers = all(value == int(value) for value in values)
    choices = _numbers("n", *limits, counter(values), integers)
    assert [choice.label for choice in choices] == labels
    assert sum(choice.documents for choice in choices) == len(values)


def test_dates() -> None:
    days = [
        float(date(*day).toordinal() - EPOCH) for day in ((2004, 2, 28), (2004, 2, 29), (2004, 12, 31), (2009, 1, 1))
    ]
    both = _dates("day", days[0], days[-1], counter(days))
    assert [(choice.label, choice.documents) for choice in both] == [("2009", 1), ("2004", 3)]
    months = _dates("day", days[0], days[-1], counter(days[:3]))
    assert [(choice.label, choice.filter) for choice in months] == [
        ("February 2004", "day:2004-02"),
        ("December 2004", "day:2004-12"),
    ]
    ends = [float(date.min.toordinal() - EPOCH), float(date.max.toordinal() - EPOCH)]
    assert sum(choice.documents for choice in _dates("day", *ends, counter(ends))) == 2


def test_filters_are_taken_apart_only_where_that_is_right() -> None:
    whole = 'journal:"x AND y" AND (year>=1995 AND year<=1999)'
    assert clauses(whole) == ['journal:"x AND y"', "(year>=1995 AND year<=1999)"]
    assert [label_of(part) for part in clauses(whole)] == [("journal", "x AND y"), ("year", "1995–1999")]
    assert clauses("a:1 and b:2 or c:3") == ["(a:1 and b:2 or c:3)"] and clauses("") == []
    assert alternatives("(a:1 OR (b:2 OR c:3))") == ["a:1", "(b:2 OR c:3)"]
    assert clauses("journal:AND AND (year:1)AND authors:(or, and)") == ["journal:AND", "(year:1)", "authors:(or, and)"]


def test_each_chosen_value_can_be_taken_back() -> None:
    assert chosen_of('year:1 AND (journal:"a" OR journal:"b\\"")') == [
        [("year", "1", '(journal:"a" OR journal:"b\\"")')],
        [("journal", "a", 'year:1 AND journal:"b\\""'), ("journal", 'b"', 'year:1 AND journal:"a"')],
    ]


def test_a_folder_replaces_another_one() -> None:
    within = narrowed('type:"pdf" AND (folder:"a" OR folder:"b") AND (folder:"a" OR type:"txt")', "folder", 'a/"c"')
    assert clauses(within) == ['type:"pdf"', '(folder:"a" OR type:"txt")', 'folder:"a/\\"c\\""']
    assert label_of(clauses(within)[2]) == ("folder", 'a/"c"') and narrowed("", "folder", "a") == 'folder:"a"'


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("size", 999, "999 bytes"),
        ("size", 1500, "1.5 KB"),
        ("size", 370_400, "370 KB"),
        ("size", 999_600, "1.0 MB"),
        ("size", 5e11, "500.0 GB"),
        ("modified", "2024-03-03T10:00", "3 March 2024"),
        ("modified", "2024-03", "March 2024"),
        ("modified", "2024", "2024"),
        ("modified", "soon", "soon"),
        ("pages", 1990, "1990"),
    ],
)
def test_values_are_readable(name: str, value: str | float, shown: str) -> None:
    """Sizes are those of files; of other documents, they may be in any unit."""
    kinds: dict[str, Kind] = {"path": "string", "type": "string", "size": "number", "modified": "date"}
    assert readable(name, value, kinds) == shown and readable("size", value, {"size": "number"}) == str(value)
