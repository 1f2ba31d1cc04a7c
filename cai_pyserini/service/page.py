"""The search page for people: the hits of one system or of two side by side, their facets, and why they are there."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel, Field, StringConstraints, model_validator

from cai_pyserini.collections.contract import PAGE, PAGES
from cai_pyserini.collections.file_listing import FileListing
from cai_pyserini.core.config import tag_of
from cai_pyserini.core.metadata import Kind, Value
from cai_pyserini.core.template import template
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.found import SORT_DEPTH, Described, Found
from cai_pyserini.engine.highlight import text_of
from cai_pyserini.engine.hits import Hit
from cai_pyserini.engine.reasons import Asked, Origin, Reasons, main_origin
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.filters import BadFilter
from cai_pyserini.service.access_log import note
from cai_pyserini.service.facets import Facet, Option, chosen_of, facets_of, narrowed
from cai_pyserini.service.files import open_link
from cai_pyserini.service.queue import MAX_HITS, MAX_QUERY_LENGTH, Job, SearchResults, Service
from cai_pyserini.service.readable import of_files, readable, readable_path
from cai_pyserini.service.ways import Way, missing_phrases, parse_query, ways_on

HERE = Path(__file__).parent
STYLE = (HERE / "style.css").read_text(encoding="utf-8")
SCRIPT = (HERE / "script.js").read_text(encoding="utf-8")
MAX_SHOWN_HITS = 100  # hits; explaining one takes milliseconds
DEFAULT_HITS = 10
SHOWN_WORDS = 6  # words whose share of a score is shown
SHOWN_TERMS = 20  # the same on the page of the document
CHIPS = 4  # metadata of a hit
CHIP_LENGTH = 50  # characters of a value
REASON_WORDS = 6  # words per origin
MIN_SHARE = 0.03  # smallest share of the score at which a non-query word is shown
LIKE_WORDS = 12  # marked words that a document shares with the one it is like
MAX_LINKED_QUERY = 500  # characters of a query in the links to documents, which mark its words
MAX_TITLE = 300  # characters shown of a title
HOST = re.compile(r"[\w.:-]+")  # other characters are not what browsers take for a host
LABELS: dict[Origin, str] = {
    "word": "your words",
    "near": "in similar documents",
    "related": "related words",
    "part": "parts of your words",
}
LIKE_LABELS: dict[Origin, str] = LABELS | {"word": "words of that document", "part": "parts of its words"}
COMMON = "common words"
COMMON_SHARE = 0.1  # words in more than this share of the documents don't explain similarity
MIN_COMMON = 5  # nor do those in so many documents of a small collection

FILTER = 'only documents with such metadata and words: year>=2020 AND NOT contents:"mouse model"'
SORT = "order the best hits by a field; with - before it, largest first"
TEMPLATE = template(HERE / "page.html.jinja")
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

    def options(self, engine: Engine) -> dict[str, Any]:
        """Options of a Job: it finds one hit more than are shown, if there can be a page after them, and what may be
        folded, see `first_copies`; sorted, so many on all pages that they have the same order."""
        hits = max(self.start + self.hits + 1, SORT_DEPTH if self.sort else 0)
        folded = engine.files.folded if engine.files else 0
        return {"hits": min(hits + folded, MAX_HITS), "sort": self.sort or None}

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
    shown: dict[str, Any] = {"columns": [], "facets": [], "total": 0, "missing": [], "ways": [], "suggestion": None}
    shown["wrong"] = ""
    try:
        if search.like:
            shown |= await _like(service, search)
        elif search.q:
            shown |= await _found(service, search, engines)
    except BadFilter as error:
        shown["wrong"] = str(error)
    finally:
        note(texts=[search.q] if search.q else [], hits=search.hits)
    return TEMPLATE.render(
        search=search,
        names=names,
        engine=engine,
        chosen=chosen_of(search.filter, engine.metadata),
        sorts=_sorts(engine),
        can_filter=engine.can_filter or search.filter,
        longest=MAX_QUERY_LENGTH,
        most=MAX_SHOWN_HITS,
        **shown,
    )


async def _found(service: Service, search: Search, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """The hits of a query, with facets, the number of documents, and words that are in no document."""
    parsed = {name: parse_query(engines[name], search.q) for name in (search.a, search.b) if name}
    text, operators = parsed[search.a]

    def overview(engine: Engine) -> tuple[int, list[Facet], dict[str, int], str | None, list[str], list[Way]]:
        total, facets = facets_of(engine, text, search.filter, operators)
        found = total, facets, engine.document_frequencies(text), engine.suggestion(search.q)
        if total or not (operators or search.filter):
            return *found, [], []
        return *found, missing_phrases(engine, operators), [*ways_on(engine, search.q, search.filter)]

    total, facets, frequencies, suggestion, phrases, ways = await service.call(search.a, overview)
    missing = [word for word, documents in frequencies.items() if not documents]
    nothing = bool(missing) and len(missing) == len(frequencies)
    fields = [facet.field for facet in facets]
    is_short = len(search.q) <= MAX_LINKED_QUERY  # each link of a facet has the query
    columns = []
    for name, (words, conditions) in parsed.items():
        filters = (search.filter,) * bool(search.filter) + conditions
        show = partial(_describe, search, name, fields)
        found = await service.search(
            Job(index=name, texts=[words], filter=filters or None, show=show, **search.options(engines[name]))
        )
        columns.append(_column(engines[name], search, found, nothing))
    return {
        "columns": columns,
        "facets": [(facet.field, _links(search, facet.options)) for facet in facets if is_short],
        "total": total if engines[search.a].matches_words and any(frequencies.values()) else 0,
        "missing": missing + phrases,
        "ways": [(way.without, search.link(q=way.query, filter=way.filter), way.documents) for way in ways],
        "nothing": nothing,
        "suggestion": suggestion,
    }


async def _like(service: Service, search: Search) -> dict[str, Any]:
    """The hits for the text of a document, without the document itself."""
    document, found = await service.document(search.a, search.like, MAX_QUERY_LENGTH), SearchResults([[]])
    if document.contents.strip():
        options = search.options(service.engines[search.a]) | {"filter": search.filter or None}
        show = partial(_describe, search, search.a, [])
        job = Job(index=search.a, texts=[document.contents], without=search.like, show=show, **options)
        found = await service.search(job)
    column = _column(service.engines[search.a], search, found)
    return {"columns": [column], "like_title": document.title[:MAX_TITLE] or search.like}


def _column(engine: Engine, search: Search, found: SearchResults, nothing: bool = False) -> dict[str, Any]:
    """The hits of a system, with the addresses of the pages before and after. If `nothing` has a word of the query,
    hits by parts of its words are kept apart, and those by one or two letters, or common words, left out."""
    end, (ranking,) = search.start + search.hits, found.rankings
    hits = ranking[: search.hits]
    parts = [hit for hit in hits if nothing and hit["origin"] == "part"]
    if nothing:
        hits = [hit for hit in hits if hit["origin"] not in ("part", None)]
    return {
        "name": engine.name,
        "description": engine.description,
        "hits": hits,
        "parts": parts,
        "degraded": found.degraded,
        "previous": search.link(start=max(0, search.start - search.hits)) if search.start else "",
        "next": search.link(start=end) if hits and len(ranking) > search.hits and end < MAX_HITS else "",
    }


def _describe(
    search: Search, index: str, fields: Sequence[str], engine: Engine, found: Found
) -> Iterator[dict[str, Any]]:
    """What the page shows of the hits for a text."""
    asked, common = engine.asked(found.text), _common_words(engine, found.text) if search.like else set()
    hits = first_copies(found.hits, engine.files)[search.start :]
    for described in found.describe(hits[: search.hits + 1]):
        yield _hit(engine, index, search, described, asked=asked, common=common, fields=fields)


def first_copies(hits: Sequence[Hit], files: FileListing | None) -> list[Hit]:
    """The hits without those that are copies of better ones, which lead to them. `hits` are the best ones from the
    first on, so that pages neither skip nor repeat any."""
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(files.original_of(hit.id) if files else hit.id, hit)
    return [*first.values()]


def _common_words(engine: Engine, text: str) -> set[str]:
    """The words of a text that many documents have."""
    most = max(MIN_COMMON, COMMON_SHARE * engine.passages)
    return {word for word, documents in engine.document_frequencies(text).items() if documents > most}


def _hit(
    engine: Engine,
    index: str,
    search: Search,
    described: Described,
    *,
    asked: Asked,
    common: Set[str],
    fields: Sequence[str],
) -> dict[str, Any]:
    """What the page shows of a hit; metadata of `fields` come first, and `common` words are no reasons."""
    hit, explanation, title, snippet, stored, page = described
    labels = LIKE_LABELS if search.like else LABELS
    reasons = asked.reasons(explanation.scored, stored.contents if stored else "")
    telling: Reasons = {
        origin: {word: value for word, value in words.items() if word not in common}
        for origin, words in reasons.items()
    }
    reasons_of = why(explanation, telling, labels)
    if search.like:
        mark_words = engine.asked(" ".join(islice(telling["word"], LIKE_WORDS))).mark
    else:
        mark_words = partial(asked.mark, related=dict(reasons_of).get(LABELS["related"], ()))
    return {
        "id": hit.id,
        "rank": hit.rank,
        "href": search.document_link(index, hit.stored) if stored else "",
        "like": Search(like=hit.stored, a=index).link() if stored else "",
        "language": tag_of((stored and stored.language) or engine.language),
        "title": mark_words(text_of(title)[:MAX_TITLE]),
        "snippet": mark_words(text_of(snippet)),
        "page": page,
        "url": (url := url_of(described.metadata)),
        "name": name_of(engine, hit.id),
        "open": (file := open_link(engine, index, hit.id, url, described.metadata, page)),
        "place": _place(engine, search, hit.id, file[0] if file else ""),
        "copies": _copies(engine, index, search, hit.id),
        "chips": _chips(described.metadata, fields, engine.metadata),
        "why": reasons_of,
        "origin": "related" if _is_dense(explanation) else main_origin(reasons),
        "tables": _numbers(explanation, reasons, labels),
    }


def why(
    explanation: Explanation, reasons: Reasons, labels: Mapping[Origin, str] = LABELS
) -> list[tuple[str, list[str]]]:
    """The reasons of a score, by what they are: words of the query, and others that contribute enough."""
    if not any(each.terms for each in explanation.scored):
        return [("similar meaning" if explanation.score else COMMON, [])]
    total = sum(sum(words.values()) for words in reasons.values())
    named = {
        origin: [word for word, value in words.items() if origin == "word" or value >= MIN_SHARE * total]
        for origin, words in reasons.items()
    }
    shown = [(labels[origin], [*map(_shown, words[:REASON_WORDS])]) for origin, words in named.items() if words]
    return shown or [(COMMON, [])]


def _is_dense(explanation: Explanation) -> bool:
    """Whether most of a score, or of the fusion of several, is that of dense vectors."""
    best = max(explanation.parts, key=lambda part: part.share).explanation if explanation.parts else explanation
    return best.score != 0 and not best.terms


def _shown(word: str) -> str:
    """A word, or a piece of one without the tokenizer's notation."""
    return f"…{word.removeprefix('##')}" if word.startswith("##") else word


