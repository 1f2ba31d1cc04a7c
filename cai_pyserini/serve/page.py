"""The page: a query box, the hits of one system or of two side by side, and why each is a hit."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from cai_pyserini.core.metadata import Value
from cai_pyserini.core.template import template
from cai_pyserini.search.engine import BadFilter, Described, Engine, Filters, without_operators
from cai_pyserini.search.explanation import Explanation
from cai_pyserini.search.highlight import Marked
from cai_pyserini.serve.access_log import note
from cai_pyserini.serve.service import LONGEST_QUERY, Service

HERE = Path(__file__).parent
STYLE = (HERE / "style.css").read_text(encoding="utf-8")
MOST_SHOWN = 100  # hits; explaining one takes milliseconds
TERMS = 12  # terms shown of each score
SHADES = 4  # the shades of marked words

TEMPLATE = template(HERE / "page.html.jinja")


async def render(service: Service, query: str, first: str, second: str, hits: int, filter: str) -> str:
    """The page as HTML: the hits of a system, by default the recommended one, and of `second`, if that is another.

    Both are limited by a filter and, where they have words, by the operators of the query; facets are those of the
    first.
    """
    engines = service.engines  # which a reload replaces
    names = list(engines)
    first = first if first in names else names[0]
    second = second if second in names and second != first else ""
    can_filter = engines[first].can_filter
    note(texts=[query] * bool(query), hits=hits)
    kinds = list(engines[first].metadata) if can_filter else []
    page = {"q": query, "a": first, "b": second, "hits": hits}
    columns, facets, wrong = [], [], ""

    def understood(name: str) -> tuple[str, Filters]:
        return without_operators(query, filter) if engines[name].has_words else (query, filter or None)

    try:
        for name in [first, *[second] * bool(second)] if query else []:
            text, filters = understood(name)
            described = await service.call(name, partial(Engine.describe, text=text, hits=hits, filter=filters))
            found = [_hit(name, one) for one in described]
            engine = engines[name]
            columns.append(
                {"name": name, "description": engine.description, "language": engine.language, "hits": found}
            )
        if query and kinds:
            text, filters = understood(first)
            counts = await service.call(first, lambda engine: engine.facets(kinds, text, filters))
            facets = [(name, _links(page, filter, name, values)) for name, values in counts.items() if values]
    except BadFilter as error:
        wrong = str(error)
    suggestion = await service.call(first, lambda engine: engine.suggestion(query)) if query else None
    asked = {"query": query, "hits": hits, "first": first, "second": second, "filter": filter, "wrong": wrong}
    asked["suggestion"] = suggestion
    if suggestion:
        asked["suggested"] = "./?" + urlencode(page | {"q": suggestion, "filter": filter})
    shown = {"columns": columns, "facets": facets, "can_filter": can_filter or filter}
    return TEMPLATE.render(**asked, **shown, names=names, longest=LONGEST_QUERY, most=MOST_SHOWN)


def _links(page: Mapping[str, Any], filter: str, name: str, counts: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """Values of a field, each with the page of the documents that have it, and their number."""
    both = f"({filter}) AND " if filter else ""
    quoted = {value: value.replace("\\", r"\\").replace('"', r"\"") for value in counts}
    filters = {value: f'{both}{name}:"{quoted[value]}"' for value in counts}
    return [(value, f"./?{urlencode({**page, 'filter': filters[value]})}", count) for value, count in counts.items()]


def _hit(system: str, described: Described) -> dict[str, Any]:
    hit, explanation, title, snippet, metadata = described
    parts = [part.explanation for part in explanation.parts]
    return {
        "hit": hit,
        "link": f"v1/{quote(system, safe='')}/doc/{quote(hit.stored, safe='')}",
        "title": _shaded(title),
        "snippet": _shaded(snippet),
        "metadata": shown_metadata(metadata),
        "tables": [table for one in (explanation, *parts) if (table := _table(one))],
    }


def shown_metadata(metadata: Mapping[str, Value]) -> list[tuple[str, str | int | float]]:
    return [(name, ", ".join(value) if isinstance(value, list) else value) for name, value in metadata.items()]


def _shaded(pieces: Marked) -> list[tuple[str, int]]:
    return [(piece, math.ceil(SHADES * strength)) for piece, strength in pieces]


def _table(explanation: Explanation) -> dict[str, Any] | None:
    """The parts or terms of a score as a table, with a value from 0 to 1 for each row; None if there are none."""
    if not (table := explanation.table(TERMS)):
        return None
    return {
        "caption": f"{explanation.system}: score {explanation.score:.4f}",
        "header": table[0],
        "rows": list(zip(table[1:], explanation.bars(TERMS), strict=True)),
    }
