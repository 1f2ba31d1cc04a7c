"""Facets of a search: for each field that tells documents apart, values or ranges with their numbers of documents.

Fields with few values in the whole index come first, so that the order does not depend on the search, and one with a
value per document is last. Of files, those come first that people look for files by, and those are left out that tell
hardly any apart.

Chosen values of a field are combined by OR, fields by AND: `type:"pdf" AND (year:2020 OR year:2021)`. So the documents
counted for a field are those that pass the filter without its own part.
"""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, date
from functools import cache, partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from cai_pyserini.collections.contract import FOLDER
from cai_pyserini.core.metadata import EPOCH, STRINGS, Kind
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import field_of, operands, parse_filter, quoted, span_of
from cai_pyserini.service.readable import of_files, readable, readable_date

MOST_FIELDS = 6
MOST_VALUES = 6  # strings of a field
MOST_FOLDERS = 1000  # read, to find those within another
MOST_RANGES = 8  # numbers or dates of a field
MIN_COVERED = 0.02  # smallest share of the documents that the most frequent values of a field must have
TELLING = 0.98  # share of the documents from which a single value tells hardly any apart
ZOOMS = 6  # times that the one range with documents is divided; from millennia to years
MOST_READ = 50  # values of a number, to see whether they are integers
SMALLEST = 1e-11  # width of a range, relative to its edges: they differ in the 12 digits of labels
MAX = sys.float_info.max  # stands for the last edge
FIRST = ("type", "language", "folder")  # of files
NOT_TELLING = ("path", "url", "page", "size")  # of files; sizes differ by powers of ten
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

    parts, facets = clauses(filter), list[Facet]()
    if (found := matching(*parts)) is None:
        return 0, []
    kinds = engine.metadata if engine.can_filter else {}
    fields = [field_of(parse_filter(part, kinds)) for part in parts] if kinds else []
    for field in _ordered(engine.countable, found) if kinds else ():
        own = [part for part, of in zip(parts, fields, strict=True) if of == field]
        others = [part for part, of in zip(parts, fields, strict=True) if of != field]
        chosen = alternatives(own[0]) if len(own) == 1 else own and [" AND ".join(own)]
        options = _Field(field, kinds[field], matching, others, chosen).options()
        total = matching(*others)
        if total and (options[1:] or any(one.chosen or one.documents < TELLING * total.documents for one in options)):
            facets.append(Facet(field, options))
        if len(facets) == MOST_FIELDS:
            break
    return found.documents, facets


def _ordered(kinds: Mapping[str, Kind], found: Matches) -> list[str]:
    names = sorted(kinds, key=lambda name: found.distinct(name) if _is_flat(name, kinds[name]) else MOST_RANGES)
    if not of_files(kinds):
        return names
    others = [name for name in names if name not in FIRST + NOT_TELLING]
    return [name for name in FIRST if name in kinds] + others


class _Field:
    """A field with the filters `others` of other fields, and those of its values that are chosen."""

    def __init__(
        self, field: str, kind: Kind, matching: Callable[..., Matches | None], others: list[str], chosen: list[str]
    ):
        self._field, self._kind, self._matching = field, kind, matching
        self._others, self._chosen, self._listed = others, chosen, set[str]()

    def options(self) -> list[Option]:
        """What is chosen but no longer among the frequent values or ranges comes first."""
        options, missing, kinds = self._options(), [], {self._field: self._kind}
        for text in [text for text in self._chosen if text not in self._listed][:MOST_VALUES]:
            matches, label = self._matching(*self._others, text), label_of(text, kinds)[1]
            missing.append(self._option(Choice(label, text, matches.documents if matches else 0)))
        return missing + options

    def _options(self, *within: str) -> list[Option]:
        if (matches := self._matching(*self._others, *within)) is None:
            return []
        find = _values if _is_flat(self._field, self._kind) else _ranges if self._kind not in STRINGS else _folders
        choices = find(matches, self._field, self._kind, *map(self._span, within))
        return (
            [self._option(choice) for choice in choices] if choices[1:] or not within or self._kind in STRINGS else []
        )

    def _option(self, choice: Choice) -> Option:
        inside = {text for text in self._chosen if self._covers(choice.filter, text)}
        around = {text for text in self._chosen if self._covers(text, choice.filter)}
        kept = [text for text in self._chosen if text not in inside | around]
        self._listed |= (chosen := inside & around)
        filter = " AND ".join([*self._others, *either(kept if chosen else [*kept, choice.filter])])
        finer = self._options(choice.filter) if inside and not _is_flat(self._field, self._kind) else []
        return Option(choice.label, choice.documents, bool(chosen), filter, finer)

    def _covers(self, wide: str, narrow: str) -> bool:
        outer, inner = self._span(wide), self._span(narrow)
        if self._kind in STRINGS:
            return wide == narrow or bool(outer and inner and inner[0].startswith(f"{outer[0]}/"))
        return wide == narrow or bool(outer and inner and outer[0] <= inner[0] and inner[1] <= outer[1])

    def _span(self, filter: str) -> tuple[Any, Any] | None:
        return span_of(parse_filter(filter, {self._field: self._kind}))


