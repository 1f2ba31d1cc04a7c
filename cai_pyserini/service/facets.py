"""Facets of a search: for each field that tells documents apart, values or ranges with their numbers of documents.

Fields with few values in the whole index come first, so that the order does not depend on the search, and one with a
value per document is last.

Chosen values of a field are combined by OR, fields by AND: `type:"pdf" AND (year:2020 OR year:2021)`. So the documents
counted for a field are those that pass the filter without its own part.
"""

import math
import sys
from collections.abc import Callable, Sequence
from datetime import MAXYEAR, MINYEAR, date
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

from cai_pyserini.core.metadata import EPOCH, STRINGS, Kind
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import field_of, operands, parse_filter

MOST_FIELDS = 6
MOST_VALUES = 6  # strings of a field
MOST_RANGES = 8  # numbers or dates of a field
MIN_COVERED = 0.02  # smallest share of the documents that the most frequent values of a field must have
ZOOMS = 6  # times that the one range with documents is divided; from millennia to years
MOST_READ = 50  # values of a number, to see whether they are integers
MAX = sys.float_info.max  # stands for the last edge

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
    for field in sorted(kinds, key=lambda name: found.distinct(name) if kinds[name] in STRINGS else MOST_RANGES):
        own = [part for part, of in zip(parts, fields, strict=True) if of == field]
        others = [part for part, of in zip(parts, fields, strict=True) if of != field]
        chosen = alternatives(own[0]) if len(own) == 1 else own and [" AND ".join(own)]
        if (matches := matching(*others)) is None or not matches.documents:
            continue
        choices = (_values if kinds[field] in STRINGS else _ranges)(matches, field, kinds[field])
        for each in [text for text in chosen if text not in [choice.filter for choice in choices]][:MOST_VALUES]:
            narrowed = matching(*others, each)  # chosen, but not among the frequent values or ranges
            choices.insert(0, Choice(each, each, narrowed.documents if narrowed else 0))
        if choices[1:] or chosen or any(choice.documents < matches.documents for choice in choices):
            facets.append(Facet(field, [_option(choice, chosen, others) for choice in choices]))
        if len(facets) == MOST_FIELDS:
            break
    return found.documents, facets


def _option(choice: Choice, chosen: Sequence[str], others: Sequence[str]) -> Option:
    """A choice with its link, given the filters of its field that are chosen, and those of `others`."""
    is_chosen = choice.filter in chosen
    kept = [each for each in chosen if each != choice.filter] + [choice.filter] * (not is_chosen)
    return Option(choice.label, choice.documents, is_chosen, " AND ".join([*others, *either(kept)]))


def _values(matches: Matches, field: str, kind: Kind) -> list[Choice]:
    """The most frequent values; none if they are those of single documents, or of hardly any."""
    counts = matches.values(field, kind, MOST_VALUES)
    if sum(count for count in counts.values() if count > 1) < MIN_COVERED * matches.documents:
        return []
    quoted = {value: value.replace("\\", r"\\").replace('"', r"\"") for value in counts}
    return [Choice(value, f'{field}:"{quoted[value]}"', count) for value, count in counts.items() if count > 1]


def _ranges(matches: Matches, field: str, kind: Kind) -> list[Choice]:
    """Ranges of numbers, or of years, the latest first; none if no document has a value."""
    if (limits := matches.limits(field)) is None:
        return []
    count = partial(matches.ranges, field)
    if kind == "date":
        return years(field, *limits, count)
    integers = not any("." in value or "e" in value for value in matches.values(field, kind, MOST_READ))
    return numbers(field, *limits, count, integers=integers)


def years(field: str, low: float, high: float, count: Count) -> list[Choice]:
    """Ranges of years, for the first and the last day."""
    first, last = (date.fromordinal(int(day) + EPOCH).year for day in (low, high))
    found = numbers(field, first, last, lambda edges: count([*map(_first_day, edges)]), integers=True, pattern="04.0f")
    return found[::-1]


def _first_day(year: float) -> float:
    if year > MAXYEAR:
        return float(date.max.toordinal() + 1 - EPOCH)
    return float(date(max(int(year), MINYEAR), 1, 1).toordinal() - EPOCH)


def numbers(
    field: str, low: float, high: float, count: Count, *, integers: bool, pattern: str = ".12g"
) -> list[Choice]:
    """Equally wide ranges between round numbers; a range that has all documents is divided again."""
    finest = 1 if integers else 0
    for _ in range(ZOOMS + 1):
        edges = _edges(low, high, finest)
        counted = zip(pairwise(edges), count(edges), strict=True)
        filled = [(first, end, documents) for (first, end), documents in counted if documents]
        if len(filled) != 1 or filled[0][1] - filled[0][0] <= finest:
            break
        low, high = filled[0][0], math.nextafter(filled[0][1], low)
    sign = "<=" if integers else "<"
    choices = []
    for start, end, documents in filled:
        first, last = format(start, pattern), format(end - finest, pattern)
        if first == last:
            choices.append(Choice(_readable(first), f"{field}:{first}", documents))
        else:
            label = f"{_readable(first)}–{_readable(last)}"
            choices.append(Choice(label, f"({field}>={first} AND {field}{sign}{last})", documents))
    return choices


def _edges(low: float, high: float, finest: float) -> list[float]:
    """The edges of at most MOST_RANGES ranges of equal, round width, at least `finest`, from `low` to `high`."""
    width = max(high / (MOST_RANGES - 1) - low / (MOST_RANGES - 1), finest) or 1.0  # their difference may be too large
    power = 10.0 ** math.floor(math.log10(width))
    step = max(finest, next(step * power for step in (1, 2, 5, 10) if step * power >= width * (1 - 1e-9)))
    start, stop = math.floor(low / step), math.floor(high / step) + 1
    return [max(-MAX, min(n * step, MAX)) for n in range(start, max(stop, start + 1) + 1)]


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
