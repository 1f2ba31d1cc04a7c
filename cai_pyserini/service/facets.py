"""Facets of a search: for each field that tells documents apart, values or ranges with their numbers of documents.

Chosen values of a field are combined by OR, fields by AND: `type:"pdf" AND (year:2020 OR year:2021)`. So the documents
counted for a field are those that pass the filter without its own part.
"""

import math
import re
from collections.abc import Callable, Sequence
from datetime import MAXYEAR, MINYEAR, date
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

from cai_pyserini.core.metadata import EPOCH, Kind
from cai_pyserini.engine.search import Engine
from cai_pyserini.lucene.facets import Matches
from cai_pyserini.lucene.filters import field_of, operands, parse_filter, span_of

MOST_FIELDS = 6
MOST_VALUES = 6  # strings of a field
MOST_RANGES = 8  # numbers or dates of a field
MIN_COVERED = 0.02  # of the documents, by the most frequent values of a field
UNEQUAL = 0.7  # of the documents in one range: the ranges are too wide for the others
ZOOMS = 4  # times that the one range with documents is divided
MOST_READ = 50  # values of a number, to see whether they are integers
VALUE = re.compile(r'([\w.-]+):(?:"((?:[^"\\]|\\.)*)"|([^\s"()]+))')
BETWEEN = re.compile(r"\(?([\w.-]+)>=(\S+) AND \1<=?(\S+?)\)?")

type Count = Callable[[Sequence[float]], list[int]]  # edges -> documents from each to the next


class Choice(NamedTuple):
    """A value or range of a field, as a filter, and the number of documents that pass it."""

    label: str
    filter: str
    documents: int


class Option(NamedTuple):
    """A value or range as it is offered: with the whole filter that chooses it, or takes it back if it is chosen."""

    label: str
    documents: int
    chosen: bool
    filter: str
    finer: list["Option"]  # ranges within it, if it or one of them is chosen


class Facet(NamedTuple):
    field: str
    options: list[Option]


def facets_of(engine: Engine, text: str, filter: str, operators: tuple[str, ...]) -> tuple[int, list[Facet]]:
    """The number of documents that have a word of the text and pass the filter and a query's operators; facets."""

    @cache
    def matching(*filters: str) -> Matches | None:
        return engine.matches(text, (*filters, *operators) or None)

    parts, facets = clauses(filter), []
    found = matching(*parts)
    if found is None:
        return 0, []
    kinds = engine.metadata if engine.can_filter else {}
    fields = [field_of(parse_filter(part, kinds)) for part in parts] if kinds else []
    for field, kind in kinds.items():
        own = [part for part, of in zip(parts, fields, strict=True) if of == field]
        others = [part for part, of in zip(parts, fields, strict=True) if of != field]
        chosen = alternatives(own[0]) if len(own) == 1 else [combined(own)] if own else []
        options = _Field(field, kind, matching, others, chosen).options()
        total = matching(*others)
        if total and (options[1:] or any(one.chosen or one.documents < total.documents for one in options)):
            facets.append(Facet(field, options))
    return found.documents, facets[:MOST_FIELDS]


class _Field:
    """A field with the filters `others` of other fields, and those of its values that are chosen."""

    def __init__(
        self, field: str, kind: Kind, matching: Callable[..., Matches | None], others: list[str], chosen: list[str]
    ):
        self._field, self._kind, self._matching, self._others = field, kind, matching, others
        self._chosen = {text: self._span(text) for text in chosen}
        self._listed: set[str] = set()

    def options(self) -> list[Option]:
        """What is chosen but no longer among the frequent values or ranges comes first."""
        options = self._options()
        missing = [text for text in self._chosen if text not in self._listed][:MOST_VALUES]
        return [self._option(Choice(label_of(text)[1], text, self._count(text))) for text in missing] + options

    def _options(self, *within: str) -> list[Option]:
        if (matches := self._matching(*self._others, *within)) is None:
            return []
        find = _values if self._kind in ("string", "list") else _ranges
        choices = find(matches, self._field, self._kind, *map(self._span, within))
        return [self._option(choice) for choice in choices] if len(choices) > 1 or not within else []

    def _option(self, choice: Choice) -> Option:
        span = self._span(choice.filter)
        inside = {text for text, other in self._chosen.items() if text == choice.filter or _covers(span, other)}
        around = {text for text, other in self._chosen.items() if text == choice.filter or _covers(other, span)}
        kept = [text for text in self._chosen if text not in inside | around]
        self._listed |= (chosen := inside & around)
        filter = combined([*self._others, *either([*kept, *([] if chosen else [choice.filter])])])
        finer = self._options(choice.filter) if inside and self._kind in ("number", "date") else []
        return Option(choice.label, choice.documents, bool(chosen), filter, finer)

    def _count(self, filter: str) -> int:
        matches = self._matching(*self._others, filter)
        return matches.documents if matches else 0

    def _span(self, filter: str) -> tuple[Any, Any] | None:
        return span_of(parse_filter(filter, {self._field: self._kind}))


def _covers(wide: tuple[Any, Any] | None, narrow: tuple[Any, Any] | None) -> bool:
    return bool(wide and narrow) and wide[0] <= narrow[0] and narrow[1] <= wide[1]  # type: ignore[index]


def _values(matches: Matches, field: str, kind: Kind) -> list[Choice]:
    """The most frequent values; none if they are those of single documents, or of hardly any."""
    counts = matches.values(field, kind, MOST_VALUES)
    if sum(count for count in counts.values() if count > 1) < MIN_COVERED * matches.documents:
        return []
    return [Choice(value, f"{field}:{quoted(value)}", count) for value, count in counts.items() if count > 1]