def _numbers(explanation: Explanation, reasons: Reasons, labels: Mapping[Origin, str]) -> list[dict[str, Any]]:
    """The parts of a hybrid's score, or the words that contribute most to one of terms, as tables."""
    values = [(value, word, labels[origin]) for origin, words in reasons.items() for word, value in words.items()]
    if not values or explanation.parts:
        return tables(explanation)[:1]
    best = sorted(values, reverse=True)[:SHOWN_WORDS]
    rows = [([_shown(word), label, f"{value:.2f}"], value / best[0][0]) for value, word, label in best]
    caption = f"{explanation.system}: score {explanation.score:.2f}"
    return [{"caption": caption, "header": ["word", "why", "adds"], "rows": rows}]


def url_of(metadata: Mapping[str, Value]) -> tuple[str, str] | None:
    """The address in the field `url`, and its host; None if it is not one of the web."""
    url = metadata.get("url")
    if not isinstance(url, str) or not url.lower().startswith(("https://", "http://")):
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    is_clear = "\\" not in parts.netloc  # which browsers take for a slash
    return (url, host) if host and HOST.fullmatch(host) and is_clear else None


def name_of(engine: Engine, id: str) -> str:
    """The id of a document or, of a file, its path."""
    return readable_path(id) if of_files(engine.metadata) else id


