"""The HTTP service: the REST API v1 of Anserini and Pyserini, explanations, health, metrics, a page, and MCP.

Every wrong request gets a 4xx, and every failure a 5xx, with {"error": reason}.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import zip_longest
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi import Query as Parameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException

from cai_pyserini import __version__
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Value
from cai_pyserini.search.engine import BadFilter, Filters, Stored, without_operators
from cai_pyserini.search.explanation import Explanation
from cai_pyserini.serve.access_log import AccessLog, note
from cai_pyserini.serve.guard import HEADERS, ONLY_KNOWN, Guard, Metrics, key_declared
from cai_pyserini.serve.mcp import Forwarded, over_http
from cai_pyserini.serve.page import MOST_SHOWN, STYLE, render
from cai_pyserini.serve.service import BATCH, LONGEST_QUERY, MOST_HITS, Found, Service

OPEN = {"/health", "/ready", "/openapi.json"}  # need no key
NOT_BLANK = r"[^\s\x1c-\x1f]"  # Python's str.strip, which decides what is an empty query, strips these four as well
LONGEST_ID = 200  # characters of a query's id, and of a field's name
MOST_FACETS = 20
MOST_RERANKED = 100  # documents
QueryText = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_QUERY, pattern=NOT_BLANK)]
SEARCHED = Parameter(description="the text to search for", examples=["short fingers"])
Text = Annotated[QueryText, SEARCHED]
Name = Annotated[str, StringConstraints(max_length=LONGEST_QUERY)]
HitCount = Annotated[int, Parameter(description="hits to return", ge=1, le=MOST_HITS)]
RerankCount = Annotated[
    int, Parameter(description="documents to rerank by the cross-encoder, if there is time", ge=0, le=MOST_RERANKED)
]
FILTER = 'only documents with such metadata and words: year>=2020 AND NOT contents:"mouse model"'
SORT = "order the best hits by a field; with - before it, largest first"
SNIPPETS = "return of each document the passage with the words that matter most for its score"
Filter = Annotated[Name, Parameter(description=FILTER)]
Sort = Annotated[Name, Parameter(description=SORT)]
Facets = Annotated[Name, Parameter(description="fields whose values are counted, separated by commas")]
Snippets = Annotated[bool, Parameter(description=SNIPPETS)]
Syntax = Annotated[
    bool, Parameter(description='words of the query in "quotes" have to be next to each other, and a -word be missing')
]
Counts = dict[str, dict[str, int]]  # field -> value -> documents


DOCUMENT = {
    "title": "Short finger",
    "contents": "Short finger Abnormally short finger associated with developmental hypoplasia.",
}
CANDIDATE = {"docid": "HP:0009381", "score": 12.35, "rank": 1, "doc": DOCUMENT}
ANSWER = {"api": "v1", "index": "joint-splade-idf"}
EXPLANATION = {
    "system": "joint-splade-idf",
    "document": "HP:0009381",
    "rank": 1,
    "score": 4.2,
    "grade": None,
    "terms": [{"term": "short", "query": 1.5, "document": 2.8, "idf": None, "impact": 28, "contribution": 4.2}],
    "parts": [],
}
EXPLAINED = {**ANSWER, "query": {"text": "short fingers"}, "explanation": EXPLANATION}
UNLESS_NONE = Field(None, exclude_if=lambda value: value is None)
UNLESS_EMPTY: Any = Field({}, exclude_if=lambda value: not value)


def example(**values: Any) -> ConfigDict:
    """The configuration of a model with an example for its schema."""
    return ConfigDict(json_schema_extra={"examples": [values]})


class Css(Response):
    media_type = "text/css"


class Query(BaseModel):
    text: str


class Document(BaseModel):
    title: str
    contents: str
    metadata: dict[str, Value] = UNLESS_EMPTY


class Candidate(BaseModel):
    docid: str
    score: float
    rank: int
    doc: Document | str | None  # str: a document without a title, or with parse=false its JSON
    snippet: str | None = UNLESS_NONE


class DocumentForm:
    """The form of documents in a response: their fields without the id, their only field, or their JSON."""

    def __init__(
        self,
        parse: Annotated[bool, Parameter(description="parse the stored JSON; false: return it as a string")] = True,
        max_doc_length: Annotated[
            int | None,
            Parameter(description="characters of each document's contents to return; not with parse=false", ge=1),
        ] = None,
    ):
        if max_doc_length and not parse:
            raise HTTPException(400, "max_doc_length: not with parse=false, which returns the document as it is stored")
        self._parse, self.length = parse, max_doc_length

    def of(self, stored: Stored) -> Document | str:
        """A stored document."""
        if not self._parse:
            return stored.raw
        if not (stored.title or stored.metadata):
            return stored.contents
        return Document(title=stored.title, contents=stored.contents, metadata=dict(stored.metadata))

    def candidates(self, found: Found, snippets: Sequence[str] = ()) -> list[Candidate]:
        return [
            Candidate(docid=hit.id, score=hit.score, rank=hit.rank, doc=stored and self.of(stored), snippet=snippet)
            for (hit, stored), snippet in zip_longest(found, snippets)
        ]


Form = Annotated[DocumentForm, Depends()]


class Answer(BaseModel):
    api: Literal["v1"] = "v1"
    index: str


class SearchAnswer(Answer):
    model_config = example(**ANSWER, query={"text": "short fingers"}, candidates=[CANDIDATE])

    query: Query
    candidates: list[Candidate]
    facets: Counts = UNLESS_EMPTY
    degraded: str | None = UNLESS_NONE  # why this is not the whole answer, such as "dense timed out"
    reranked: int | None = UNLESS_NONE  # how many documents were reranked, which come first


class Topic(BaseModel):
    """A query of several."""

    model_config = ConfigDict(strict=True, extra="forbid")

    qid: Annotated[str, StringConstraints(max_length=LONGEST_ID)]
    text: QueryText


class SearchRequest(BaseModel):
    """Several queries, which together have at most as many characters and hits as one."""

    model_config = ConfigDict(strict=True, extra="forbid") | example(
        queries=[{"qid": "q1", "text": "short fingers"}, {"qid": "q2", "text": "hearing loss"}], hits=10
    )

    queries: list[Topic] = Field(min_length=1, max_length=BATCH)
    hits: int = Field(10, description="hits to return for each query", ge=1, le=MOST_HITS)
    filter: str = Field("", description=FILTER, max_length=LONGEST_QUERY)
    sort: str = Field("", description=SORT, max_length=LONGEST_ID)
    facets: list[Annotated[str, StringConstraints(max_length=LONGEST_ID)]] = Field(
        [], description="fields whose values are counted", max_length=MOST_FACETS
    )
    snippets: bool = Field(False, description=SNIPPETS)

    def require_limits(self) -> None:
        """Raise HTTPException for queries that cost more than one may, and for two of one id."""
        if (characters := sum(len(topic.text) for topic in self.queries)) > LONGEST_QUERY:
            raise HTTPException(400, f"queries: {characters} characters in all; {LONGEST_QUERY} are allowed")
        if (hits := self.hits * len(self.queries)) > MOST_HITS:
            raise HTTPException(400, f"hits: {hits} for all queries; {MOST_HITS} are allowed")
        require_few(hits, self.snippets)
        if len({topic.qid for topic in self.queries}) < len(self.queries):
            raise HTTPException(400, "queries: two have the same qid")


def require_few(hits: int, snippets: bool) -> None:
    """Raise HTTPException for more snippets than one request may have."""
    if snippets and hits > MOST_SHOWN:
        raise HTTPException(400, f"snippets: with {hits} hits; {MOST_SHOWN} are allowed")


class TopicAnswer(BaseModel):
    qid: str
    candidates: list[Candidate]
    facets: Counts = UNLESS_EMPTY


class SearchAnswers(Answer):
    model_config = example(**ANSWER, results=[{"qid": "q1", "candidates": [CANDIDATE]}])

    results: list[TopicAnswer]  # in the order of the queries
    degraded: str | None = UNLESS_NONE  # as in SearchAnswer


class DocumentAnswer(Answer):
    model_config = example(**ANSWER, docid="HP:0009381", doc=DOCUMENT)

    docid: str
    doc: Document | str


class ExplainAnswer(Answer):
    query: Query
    explanation: Explanation


class SuggestAnswer(Answer):
    model_config = example(**ANSWER, query={"text": "shrot fingers"}, suggestion="short fingers")

    query: Query
    suggestion: str | None  # None: every word is in a document, or has none that is similar


class Health(BaseModel):
    model_config = example(
        status="ok",
        version=__version__,
        default="joint-splade-idf",
        indexes=["joint-splade-idf", "bm25"],
        unanswered=0,
    )

    status: Literal["ok", "stuck"]
    version: str
    default: str  # the index that the page and assistants use if they are told no other
    indexes: list[str]
    unanswered: int


class Readiness(BaseModel):
    model_config = example(status="ok", indexes={"bm25": "ok", "joint-splade-idf": "ok"})

    status: Literal["ok", "not ready"]
    indexes: dict[str, str]  # "ok", or the kind of error


class Reloaded(BaseModel):
    model_config = example(status="ok", indexes=["bm25", "joint-splade-idf"])

    status: Literal["ok"] = "ok"
    indexes: list[str]


class Wrong(BaseModel):
    """Why a request was refused or failed."""

    model_config = example(error="hits: Input should be greater than or equal to 1")

    error: str


def create_app(
    service: Service,
    key: str | None = None,
    local: bool = False,
    log: AccessLog | None = None,
    public_url: str | None = None,
    origins: Sequence[str] = (),
) -> Guard:
    """The application. With `key`, all routes need it but those in OPEN; the other parameters are Guard's."""
    metrics = Metrics(service)
    mcp = over_http(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running(), mcp.run():
            yield

    app = FastAPI(
        title="cai-pyserini",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # whose Location names the host that a proxy asks
        servers=[{"url": public_url}] if public_url else None,
        generate_unique_id_function=lambda route: route.name,  # so that generated clients have short names
        responses={status: {"model": Wrong} for status in (400, 401, 403, 404, 408, 411, 413, 429, 500, 503)},
        description="Search. Routes and answers under /v1 are those of Anserini's and Pyserini's REST API.",
    )
    locked = APIRouter(dependencies=[*(key_declared() if key else []), ONLY_KNOWN])

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        headers = error.headers
        if error.status_code == 405:  # Starlette names the methods of one route, of several with the same path
            methods = app.openapi()["paths"].get(getattr(request.scope.get("route"), "path_format", ""), ())
            allowed = [other for method in methods for other in (["get", "head"] if method == "get" else [method])]
            headers = {"Allow": ", ".join(map(str.upper, allowed))} if allowed else headers
        return _error(error.status_code, str(error.detail), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        what = "should not be blank" if first["type"] == "string_pattern_mismatch" else first["msg"]
        return _error(400, f"{'.'.join(map(str, first['loc'][1:])) or 'body'}: {what}")

    @app.exception_handler(BadFilter)
    async def not_understood(request: Request, error: BadFilter) -> Response:
        return _error(400, str(error))

    @app.exception_handler(TimeoutError)
    async def late(request: Request, error: TimeoutError) -> Response:
        return _error(503, "the request took too long; try again later", {"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:  # uvicorn logs the error
        return _error(500, "the server failed to answer; its log says why")

    async def additions(
        index: str,
        texts: Sequence[str],
        found: Sequence[Found],
        facets: Sequence[str],
        filter: Filters,
        snippets: bool,
    ) -> tuple[list[Counts], list[list[str]]]:
        """The facets of each text, and the snippets of its hits; empty if they are not asked for."""
        counts = await service.facets(index, facets, texts, filter) if facets else [{} for _ in texts]
        shown = await service.snippets(index, texts, found) if snippets else [[] for _ in texts]
        return counts, shown

    @locked.get("/v1/{index}/search")
    async def search(
        index: Name,
        form: Form,
        query: Annotated[QueryText | None, SEARCHED] = None,
        like: Annotated[Name | None, Parameter(description="instead: a document, whose text is the query")] = None,
        hits: HitCount = 10,
        rerank: RerankCount = 0,
        filter: Filter = "",
        sort: Sort = "",
        facets: Facets = "",
        syntax: Syntax = False,
        snippets: Snippets = False,
    ) -> SearchAnswer:
        """The best documents for a query, or the others that are most like one. Facets count all documents that have a
        word of the query and that the filter lets through."""
        require_few(hits, snippets)
        filters: Filters = filter or None
        if like is not None:
            if query is not None or rerank or syntax:
                raise HTTPException(400, "like: not with query, rerank or syntax")
            text, searched = await service.similar(index, like, hits, filters, sort or None, form.length)
        elif query is not None:
            if sort and rerank:
                raise HTTPException(400, "sort: not with rerank")
            text, filters = without_operators(query, filter) if syntax else (query, filters)
            searched = await service.search_all(index, [text], hits, rerank, filters, sort or None, form.length)
            note(texts=[query])
        else:
            raise HTTPException(400, "query: Field required")
        names = facets.split(",") if facets else []
        counts, shown = await additions(index, [text], searched.found, names, filters, snippets)
        return SearchAnswer(
            index=index,
            query=Query(text=text if query is None else query),
            candidates=form.candidates(searched.found[0], shown[0]),
            degraded=searched.degraded,
            reranked=searched.reranked,
            facets=counts[0],
        )

    @locked.post("/v1/{index}/search")
    async def search_all(index: Name, asked: SearchRequest, form: Form) -> SearchAnswers:
        """The best documents for each of several queries."""
        asked.require_limits()
        texts, filter = [topic.text for topic in asked.queries], asked.filter or None
        searched = await service.search_all(index, texts, asked.hits, 0, filter, asked.sort or None, form.length)
        added = await additions(index, texts, searched.found, asked.facets, filter, asked.snippets)
        results = [
            TopicAnswer(qid=topic.qid, candidates=form.candidates(found, shown), facets=counts)
            for topic, found, counts, shown in zip(asked.queries, searched.found, *added, strict=True)
        ]
        return SearchAnswers(index=index, results=results, degraded=searched.degraded)

    @locked.get("/v1/{index}/doc/{docid:path}")
    async def document(index: Name, docid: Name, form: Form) -> DocumentAnswer:
        """A document."""
        stored = await service.document(index, docid, form.length)
        return DocumentAnswer(index=index, docid=docid, doc=form.of(stored))

    @locked.get("/v1/{index}/explain")
    async def explain(index: Name, query: Text, docid: Name) -> ExplainAnswer:
        """Why a document has its score: the terms that it shares with the query, or the parts of a hybrid."""
        note(texts=[query])
        explained = await service.call(index, lambda engine: engine.explain(query, [docid]))
        if docid not in explained:
            raise HTTPException(404, f"document {docid!r} has no score in {index}")
        return ExplainAnswer(index=index, query=Query(text=query), explanation=explained[docid])

    @locked.get("/v1/{index}/suggest")
    async def suggest(index: Name, query: Text) -> SuggestAnswer:
        """What was probably meant by a query with words that no document has."""
        note(texts=[query])
        suggestion = await service.call(index, lambda engine: engine.suggestion(query))
        return SuggestAnswer(index=index, query=Query(text=query), suggestion=suggestion)

    @app.get("/health", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """Liveness: 503 if the server should be restarted, since a search does not end."""
        response.status_code = 503 if service.stuck else 200
        status: Literal["ok", "stuck"] = "stuck" if service.stuck else "ok"
        indexes = {"default": service.default, "indexes": list(service.engines)}
        return Health(status=status, version=__version__, **indexes, unanswered=service.unanswered)

    @app.get("/ready", responses={503: {"model": Readiness}})
    async def ready(response: Response) -> Readiness:
        """Readiness: a search of every index; 503 if one fails."""
        indexes = await service.probe()
        ok = set(indexes.values()) == {"ok"}
        response.status_code = 200 if ok else 503
        return Readiness(status="ok" if ok else "not ready", indexes=indexes)

    @locked.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Counters and latencies in the format of Prometheus."""
        return Response(metrics.text(), media_type=metrics.MEDIA_TYPE)

    @locked.post("/reload")
    async def reload() -> Reloaded:
        """Reopen the indexes, as they are on disk now; meanwhile the old ones answer."""
        try:
            await service.reload()
        except CaiError as error:
            raise HTTPException(503, f"the indexes could not be opened, the old ones go on: {error}") from None
        return Reloaded(indexes=list(service.engines))

    @locked.post("/mcp", include_in_schema=False)
    async def tools() -> Response:
        """The tools of assistants."""
        return Forwarded(mcp.handle_request)

    @locked.get("/", response_class=HTMLResponse)
    async def page(
        q: Annotated[Name, Parameter(description="the text to search for")] = "",
        a: Annotated[Name, Parameter(description="an index; any other text: the default")] = "",
        b: Annotated[Name, Parameter(description="an index to compare with; any other text: none")] = "",
        hits: Annotated[int, Parameter(description="hits to show", ge=1, le=MOST_SHOWN)] = 10,
        filter: Filter = "",
    ) -> str:
        """The page for people."""
        return await render(service, q.strip(), a, b, hits, filter.strip())

    @locked.get("/style.css", response_class=Css)
    async def style() -> str:
        """The page's style sheet."""
        return STYLE

    app.include_router(locked)
    app.openapi()["components"]["schemas"]["ExplainAnswer"]["examples"] = [EXPLAINED]  # FastAPI leaves out what is None
    for unused in ("HTTPValidationError", "ValidationError"):  # of the 422s that are removed below
        del app.openapi()["components"]["schemas"][unused]
    for operation in (of_method for path in app.openapi()["paths"].values() for of_method in path.values()):
        responses = operation["responses"]
        responses.pop("422", None)  # a wrong request is a 400 here
        for status in responses.keys() - {"200"}:  # errors are JSON, also of routes that return text
            responses[status]["content"] = {"application/json": responses[status]["content"].popitem()[1]}
    return Guard(app, metrics, local, log, HEADERS, key, OPEN, public_url, origins, service.sending)


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)