def _ranges(matches: Matches, field: str, kind: Kind, within: tuple[Any, Any] | None = None) -> list[Choice]:
    """Numbers, years or months, `within` a range; none if all documents have the same."""
    if (limits := matches.limits(field)) is None:
        return []
    low, high = (max(limits[0], within[0]), min(limits[1], within[1])) if within else limits
    count = partial(matches.ranges, field)
    if kind == "date":
        return _dates(field, low, high, count)
    integers = not any("." in value or "e" in value for value in matches.values(field, kind, MOST_READ))
    return _numbers(field, low, high, count, integers, begins=within is not None)


def _numbers(field: str, low: float, high: float, count: Count, integers: bool, begins: bool = False) -> list[Choice]:
    """Ranges between round numbers: equally wide, or powers of ten if that spreads the documents better. With `begins`,
    the first one begins at `low`."""
    finest = 1 if integers else 0
    edges = _even(low, high, finest)
    counts = count(edges)
    for _ in range(ZOOMS):
        if sum(map(bool, counts)) != 1 or (integers and edges[-1] - edges[0] <= 1):
            break
        first, end = next(pair for pair, n in zip(pairwise(edges), counts, strict=True) if n)
        edges = _even(first, end, finest, end=True)
        counts = count(edges)
    if low >= 0 and high >= 1 and max(counts) > UNEQUAL * sum(counts):
        powers = [0.0, *(10.0**n for n in range(math.floor(math.log10(high)) + 2))]
        if max(by_power := count(powers)) < max(counts):
            edges, counts = powers, by_power
    if begins:
        edges[0] = max(edges[0], low)
    choices = []
    for (first, end), documents in zip(pairwise(edges), counts, strict=True):
        last, sign = (end - 1, "<=") if integers else (end, "<")
        label = _readable(first) if integers and first == last else f"{_readable(first)}–{_readable(last)}"
        one = f"{field}:{_plain(first)}"
        filter = one if integers and first == last else f"({field}>={_plain(first)} AND {field}{sign}{_plain(last)})"
        if documents:
            choices.append(Choice(label, filter, documents))
    return choices


def _dates(field: str, low: float, high: float, count: Count) -> list[Choice]:
    """Ranges of years, or the months of the one year that has documents."""
    first, end = (date.fromordinal(int(day) + EPOCH).year for day in (low, high))
    end += 1
    while True:
        years = [int(edge) for edge in _even(first, end, 1, end=True)]
        found = [pair for pair in zip(pairwise(years), count([*map(_day, years)]), strict=True) if pair[1]]
        if len(found) != 1 or end - first <= 1:
            break
        first, end = found[0][0]
    if len(found) != 1:
        return [
            Choice(str(first), f"{field}:{first:04}", n)
            if end - first == 1
            else Choice(f"{first}–{end - 1}", f"({field}>={first:04} AND {field}<={end - 1:04})", n)
            for (first, end), n in reversed(found)
        ]
    months = [_day(first, month) for month in range(1, 13)] + [_day(first + 1)]
    names = [f"{first:04}-{month:02}" for month in range(1, 13)]
    return [Choice(name, f"{field}:{name}", n) for name, n in zip(names, count(months), strict=True) if n]


def _even(low: float, high: float, finest: float, end: bool = False) -> list[float]:
    """At most MOST_RANGES ranges of equal, round width from `low` to `high`, which is excluded with `end`."""
    width = max((high - low) / (MOST_RANGES - 1), finest) or 1.0
    power = 10.0 ** math.floor(math.log10(width))
    step = max(finest, next(step * power for step in (1, 2, 5, 10) if step * power >= width * (1 - 1e-9)))
    start = math.floor(low / step)
    stop = math.ceil(high / step - 1e-9) if end else math.floor(high / step) + 1
    return [n * step for n in range(start, max(stop, start + 1) + 1)]


def _day(year: int, month: int = 1) -> float:
    if year > MAXYEAR:
        return float(date.max.toordinal() + 1 - EPOCH)
    return float(date(max(year, MINYEAR), month, 1).toordinal() - EPOCH)


def _plain(number: float) -> str:
    return f"{number:.12g}"


def _readable(number: float) -> str:
    return f"{number:,.12g}" if abs(number) >= 10_000 else _plain(number)


def quoted(value: str) -> str:
    """A string as a value in a filter."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def clauses(filter: str) -> list[str]:
    """The filters that a filter combines by AND."""
    return [f"({filter})"] if len(operands(filter, "OR")) > 1 else operands(filter, "AND")


def alternatives(clause: str) -> list[str]:
    """The filters that one of `clauses` combines by OR, or itself."""
    inner = operands(clause[1:-1], "OR") if clause.startswith("(") else []
    return inner if len(inner) > 1 else [clause]


def combined(parts: Sequence[str]) -> str:
    return " AND ".join(parts)


def either(parts: Sequence[str]) -> list[str]:
    """A filter that combines others by OR, none if there are none."""
    return [f"({' OR '.join(parts)})"] if len(parts) > 1 else [*parts]


def label_of(filter: str) -> tuple[str, str]:
    """The field of a filter and its value or range, as the page shows it; no field if it is no such filter."""
    if match := BETWEEN.fullmatch(filter):
        return match[1], f"{match[2]}–{match[3]}"
    if match := VALUE.fullmatch(filter):
        return match[1], match[3] or re.sub(r"\\(.)", r"\1", match[2])
    return "", filter


def chosen_of(filter: str) -> list[list[tuple[str, str, str]]]:
    """For each of `clauses`, its alternatives: field, label, and the filter without it."""
    parts = clauses(filter)
    return [
        [
            (*label_of(one), combined([*parts[:n], *either([each for each in found if each != one]), *parts[n + 1 :]]))
            for one in found
        ]
        for n, found in enumerate(map(alternatives, parts))
    ]
