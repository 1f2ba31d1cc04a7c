"""The pages for people: the search, with the hits of one system or of two side by side, their facets, and why they are
there; and a document, with the words of a query marked and its best passage in view."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel, Field, StringConstraints, model_validator
from starlette.exceptions import HTTPException

from cai_pyserini.core.metadata import STRINGS, Kind, Value
from cai_pyserini.core.template import template
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.found import Described, Found, highlighted
from cai_pyserini.engine.highlight import text_of
from cai_pyserini.engine.reasons import Asked, Origin, Reasons
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.filters import BadFilter, without_operators
from cai_pyserini.service.access_log import note
from cai_pyserini.service.queue import MAX_HITS, MAX_QUERY_LENGTH, Job, SearchResults, Service

HERE = Path(__file__).parent
STYLE = (HERE / "style.css").read_text(encoding="utf-8")
MAX_SHOWN_HITS = 100  # hits; explaining one takes milliseconds
DEFAULT_HITS = 10
SHOWN_WORDS = 6  # terms whose share of a score is shown
SHOWN_TERMS = 20  # the same on the page of the document
CHIPS = 4  # metadata of a hit
CHIP_LENGTH = 50  # characters of a value
REASON_WORDS = 6  # words per origin
MIN_SHARE = 0.03  # smallest share of the score at which a non-query word is shown
MOST_FIELDS = 6  # whose values are counted
MOST_VALUES = 6  # of a field
MIN_COVERED = 0.02  # smallest share of the documents that the most frequent values of a field must have
MAX_LINKED_QUERY = 500  # characters of a query in the links to documents, which mark its words
MAX_TITLE = 300  # characters shown of a title
type Facet = tuple[str, list[tuple[str, int, str]]]  # field; values with numbers of documents and addresses
LABELS: dict[Origin, str] = {
    "word": "your words",
    "near": "in similar documents",
    "related": "related words",
    "part": "parts of your words",
}
LIKE_LABELS: dict[Origin, str] = LABELS | {"word": "words of that document", "part": "parts of its words"}
PART = 50_000  # characters of a document on a page; each new word takes 0.1 ms
MAX_PARTS = 100_000

FILTER = 'only documents with such metadata and words: year>=2020 AND NOT contents:"mouse model"'
SORT = "order the best hits by a field; with - before it, largest first"
TEMPLATE = template(HERE / "page.html.jinja")
DOCUMENT_TEMPLATE = template(HERE / "document.html.jinja")
Name = Annotated[str, StringConstraints(max_length=MAX_QUERY_LENGTH)]


class Search(BaseModel):
    """What the page is asked for, by the parameters of its address."""

    q: Name = Field("", description="the text to search for")
    a: Name = Field("", description="an index; for unknown names, the default")
    b: Name = Field("", description="an index to compare with; for unknown names, none")
    hits: int = Field(DEFAULT_HITS, description="hits to show", ge=1, le=MAX_SHOWN_HITS)
    start: int = Field(0, description="hits to skip", ge=0, lt=MAX_HITS)
    filter: Name = Field("", description=FILTER)
    sort: Name = Field("", description=SORT)
    like: Name = Field("", description="without q: a document, to find similar ones")

    @model_validator(mode="after")
    def _normalize(self) -> Self:
        self.q, self.filter = self.q.strip(), self.filter.strip()
        self.like = "" if self.q else self.like
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Options of a Job: it finds one hit more than are shown, if there can be a page after them."""
        return {"hits": min(self.start + self.hits + 1, MAX_HITS), "sort": self.sort or None}

    def parameters(self, **changes: Any) -> dict[str, Any]:
        """The parameters of its address, some of them changed, without those that have their defaults."""
        return self.model_copy(update=changes).model_dump(exclude_defaults=True)

    def link(self, **changes: Any) -> str:
        """The address of the page with some parameters changed, starting from the first hit unless that is given."""
        return f"./?{urlencode(self.parameters(**{'start': 0, **changes}))}"

    def document_link(self, index: str, stored: str) -> str:
        """The address of a document, with the passage that this search finds, and the way back to the search."""
        parameters = self.parameters(q=self.q[:MAX_LINKED_QUERY], a="" if self.a == index else self.a)
        return f"document?{urlencode({'index': index, 'id': stored, **parameters})}{'#passage' * bool(self.q)}"


