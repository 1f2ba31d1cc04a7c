"""The search page: a query box, the hits of one system or of two side by side, and explanations of their scores."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from cai_pyserini.core.metadata import Value
from cai_pyserini.core.template import template
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.highlight import Marked
from cai_pyserini.engine.search import BadFilter, Described, Engine, Filters, without_operators
from cai_pyserini.service.access_log import note
from cai_pyserini.service.queue import MAX_QUERY_LENGTH, Service

HERE = Path(__file__).parent
STYLE = (HERE / "style.css").read_text(encoding="utf-8")
MAX_SHOWN_HITS = 100  # hits; explaining one takes milliseconds
TERMS = 12  # shown per score
SHADES = 4  # of highlighted words

TEMPLATE = template(HERE / "page.html.jinja")


async def render(service: Service, query: str, first: str, second: str, hits: int, filter: str) -> str:
    """The page as HTML: the hits of the system `first`, by default the recommended one, and of `second`, if it differs.

    The filter applies to both, and so do operators in the query, in systems that match words. Facets are of `first`.
    """
    engines = service.engines  # kept, because a reload replaces them
    names = list(engines)
    first = first if first in names else names[0]
    second = second if second in names and second != first else ""
    can_filter = engines[first].can_filter
    note(texts=[query] if query else [], hits=hits)
    fields = list(engines[first].metadata) if can_filter else []
    parameters = {"q": query, "a": first, "b": second, "hits": hits}
    columns, facets, error_message = [], [], ""

    def parse_operators(name: str) -> tuple[str, Filters]:
        return without_operators(query, filter) if engines[name].has_words else (query, filter or None)

    try:
        for name in (first, second) if query else ():
            if not name:
                continue
            text, filters = parse_operators(name)
            described = await service.call(name, partial(Engine.describe, text=text, k=hits, filter=filters))
            column = {"name": name, "description": engines[name].description, "language": engines[name].language}
            columns.append(column | {"hits": [_hit(name, hit) for hit in described]})
        if query and fields:
            text, filters = parse_operators(first)
            counts = await service.call(first, lambda engine: engine.facets(fields, text, filters))
            for field, values in counts.items():
                if values:
                    facets.append((field, _facet_links(parameters, filter, field, values)))
    except BadFilter as error:
        error_message = str(error)
    suggestion = await service.call(first, lambda engine: engine.suggestion(query)) if query else None
    suggested = f"./?{urlencode(parameters | {'q': suggestion, 'filter': filter})}"
    form = {"query": query, "hits": hits, "first": first, "second": second, "filter": filter, "names": names}
    limits = {"longest": MAX_QUERY_LENGTH, "most": MAX_SHOWN_HITS}
    results = {"columns": columns, "facets": facets, "suggestion": suggestion, "suggested": suggested}
    return TEMPLATE.render(**form, **limits, **results, can_filter=can_filter or filter, wrong=error_message)


def _facet_links(
    parameters: Mapping[str, Any], filter: str, field: str, counts: Mapping[str, int]
) -> list[tuple[str, str, int]]:
    """The values of a field, each with a link to its documents and their count."""
    links, prefix = [], f"({filter}) AND " if filter else ""
    for value, count in counts.items():
        quoted = value.replace("\\", r"\\").replace('"', r"\"")
        link = urlencode({**parameters, "filter": f'{prefix}{field}:"{quoted}"'})
        links.append((value, f"./?{link}", count))
    return links


def _hit(system: str, described: Described) -> dict[str, Any]:
    hit, explanation, title, snippet, metadata, page = described
    parts = [part.explanation for part in explanation.parts]
    return {
        "hit": hit,
        "link": f"v1/{quote(system, safe='')}/doc/{quote(hit.stored, safe='')}",
        "title": _shaded(title),
        "snippet": _shaded(snippet),
        "page": page,
        "metadata": shown_metadata(metadata),
        "tables": [table for part in (explanation, *parts) if (table := _table(part))],
    }


def shown_metadata(metadata: Mapping[str, Value]) -> list[tuple[str, str | int | float]]:
    return [(name, ", ".join(value) if isinstance(value, list) else value) for name, value in metadata.items()]


def _shaded(pieces: Marked) -> list[tuple[str, int]]:
    return [(piece, math.ceil(SHADES * strength)) for piece, strength in pieces]


def _table(explanation: Explanation) -> dict[str, Any] | None:
    """A table of the parts or terms of a score, with a bar from 0 to 1 per row; None if there are none."""
    if not (table := explanation.table(TERMS)):
        return None
    return {
        "caption": f"{explanation.system}: score {explanation.score:.4f}",
        "header": table[0],
        "rows": list(zip(table[1:], explanation.bars(TERMS), strict=True)),
    }
