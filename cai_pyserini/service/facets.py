"""Facets of a search: for each field that tells documents apart, filters with the number of documents that pass."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import MAXYEAR, MINYEAR, date
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from cai_pyserini.core.metadata import EPOCH, Kind
from cai_pyserini.engine.search import Engine, Filters
from cai_pyserini.lucene.facets import Matches

MOST_FIELDS = 6
MOST_VALUES = 6  # strings of a field
MOST_RANGES = 8  # numbers or dates of a field
MIN_COVERED = 0.02  # of the documents, by the most frequent values of a field
UNEQUAL = 0.7  # of the documents in one range: the ranges are too wide for the others
ZOOMS = 4  # times that the one range with documents is divided
MOST_READ = 50  # values of a number, to see whether they are integers
PIECES = re.compile(r'("(?:[^"\\]|\\.)*"|[()]| AND | OR )', re.IGNORECASE)
BETWEEN = re.compile(r"\(?([\w.-]+)>=(\S+) AND \1<=?(\S+?)\)?")

type Count = Callable[[Sequence[float]], list[int]]  # edges -> documents from each to the next


class Choice(NamedTuple):
    """A value or range of a field, as a filter, and the number of documents that pass it."""

    label: str
    filter: str
    documents: int


class Facet(NamedTuple):
    field: str
    choices: list[Choice]


def facets_of(engine: Engine, text: str, filter: Filters) -> tuple[int, list[Facet]]:
    """The number of documents that have a word of the text and pass the filter, and their facets."""
    matches = engine.matches(text, filter)
    if matches is None:
        return 0, []
    total, facets = matches.documents, []
    for field, kind in engine.metadata.items() if engine.can_filter else ():
        choices = _values(matches, field, kind, total) if kind in ("string", "list") else _ranges(matches, field, kind)
        if len(choices) > 1 or (choices and choices[0].documents < total):
            facets.append(Facet(field, choices))
    return total, facets[:MOST_FIELDS]


def _values(matches: Matches, field: str, kind: Kind, total: int) -> list[Choice]:
    """The most frequent values; none if they are those of single documents, or of hardly any."""
    counts = matches.values(field, kind, MOST_VALUES)
    if sum(count for count in counts.values() if count > 1) < MIN_COVERED * total:
        return []
    return [Choice(value, f"{field}:{quoted(value)}", count) for value, count in counts.items() if count > 1]


def _ranges(matches: Matches, field: str, kind: Kind) -> list[Choice]:
    """Numbers, years or months; none if all documents have the same."""
    if (limits := matches.limits(field)) is None:
        return []
    count = partial(matches.ranges, field)
    if kind == "date":
        return _dates(field, *limits, count)
    integers = not any("." in value or "e" in value for value in matches.values(field, kind, MOST_READ))
    return _numbers(field, *limits, count, integers)


def _numbers(field: str, low: float, high: float, count: Count, integers: bool) -> list[Choice]:
    """Ranges between round numbers: equally wide, or powers of ten if that spreads the documents better."""
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
        counts = count([_day(year) for year in years])
        found = [(pair, n) for pair, n in zip(pairwise(years), counts, strict=True) if n]
        if len(found) != 1 or end - first <= 1:
            break
        ((first, end), _), *_ = found
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
    """The filters that a filter combines by AND, or the filter itself if it is not such a combination."""
    parts, depth = [""], 0
    for piece in PIECES.split(filter):
        depth += (piece == "(") - (piece == ")")
        if piece.upper() == " OR " and not depth:
            return [filter]
        if piece.upper() == " AND " and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part for part in parts if part.strip()]


def combined(parts: Sequence[str]) -> str:
    return " AND ".join(parts)


def label_of(clause: str) -> str:
    """A filter as the page shows it."""
    if match := BETWEEN.fullmatch(clause):
        return f"{match[1]}: {match[2]}–{match[3]}"
    return re.sub(r'^([\w.-]+):"((?:[^"\\]|\\.)*)"$', lambda m: f"{m[1]}: " + re.sub(r"\\(.)", r"\1", m[2]), clause)
