"""The page of a document for people, with the words of a query marked and its best passage in view."""

import re
from typing import Any

from starlette.exceptions import HTTPException

from cai_pyserini.core.template import template
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.found import highlighted
from cai_pyserini.engine.highlight import text_of
from cai_pyserini.engine.search import Engine
from cai_pyserini.service.access_log import note
from cai_pyserini.service.files import open_link
from cai_pyserini.service.page import HERE, Search, name_of, shown_metadata, tables, url_of, why
from cai_pyserini.service.queue import MAX_QUERY_LENGTH, Service
from cai_pyserini.service.ways import parse_query

PART = 50_000  # characters of a document on a page; each new word takes 0.1 ms
MAX_PARTS = 100_000
TEMPLATE = template(HERE / "document.html.jinja")


async def render_document(service: Service, index: str, id: str, search: Search, part: int | None) -> str:
    """The page as HTML, with PART characters of the text, from part 1 on; by default, those with the best passage.
    Leads back to the search. Raises HTTPException if there is no such document."""
    note(texts=[search.q] if search.q else [])
    shown = await service.call(index, lambda engine: _read(engine, index, id, search.q, part))
    if shown is None:
        raise HTTPException(404, f"no document {id!r}, or {index} does not store documents")
    return TEMPLATE.render(
        index=index,
        id=id,
        search=search,
        address={"index": index, "id": id, **search.parameters()},
        back=search.link(start=search.start, a=search.a or index) if search.q or search.like else "",
        similar=Search(like=id, a=index).link(),
        longest=MAX_QUERY_LENGTH,
        **shown,
    )


def _read(engine: Engine, index: str, id: str, query: str, part: int | None) -> dict[str, Any] | None:
    """What the page shows of a document."""
    if (stored := engine.document(id)) is None:
        return None
    text_of_query, _ = parse_query(engine, query)
    asked, own = engine.asked(text_of_query), engine.parts.document_of(id)
    explanation = engine.explain(text_of_query, [own]).get(own) if text_of_query.strip() else None
    passage, reasons, page = "", None, None
    if explanation:
        reasons = asked.reasons(explanation.scored, stored.contents)
        _, snippet, page = highlighted(stored, normalized(text_of_query), explanation, engine.parts.terms_of)
        passage = text_of(snippet) if any(strength for _, strength in snippet) else ""
    related = reasons["related"] if reasons else ()
    contents = stored.contents.removeprefix(stored.title).strip()
    span = passage_of(passage, contents)
    part = part or span[0] // PART + 1
    text = contents[(start := (part - 1) * PART) : part * PART]
    first, last = (min(max(place - start, 0), len(text)) for place in span)
    return {
        "title": asked.mark(stored.title, related),
        "heading": stored.title or id,
        "before": asked.mark(text[:first], related),
        "passage": asked.mark(text[first:last], related),
        "after": asked.mark(text[last:], related),
        "part": part,
        "first": start + 1,
        "more": part * PART < len(contents),
        "characters": len(contents),
        "metadata": shown_metadata(stored.metadata, engine.metadata),
        "url": (url := url_of(stored.metadata)),
        "open": open_link(engine, index, own, url, stored.metadata, page),
        "name": name_of(engine, id),
        "language": engine.language,
        "why": why(explanation, reasons) if explanation and reasons else [],
        "tables": tables(explanation) if explanation else [],
    }


def passage_of(snippet: str, text: str) -> tuple[int, int]:
    """Where a text has a snippet of it, whose white space is normalized; an empty range if it is not there."""
    words = snippet.removeprefix("… ").removesuffix(" …").split()
    match = re.search(r"\s+".join(map(re.escape, words)), text)
    return match.span() if match and words else (0, 0)
