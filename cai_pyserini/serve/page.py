"""The page: a query box, the hits of one system or of two side by side, and why each is a hit."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from cai_pyserini.core.metadata import Value
from cai_pyserini.core.template import template
from cai_pyserini.search.engine import BadFilter, Described, Engine, Filters, Hit, Stored, without_operators
from cai_pyserini.search.explanation import Explanation
from cai_pyserini.search.highlight import SPLIT, Marked, marked, snippet
from cai_pyserini.serve.access_log import note
from cai_pyserini.serve.interleave import INTERLEAVED, Interleaving
from cai_pyserini.serve.service import LONGEST_QUERY, Service

HERE = Path(__file__).parent
STYLE = (HERE / "style.css").read_text(encoding="utf-8")
MOST_SHOWN = 100  # hits; explaining one takes milliseconds
TERMS = 12  # terms shown of each score
SHADES = 4  # the shades of marked words

TEMPLATE = template(HERE / "page.html.jinja")


async def render(
    service: Service,
    query: str,
    first: str,
    second: str,
    hits: int,
    filter: str,
    interleaving: Interleaving | None = None,
) -> str:
    """The page as HTML: the hits of a system, by default the first there is, and of `second`, if that is another.

    Both are limited by a filter and, where they have words, by the operators of the query; facets are those of the
    first. Interleaved hits are shown alone and all in the same way, whichever system has found them.
    """
    engines = service.engines  # which a reload replaces
    others = list(engines)
    names = [*[INTERLEAVED] * bool(interleaving), *others]
    first = first if first in names else names[0]
    second = second if second in others and first not in (second, INTERLEAVED) else ""
    mixed = interleaving if first == INTERLEAVED else None
    searched = mixed.systems if mixed else (first,)
    system, can_filter = searched[0], all(engines[name].can_filter for name in searched)
    note(texts=[query] * bool(query), hits=hits)
    kinds = list(engines[system].metadata) if can_filter else []
    page = {"q": query, "a": first, "b": second, "hits": hits}
    columns, facets, wrong = [], [], ""

    def understood(systems: Sequence[str]) -> tuple[str, Filters]:
        has_words = all(engines[name].has_words for name in systems)
        return without_operators(query, filter) if has_words else (query, filter or None)

    try:
        for name in [first, *[second] * bool(second)] if query else []:
            text, filters = understood(searched if name == first else [name])
            clicks = ""
            if mixed:
                answer, impression = await mixed.search(text, hits, filters)
                described = [_described(hit, stored, text) for hit, stored in answer.found[0]]
                clicks = f"?impression={impression}&hit="
            else:
                described = await service.call(name, partial(Engine.describe, text=text, hits=hits, filter=filters))
            language = engines[system if mixed else name].language
            columns.append({"name": name, "language": language, "hits": [_hit(name, one, clicks) for one in described]})
        if query and kinds:
            text, filters = understood(searched)
            counts = await service.call(system, lambda engine: engine.facets(kinds, text, filters))
            facets = [(name, _links(page, filter, name, values)) for name, values in counts.items() if values]
    except BadFilter as error:
        wrong = str(error)
    suggestion = await service.call(system, lambda engine: engine.suggestion(query)) if query else None
    asked = {"query": query, "hits": hits, "first": first, "second": second, "filter": filter, "wrong": wrong}
    asked["suggestion"] = suggestion
    if suggestion:
        asked["suggested"] = "/?" + urlencode(page | {"q": suggestion, "filter": filter})
    found = {"columns": columns, "facets": facets, "can_filter": can_filter or filter}
    return TEMPLATE.render(**asked, **found, names=names, others=others, longest=LONGEST_QUERY, most=MOST_SHOWN)


def _links(page: Mapping[str, Any], filter: str, name: str, counts: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """Values of a field, each with the page of the documents that have it, and their number."""
    both = f"({filter}) AND " if filter else ""
    quoted = {value: value.replace("\\", r"\\").replace('"', r"\"") for value in counts}
    filters = {value: f'{both}{name}:"{quoted[value]}"' for value in counts}
    return [(value, f"/?{urlencode({**page, 'filter': filters[value]})}", count) for value, count in counts.items()]


def _described(hit: Hit, stored: Stored | None, query: str) -> Described:
    """An interleaved hit, with the words of the query marked."""
    title, contents = (stored.title, stored.contents) if stored else ("", "")
    asked = {word.lower() for word in SPLIT.split(query)[1::2]}
    strengths = {word: float(word.lower() in asked) for word in SPLIT.split(contents)[1::2]}
    text = snippet(contents.removeprefix(title).lstrip(), strengths)
    explanation = Explanation(INTERLEAVED, hit.id, hit.rank, hit.score, None, [], [])
    return Described(hit, explanation, marked(title, strengths), text, stored.metadata if stored else {})


def _hit(system: str, described: Described, clicks: str) -> dict[str, Any]:
    hit, explanation, title, snippet, metadata = described
    parts = [part.explanation for part in explanation.parts]
    return {
        "hit": hit,
        "link": f"/v1/{quote(system, safe='')}/doc/{quote(hit.stored, safe='')}{clicks and clicks + quote(hit.id)}",
        "score": "" if clicks else f", score {hit.score:.4f}",
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
