"""The page of a document for people: its text as it was, with the words of a query marked, opened at the passage that
was found."""

import re
from bisect import bisect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

from cai_pyserini.core.config import document_of, tag_of
from cai_pyserini.core.template import template
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.found import highlighted
from cai_pyserini.engine.highlight import Marked, text_of
from cai_pyserini.engine.hits import without_title
from cai_pyserini.engine.reasons import Marks, Origin
from cai_pyserini.engine.search import Engine
from cai_pyserini.service.access_log import note
from cai_pyserini.service.files import open_link
from cai_pyserini.service.page import HERE, Search, name_of, shown_metadata, tables, url_of, why
from cai_pyserini.service.queue import MAX_QUERY_LENGTH, Service
from cai_pyserini.service.reading import Heading, blocks, headings, part_starts, separator_of
from cai_pyserini.service.ways import parse_query

MAX_PARTS = 100_000
MOST_ENTRIES = 2_000  # of the list of contents; of a longer one, only the highest levels
FEW_ENTRIES = 12  # which are unfolded
TEMPLATE = template(HERE / "document.html.jinja")

Pieces = list[tuple[str, Origin | None, int]]  # of a text, each with the number of the match from 1, or 0
Runs = list[tuple[bool, Pieces]]  # and whether they are in the passage


async def render_document(service: Service, index: str, id: str, search: Search, part: int | None) -> str:
    """The page as HTML, with a part of the text, from 1 on; by default, that with the passage `id`, or with the best
    one of the document `id`. Leads back to the search. Raises HTTPException if there is no such document."""
    note(texts=[search.q] if search.q else [])
    shown = await service.call(index, lambda engine: _read(engine, index, id, search.q, part))
    if shown is None:
        raise HTTPException(404, f"no document {id!r}, or {index} does not store documents")
    return TEMPLATE.render(
        index=index,
        search=search,
        address={"index": index, "id": id, **search.parameters()},
        back=search.link(start=search.start, a=search.a or index) if search.q or search.like else "",
        similar=Search(like=id, a=index).link(),
        longest=MAX_QUERY_LENGTH,
        few=FEW_ENTRIES,
        **shown,
    )


def _read(engine: Engine, index: str, id: str, query: str, part: int | None) -> dict[str, Any] | None:
    """What the page shows of a document."""
    if (stored := engine.document(id)) is None:
        return None
    whole = (stored.passages and engine.document(document_of(stored.id))) or stored
    text, own = without_title(whole), whole.id
    text_of_query, _ = parse_query(engine, query)
    asked = engine.asked(text_of_query)
    explanation = engine.explain(text_of_query, [own]).get(own) if text_of_query.strip() else None
    passage, reasons, snippet, page = (0, 0), None, Marked(), None
    if explanation:
        reasons = asked.reasons(explanation.scored, stored.contents)
        _, snippet, page = highlighted(stored, normalized(text_of_query), explanation, engine.parts.terms_of)
    if whole is not stored:
        passage = stored.start, stored.start + len(without_title(stored).rstrip())
    elif any(strength for _, strength in snippet):
        passage = passage_of(text_of(snippet), text)
    if page is None and passage[1]:
        page = text.count("\f", 0, passage[0]) + 1
    related = reasons["related"] if reasons else ()
    starts = part_starts(text)
    part = min(part or bisect(starts, passage[0]), len(starts) + 1)
    start, end = [*starts, len(text), len(text)][part - 1 : part + 1]
    contents = headings(text)
    places = asked.places(text)
    before, after = bisect(places, start - 1), bisect(places, end - 1)
    shown = _Part(start, asked.mark(text[start:end], related), passage)
    return {
        "id": own,
        "title": asked.mark(whole.title, related),
        "heading": whole.title or own,
        "blocks": [*_shown_blocks(text, start, end, contents, shown)],
        "passage": passage[0] < passage[1],
        "here": start <= passage[0] < end,
        "contents": [(entry, bisect(starts, entry.start)) for entry in _entries(contents)],
        "part": part,
        "parts": len(starts),
        "matches": len(places),
        "shown_matches": shown.matches,
        "part_before": bisect(starts, places[before - 1]) if before else 0,
        "part_after": bisect(starts, places[after]) if after < len(places) else 0,
        "metadata": shown_metadata(whole.metadata, engine.metadata),
        "url": (url := url_of(whole.metadata)),
        "open": open_link(engine, index, own, url, whole.metadata, page),
        "name": name_of(engine, own),
        "language": tag_of(whole.language or engine.language),
        "why": why(explanation, reasons) if explanation and reasons else [],
        "tables": tables(explanation) if explanation else [],
    }