async def render(service: Service, search: Search) -> str:
    """The page as HTML: the hits of the system `a`, by default the recommended one, and of `b`, if it differs.

    Unknown systems are ignored. Filter and sorting apply to both, and so do operators in the query, in systems that
    match words. Facets, counts and missing words are those of `a`.
    """
    engines = service.engines  # kept, because a reload replaces them
    names = list(engines)
    first = search.a if search.a in names else names[0]
    second = search.b if search.b in names and search.b != first else ""
    search = search.model_copy(update={"a": first, "b": second})
    engine = engines[first]
    shown: dict[str, Any] = {"columns": [], "facets": [], "total": 0, "missing": [], "suggestion": None, "wrong": ""}
    try:
        if search.like:
            shown |= await _like(service, search, engines)
        elif search.q:
            shown |= await _found(service, search, engines)
    except BadFilter as error:
        shown["wrong"] = str(error)
    note(texts=[search.q] if search.q else [], hits=search.hits)
    return TEMPLATE.render(
        search=search,
        names=names,
        engine=engine,
        can_filter=engine.can_filter or search.filter,
        longest=MAX_QUERY_LENGTH,
        most=MAX_SHOWN_HITS,
        **shown,
    )


async def _found(service: Service, search: Search, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """The hits of a query, with facets, the number of documents, and words that are in no document."""
    parsed = {name: parse_query(engines[name], search.q) for name in (search.a, search.b) if name}
    text, operators = parsed[search.a]

    def overview(engine: Engine) -> tuple[int, list[Facet], dict[str, int], str | None]:
        filters = (search.filter,) * bool(search.filter) + operators
        total, facets = _facets(engine, search, text, filters)
        return total, facets, engine.document_frequencies(text), engine.suggestion(search.q)

    total, facets, frequencies, suggestion = await service.call(search.a, overview)
    columns = []
    for name, (words, conditions) in parsed.items():
        filters = (search.filter,) * bool(search.filter) + conditions
        show = partial(_describe, search, name)
        found = await service.search(
            Job(index=name, texts=[words], filter=filters or None, show=show, **search.options)
        )
        columns.append(_column(engines[name], search, found))
    return {
        "columns": columns,
        "facets": facets if len(search.q) <= MAX_LINKED_QUERY else [],  # each link of a facet has the query
        "total": total if engines[search.a].matches_words and any(frequencies.values()) else 0,
        "missing": [word for word, documents in frequencies.items() if not documents],
        "suggestion": suggestion,
    }


def _facets(engine: Engine, search: Search, text: str, filters: Sequence[str]) -> tuple[int, list[Facet]]:
    """The number of documents that have a word of the text and pass the filters; the most frequent values of the fields
    that tell these documents apart, each with its number of documents and the address that narrows the search to it."""
    if (matches := engine.matches(text, filters or None)) is None:
        return 0, []
    facets: list[Facet] = []
    for field, kind in engine.metadata.items():
        counts = {value: n for value, n in matches.values(field, kind, MOST_VALUES).items() if n > 1}
        is_telling = len(counts) > 1 or any(n < matches.documents for n in counts.values())
        if is_telling and sum(counts.values()) >= MIN_COVERED * matches.documents:
            facets.append((field, [(value, n, _narrowed(search, field, kind, value)) for value, n in counts.items()]))
    return matches.documents, facets[:MOST_FIELDS]


def _narrowed(search: Search, field: str, kind: Kind, value: str) -> str:
    """The address of a search with a value of a field added to its filter."""
    if kind in STRINGS:
        value = '"{}"'.format(value.replace("\\", r"\\").replace('"', r"\""))
    kept = f"({search.filter})" if " OR " in search.filter.upper() else search.filter
    return search.link(filter=f"{kept} AND {field}:{value}" if kept else f"{field}:{value}")


def parse_query(engine: Engine, query: str) -> tuple[str, tuple[str, ...]]:
    """The text of a query, and filters for its operators, if the engine has words for them."""
    text, filters = without_operators(query) if engine.has_words else (query, None)
    return text, filters or ()


async def _like(service: Service, search: Search, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """The hits for the text of a document, without the document itself."""
    options = {"filter": search.filter or None, "show": partial(_describe, search, search.a), **search.options}
    document, found = await service.similar(search.a, search.like, **options)
    return {
        "columns": [_column(engines[search.a], search, found)],
        "like_title": document.title[:MAX_TITLE] or search.like,
    }


def _column(engine: Engine, search: Search, found: SearchResults) -> dict[str, Any]:
    """The hits of a system, with the addresses of the pages before and after."""
    end, (ranking,) = search.start + search.hits, found.rankings
    return {
        "engine": engine,
        "hits": ranking[: search.hits],
        "degraded": found.degraded,
        "previous": search.link(start=max(0, search.start - search.hits)) if search.start else "",
        "next": search.link(start=end) if len(ranking) > search.hits and end < MAX_HITS else "",
    }


def _describe(search: Search, index: str, engine: Engine, found: Found) -> Iterator[dict[str, Any]]:
    """What the page shows of the hits for a text."""
    asked = engine.asked(found.text)
    for described in found.describe(found.hits[search.start :]):
        yield _hit(search, index, asked, described)


def _hit(search: Search, index: str, asked: Asked, described: Described) -> dict[str, Any]:
    """What the page shows of a hit."""
    hit, explanation, title, snippet, stored, page = described
    labels = LIKE_LABELS if search.like else LABELS
    reasons = asked.reasons(explanation.scored, stored.contents if stored else "")
    reasons_of = why(explanation, reasons, labels)
    related = dict(reasons_of).get(LABELS["related"], ())
    return {
        "id": hit.id,
        "href": search.document_link(index, hit.stored) if stored else "",
        "like": Search(like=hit.stored, a=index).link() if stored else "",
        "title": asked.mark(text_of(title)[:MAX_TITLE], related),
        "snippet": asked.mark(text_of(snippet), related),
        "page": page,
        "url": url_of(described.metadata),
        "chips": _chips(described.metadata),
        "why": reasons_of,
        "tables": tables(explanation, SHOWN_WORDS)[:1],
    }


def why(
    explanation: Explanation, reasons: Reasons, labels: Mapping[Origin, str] = LABELS
) -> list[tuple[str, list[str]]]:
    """The reasons of a score, by what they are: words of the query, and others that contribute enough."""
    if not any(each.terms for each in explanation.scored):
        return [("similar meaning", [])]
    total = sum(sum(words.values()) for words in reasons.values())
    named = {
        origin: [word for word, value in words.items() if origin == "word" or value >= MIN_SHARE * total]
        for origin, words in reasons.items()
    }
    shown = [(labels[origin], [*map(_shown, words[:REASON_WORDS])]) for origin, words in named.items() if words]
    return shown or [("common words", [])]


def _shown(word: str) -> str:
    """A word, or a piece of one without the tokenizer's notation."""
    return f"…{word.removeprefix('##')}" if word.startswith("##") else word


def url_of(metadata: Mapping[str, Value]) -> tuple[str, str] | None:
    """The address in the field `url`, and its host; None if it is not one of the web."""
    url = metadata.get("url")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        return None
    return url, urlsplit(url).netloc


def _chips(metadata: Mapping[str, Value]) -> list[tuple[str, str]]:
    """A few fields and their values, short ones."""
    shown = [(name, str(value)) for name, value in shown_metadata(metadata) if name != "url"]
    return [(name, text) for name, text in shown if len(text) <= CHIP_LENGTH][:CHIPS]


def shown_metadata(metadata: Mapping[str, Value]) -> list[tuple[str, str | int | float]]:
    return [(name, ", ".join(value) if isinstance(value, list) else value) for name, value in metadata.items()]


def tables(explanation: Explanation, rows: int) -> list[dict[str, Any]]:
    """A table of the parts or the largest terms of each score, with a bar from 0 to 1 per row."""
    scores = [explanation, *(part.explanation for part in explanation.parts)]
    return [
        {
            "caption": f"{each.system}: score {each.score:.4f}",
            "header": table[0],
            "rows": list(zip(table[1:], each.bars(rows), strict=True)),
        }
        for each in scores
        if (table := each.table(rows))
    ]


async def render_document(service: Service, index: str, id: str, search: Search, part: int | None) -> str:
    """The page as HTML, with PART characters of the text, from part 1 on; by default, those with the best passage.
    Leads back to the search. Raises HTTPException if there is no such document."""
    note(texts=[search.q] if search.q else [])
    shown = await service.call(index, lambda engine: _read(engine, id, search.q, part))
    if shown is None:
        raise HTTPException(404, f"no document {id!r}, or {index} does not store documents")
    return DOCUMENT_TEMPLATE.render(
        index=index,
        id=id,
        search=search,
        address={"index": index, "id": id, **search.parameters()},
        back=search.link(start=search.start, a=search.a or index) if search.q or search.like else "",
        similar=Search(like=id, a=index).link(),
        longest=MAX_QUERY_LENGTH,
        **shown,
    )


def _read(engine: Engine, id: str, query: str, part: int | None) -> dict[str, Any] | None:
    """What the page shows of a document."""
    if (stored := engine.document(id)) is None:
        return None
    text_of_query, _ = parse_query(engine, query)
    asked, own = engine.asked(text_of_query), engine.parts.document_of(id)
    explanation = engine.explain(text_of_query, [own]).get(own) if text_of_query.strip() else None
    passage, reasons = "", None
    if explanation:
        reasons = asked.reasons(explanation.scored, stored.contents)
        _, snippet, _ = highlighted(stored, normalized(text_of_query), explanation, engine.parts.terms_of)
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
        "more": part * PART < len(contents),
        "metadata": shown_metadata(stored.metadata),
        "url": url_of(stored.metadata),
        "language": engine.language,
        "why": why(explanation, reasons) if explanation and reasons else [],
        "tables": tables(explanation, SHOWN_TERMS) if explanation else [],
    }


def passage_of(snippet: str, text: str) -> tuple[int, int]:
    """Where a text has a snippet of it, whose white space is normalized; an empty range if it is not there."""
    words = snippet.removeprefix("… ").removesuffix(" …").split()
    match = re.search(r"\s+".join(map(re.escape, words)), text)
    return match.span() if match and words else (0, 0)
