"""Queries with operators, and the ways on where one with its filter finds nothing."""

from collections.abc import Iterator
from typing import NamedTuple

from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.filters import BadFilter, relaxed, without_operators


class Way(NamedTuple):
    """A query and a filter that find `documents`, and what they are without."""

    without: str
    query: str
    filter: str
    documents: int


def parse_query(engine: Engine, query: str) -> tuple[str, tuple[str, ...]]:
    """The text of a query, and filters for its operators, if the engine has words for them."""
    text, filters = without_operators(query) if engine.has_words else (query, None)
    return text, filters or ()


def ways_on(engine: Engine, query: str, filter: str) -> Iterator[Way]:
    """Yield the query and the filter without one of the filter, quotes and minus, and without all, if that finds
    documents."""
    ways = [("the filter", query, "")] if filter else []
    if engine.has_words:
        ways += [(without, other, filter) for without, other in relaxed(query) if other != query]
    if len(ways) > 1:
        plain = query
        for without, _ in relaxed(query):
            plain = dict(relaxed(plain))[without]
        ways.append(("any of these", plain, ""))
    for without, other, of_filter in ways:
        try:
            text, operators = parse_query(engine, other)
        except BadFilter:
            continue
        found = engine.matches(text, ((of_filter,) if of_filter else ()) + operators or None)
        if found and found.documents:
            yield Way(without, other, of_filter, found.documents)


def missing_phrases(engine: Engine, operators: tuple[str, ...]) -> list[str]:
    """The phrases of a query, in quotes, that no document has."""
    phrases = [operator for operator in operators if not operator.startswith("NOT ")]
    found = {phrase: engine.matches("", phrase) for phrase in phrases}
    return [phrase.partition(":")[2] for phrase, matches in found.items() if matches and not matches.documents]