def _values(matches: Matches, field: str, kind: Kind) -> list[Choice]:
    """The most frequent values; none if they are those of single documents, or of hardly any."""
    counts = matches.values(field, kind, MOST_VALUES)
    if sum(count for count in counts.values() if count > 1) < MIN_COVERED * matches.documents:
        return []
    return [Choice(value, is_value(field, value), count) for value, count in counts.items() if count > 1]


def _folders(matches: Matches, field: str, kind: Kind, within: tuple[Any, Any] | None = None) -> list[Choice]:
    """The folders `within` one, or the outermost, with most documents; those in a single one that has all of them."""
    counts, total = matches.values(field, kind, MOST_FOLDERS), matches.documents
    parent = root = within[0] if within else ""
    while (
        len(inner := [each for each in counts if each.rpartition("/")[0] == parent]) == 1 and counts[inner[0]] == total
    ):
        (parent,) = inner
    root = root if within else parent
    return [Choice(each.removeprefix(f"{root}/"), is_value(field, each), counts[each]) for each in inner[:MOST_VALUES]]


def _is_flat(field: str, kind: Kind) -> bool:
    """Whether the values of a field do not contain each other, as ranges and folders do."""
    return kind in STRINGS and field != FOLDER


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
    """Equally wide ranges between round numbers. With `begins`, the first one begins at `low`."""
    finest = 1 if integers else 0
    edges, counts = _divided(low, high, finest, count)
    if begins:
        edges[0] = max(edges[0], low)
    return [
        _range(field, f"{first:.12g}", f"{end - finest:.12g}", documents, "<=" if integers else "<")
        for (first, end), documents in zip(pairwise(edges), counts, strict=True)
        if documents
    ]


def _dates(field: str, low: float, high: float, count: Count) -> list[Choice]:
    """Ranges of years, or the months of the one year that has documents."""
    first, last = (date.fromordinal(int(day) + EPOCH).year for day in (low, high))
    edges, counts = _divided(first, last + 1, 1, lambda years: count([_day(int(year)) for year in years]), end=True)
    found = [
        (max(int(first), MINYEAR), int(end) - 1, n)
        for (first, end), n in zip(pairwise(edges), counts, strict=True)
        if n
    ]
    if len(found) != 1:
        return [_range(field, f"{first:04}", f"{last:04}", documents) for first, last, documents in reversed(found)]
    year = found[0][0]
    months = count([*(_day(year, month) for month in range(1, 13)), _day(year + 1)])
    names = (f"{year:04}-{month:02}" for month in range(1, 13))
    return [Choice(readable_date(name), f"{field}:{name}", n) for name, n in zip(names, months, strict=True) if n]


def _range(field: str, first: str, last: str, documents: int, sign: str = "<=") -> Choice:
    if first == last:
        return Choice(_readable(first), f"{field}:{first}", documents)
    label = f"{_readable(first)}–{_readable(last)}"
    return Choice(label, f"({field}>={first} AND {field}{sign}{last})", documents)


