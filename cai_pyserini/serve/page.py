"""The page: a query box, the hits of one system or of two side by side, and why each is a hit."""

import math
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from cai_pyserini.core.template import template
from cai_pyserini.search.engine import Described
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


async def render(service: Service, query: str, first: str, second: str, hits: int) -> str:
    """The page as HTML: the hits of a system, by default the first there is, and of `second`, if that is another."""
    names = list(service.engines)
    first = first if first in names else names[0]
    second = second if second in names and second != first else ""
    note(texts=[query] * bool(query), hits=hits)
    suggestion = await service.call(first, lambda engine: engine.suggestion(query)) if query else None
    columns = []
    for name in filter(None, (first, second)):
        described = await service.call(name, lambda engine: engine.describe(query, hits)) if query else []
        hits_of = [_hit(name, one) for one in described]
        columns.append({"name": name, "language": service.engines[name].language, "hits": hits_of})
    asked = {"query": query, "hits": hits, "first": first, "second": second, "suggestion": suggestion}
    if suggestion:
        asked["suggested"] = "/?" + urlencode({"q": suggestion, "a": first, "b": second, "hits": hits})
    return TEMPLATE.render(**asked, names=names, columns=columns, longest=LONGEST_QUERY, most=MOST_SHOWN)


def _hit(system: str, described: Described) -> dict[str, Any]:
    hit, explanation, title, snippet = described
    parts = [part.explanation for part in explanation.parts]
    return {
        "hit": hit,
        "link": f"/v1/{quote(system, safe='')}/doc/{quote(hit.stored, safe='')}",
        "title": _shaded(title),
        "snippet": _shaded(snippet),
        "tables": [table for one in (explanation, *parts) if (table := _table(one))],
    }


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