def _place(engine: Engine, search: Search, id: str, file: str) -> list[tuple[str, str]]:
    """The id of a document or, of a `file`, the parts of its path, with a link to what is found in each folder."""
    if not of_files(engine.metadata):
        return [(id, "")]
    *folders, name = name_of(engine, id).split("/")
    if "folder" not in engine.metadata:
        return [*((folder, "") for folder in folders), (name, file)]
    paths = accumulate(folders, lambda path, folder: f"{path}/{folder}")
    links = (search.link(filter=narrowed(search.filter, "folder", path)) for path in paths)
    return [*zip(folders, links, strict=True), (name, file)]


def _copies(engine: Engine, index: str, search: Search, id: str) -> list[tuple[str, str]]:
    """The paths of the copies of a file, with links to them."""
    copies = engine.files.copies_of(id) if engine.files else []
    return [(readable_path(copy), search.document_link(index, copy)) for copy in copies]


def _chips(metadata: Mapping[str, Value], fields: Sequence[str], kinds: Mapping[str, Kind]) -> list[tuple[str, str]]:
    """A few fields and their values, short ones."""
    if of_files(kinds):
        return _file_chips(metadata, fields, kinds)
    names = [*(name for name in fields if name in metadata), *(name for name in metadata if name not in fields)]
    shown = []
    for name in names:
        value = metadata[name]
        items = value if isinstance(value, list) else [readable(name, value, kinds)]
        text = ", ".join(items[:2]) + (f" +{len(items) - 2}" if items[2:] else "")
        if name != "url" and len(text) <= CHIP_LENGTH:
            shown.append((name, text))
    return shown[:CHIPS]