def _divided(low: float, high: float, finest: float, count: Count, end: bool = False) -> tuple[list[float], list[int]]:
    """The edges of `_even` ranges, with the numbers of documents; a range that has all of them is divided again."""
    for _ in range(ZOOMS + 1):
        edges = _even(low, high, finest, end)
        counts = count(edges)
        filled = [pair for pair, documents in zip(pairwise(edges), counts, strict=True) if documents]
        if len(filled) != 1 or filled[0][1] - filled[0][0] <= finest:
            break
        (low, high), end = filled[0], True
    return edges, counts


def _even(low: float, high: float, finest: float, end: bool = False) -> list[float]:
    """At most MOST_RANGES ranges of equal, round width from `low` to `high`, which is excluded with `end`."""
    width = max(high / (MOST_RANGES - 1) - low / (MOST_RANGES - 1), finest) or 1.0  # their difference may be too large
    width = max(width, SMALLEST * max(abs(low), abs(high)), sys.float_info.min)
    power = 10.0 ** math.floor(math.log10(width))
    step = max(finest, next(step * power for step in (1, 2, 5, 10) if step * power >= width * (1 - 1e-9)))
    start = math.floor(low / step)
    stop = math.ceil(high / step - 1e-9) if end else math.floor(high / step) + 1
    return [max(-MAX, min(n * step, MAX)) for n in range(start, max(stop, start + 1) + 1)]


def _day(year: int, month: int = 1) -> float:
    if year > MAXYEAR:
        return float(date.max.toordinal() + 1 - EPOCH)
    return float(date(max(year, MINYEAR), month, 1).toordinal() - EPOCH)


def _readable(number: str) -> str:
    return f"{float(number):,.12g}" if abs(float(number)) >= 10_000 else number


def clauses(filter: str) -> list[str]:
    """The filters that a filter combines by AND."""
    return [f"({filter})"] if len(operands(filter, "OR")) > 1 else operands(filter, "AND")


def alternatives(clause: str) -> list[str]:
    """The filters that one of `clauses` combines by OR, or itself."""
    inner = operands(clause[1:-1], "OR") if clause.startswith("(") else []
    return inner if len(inner) > 1 else [clause]


def either(parts: Sequence[str]) -> list[str]:
    """A filter that combines others by OR, none if there are none."""
    return [f"({' OR '.join(parts)})"] if len(parts) > 1 else [*parts]


def is_value(field: str, value: str) -> str:
    """A filter by a value of a string field."""
    return f"{field}:{quoted(value)}"


def narrowed(filter: str, field: str, value: str) -> str:
    """A filter, with this value of a string field in place of chosen ones."""
    others = [part for part in clauses(filter) if {label_of(one)[0] for one in alternatives(part)} != {field}]
    return " AND ".join([*others, is_value(field, value)])


def label_of(filter: str, kinds: Mapping[str, Kind] = MappingProxyType({})) -> tuple[str, str]:
    """The field of a filter and its value or range, as the page shows it; no field if it is no such filter."""
    if match := BETWEEN.fullmatch(filter):
        return match[1], "–".join(readable(match[1], value, kinds) for value in match.groups()[1:])
    if match := VALUE.fullmatch(filter):
        return match[1], readable(match[1], match[3] or re.sub(r"\\(.)", r"\1", match[2]), kinds)
    return "", filter


def chosen_of(filter: str, kinds: Mapping[str, Kind] = MappingProxyType({})) -> list[list[tuple[str, str, str]]]:
    """For each of `clauses`, its alternatives: field, label, and the filter without it."""
    parts = clauses(filter)

    def without(n: int, one: str) -> str:
        others = [each for each in alternatives(parts[n]) if each != one]
        return " AND ".join([*parts[:n], *either(others), *parts[n + 1 :]])

    return [[(*label_of(one, kinds), without(n, one)) for one in alternatives(part)] for n, part in enumerate(parts)]