class _Mark(NamedTuple):
    start: int
    end: int
    origin: Origin
    number: int


class _Part:
    """A part of a text, from `start` on, with its marks, and the passage, by places in the text."""

    def __init__(self, start: int, marks: Marks, passage: tuple[int, int]):
        self._start, self._text, self._passage = start, "".join(piece for piece, _ in marks), passage
        self._marks, self.matches = list[_Mark](), 0
        for piece, origin in marks:
            if origin:
                self.matches += origin == "word"
                self._marks.append(_Mark(start, start + len(piece), origin, self.matches * (origin == "word")))
            start += len(piece)
        self._ends = [mark.end for mark in self._marks]

    def runs(self, start: int, end: int) -> Runs:
        """The text between two places."""
        first, last = self._passage
        cuts = sorted({start, end, *(place for place in (first, last) if start < place < end)})
        return [(first <= left < last, [*self._pieces(left, right)]) for left, right in pairwise(cuts)]

    def _pieces(self, start: int, end: int) -> Iterator[tuple[str, Origin | None, int]]:
        for mark in self._marks[bisect(self._ends, start) :]:
            if mark.start >= end:
                break
            place = max(start, mark.start)
            yield self._slice(start, place), None, 0
            start = min(mark.end, end)
            yield self._slice(place, start), mark.origin, mark.number
        yield self._slice(start, end), None, 0

    def _slice(self, start: int, end: int) -> str:
        return self._text[start - self._start : end - self._start]


def _shown_blocks(text: str, start: int, end: int, contents: list[Heading], part: _Part) -> Iterator[dict[str, Any]]:
    """The blocks of a part, with runs of text, or rows of cells that are such; headings leave out no level."""
    level = 1
    for block in blocks(text, start, end, {heading.start: heading for heading in contents}):
        shown: dict[str, Any] = {"kind": block.kind, "number": block.number, "start": block.start}
        if block.kind == "heading":
            level = min(block.number, level) + 1
            shown["number"] = level
        if block.kind == "table":
            rows, place = [], block.start
            separator = separator_of(lines := text[block.start : block.end].split("\n"))
            for line in lines:
                cells = line.split(separator)
                ends = [place := place + len(cell) + 1 for cell in cells]
                rows.append([part.runs(last - len(cell) - 1, last - 1) for cell, last in zip(cells, ends, strict=True)])
            shown["rows"] = rows
        else:
            shown["runs"] = part.runs(block.start, block.end)
        yield shown


def _entries(contents: list[Heading]) -> list[Heading]:
    """The highest levels of headings that are few enough, or else the first ones."""
    levels = sorted({heading.level for heading in contents})
    while len(contents) > MOST_ENTRIES and len(levels) > 1:
        lowest = levels.pop()
        contents = [heading for heading in contents if heading.level < lowest]
    top = min(levels, default=1)
    return [heading._replace(level=heading.level - top) for heading in contents[:MOST_ENTRIES]]


def passage_of(snippet: str, text: str) -> tuple[int, int]:
    """Where a text has a snippet of it, whose white space is normalized; an empty range if it is not there."""
    words = snippet.removeprefix("… ").removesuffix(" …").split()
    match = re.search(r"\s+".join(map(re.escape, words)), text)
    return match.span() if match and words else (0, 0)