def _file_chips(
    metadata: Mapping[str, Value], fields: Sequence[str], kinds: Mapping[str, Kind]
) -> list[tuple[str, str]]:
    """What people look for files by."""
    shown = [("", str(metadata.get("type", "")).upper())]
    if isinstance(pages := metadata.get(PAGES), int):
        shown.append(("", f"{pages:,} page{'s' * (pages != 1)}"))
    shown += [("", readable(name, metadata[name], kinds)) for name in ("size", "modified") if name in metadata]
    if "language" in fields and "language" in metadata:
        shown.append(("language", str(metadata["language"])))
    return shown


def _links(search: Search, options: Sequence[Option]) -> list[dict[str, Any]]:
    """The options of a facet, with links that choose them or take them back."""
    return [
        {**option._asdict(), "href": search.link(filter=option.filter), "finer": _links(search, option.finer)}
        for option in options
        if len(option.filter) <= MAX_QUERY_LENGTH  # a longer one is refused
    ]


def _sorts(engine: Engine) -> list[tuple[str, str]]:
    """The orders of hits, as values of the parameter `sort` and labels."""
    labels = {"number": ("largest first", "smallest first"), "date": ("newest first", "oldest first")}
    sorts = [("", "best first")]
    for field, kind in engine.metadata.items():
        if kind in labels and not (field == PAGE and of_files(engine.metadata)):  # a passage's, not a file's
            sorts += [(sign + field, f"{field}, {label}") for sign, label in zip(("-", ""), labels[kind], strict=True)]
    return sorts


def shown_metadata(metadata: Mapping[str, Value], kinds: Mapping[str, Kind]) -> list[tuple[str, str]]:
    return [(name, readable(name, value, kinds)) for name, value in metadata.items()]


def tables(explanation: Explanation) -> list[dict[str, Any]]:
    """A table of the parts or the largest terms of each score, with a bar from 0 to 1 per row."""
    scores = [explanation, *(part.explanation for part in explanation.parts)]
    return [
        {
            "caption": f"{each.system}: score {each.score:.4f}",
            "header": table[0],
            "rows": list(zip(table[1:], each.bars(SHOWN_TERMS), strict=True)),
        }
        for each in scores
        if (table := each.table(SHOWN_TERMS))
    ]
