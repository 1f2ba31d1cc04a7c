"""The HTTP service: the REST API v1 of Anserini and Pyserini, explanations, health, metrics, a page, and MCP.

Wrong requests get a 4xx and failures a 5xx, with {"error": reason}.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import zip_longest
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi import Query as Parameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Value
from cai_pyserini.core.version import VERSION
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.search import Snippet
from cai_pyserini.indexes.filters import BadFilter, Filters, without_operators
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.service.access_log import AccessLog, note
from cai_pyserini.service.document_page import MAX_PARTS, render_document
from cai_pyserini.service.guard import CHECK_PARAMETERS, EVERYBODY, KEY_SCHEMES, Access, Guard, Metrics, error_response
from cai_pyserini.service.mcp import ForwardedResponse, over_http
from cai_pyserini.service.page import DEFAULT_HITS, MAX_SHOWN_HITS, SCRIPT, STYLE, Search, render
from cai_pyserini.service.queue import BATCH, MAX_HITS, MAX_QUERY_LENGTH, Hits, Service

PUBLIC_ROUTES = {"/health", "/ready", "/openapi.json"}  # need no key
NOT_BLANK = r"[^\s\x1c-\x1f]"  # as in str.strip, these four characters are white space, too
MAX_ID_LENGTH = 200  # characters of query ids and field names
MAX_FACETS = 20
MAX_RERANKED = 100
MAX_REDIRECT = 2000  # characters of an address; nginx refuses 4 KiB of headers in an answer
QueryText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_LENGTH, pattern=NOT_BLANK)]
QUERY_PARAMETER = Parameter(description="the text to search for", examples=["short fingers"])
Text = Annotated[QueryText, QUERY_PARAMETER]
Name = Annotated[str, StringConstraints(max_length=MAX_QUERY_LENGTH)]
HitCount = Annotated[int, Parameter(description="hits to return", ge=1, le=MAX_HITS)]
RerankCount = Annotated[int, Parameter(description="documents to rerank, if there is time", ge=0, le=MAX_RERANKED)]
FILTER = 'only documents with such metadata and words: year>=2020 AND NOT contents:"mouse model"'
SORT = "order the best hits by a field; with - before it, largest first"
SNIPPETS = "return, for each document, the passage that contributes most to its score"
Filter = Annotated[Name, Parameter(description=FILTER)]
Sort = Annotated[Name, Parameter(description=SORT)]
Facets = Annotated[Name, Parameter(description="fields whose values are counted, separated by commas")]
Snippets = Annotated[bool, Parameter(description=SNIPPETS)]
Syntax = Annotated[bool, Parameter(description='operators: words in "quotes" are adjacent, a -word is missing')]
Counts = dict[str, dict[str, int]]  # field -> value -> documents

DOCUMENT = {
    "title": "Short finger",
    "contents": "Short finger Abnormally short finger associated with developmental hypoplasia.",
}
CANDIDATE = {"docid": "HP:0009381", "score": 12.35, "rank": 1, "doc": DOCUMENT}
ANSWER = {"api": "v1", "index": "joint"}
EXPLANATION = {
    "system": "joint",
    "document": "HP:0009381",
    "rank": 1,
    "score": 4.2,
    "grade": None,
    "terms": [{"term": "short", "query": 1.5, "document": 2.8, "idf": None, "impact": 28, "contribution": 4.2}],
    "parts": [],
}
EXPLAINED = {**ANSWER, "query": {"text": "short fingers"}, "explanation": EXPLANATION}
OMIT_NONE = Field(None, exclude_if=lambda value: value is None)
OMIT_EMPTY: Any = Field({}, exclude_if=lambda value: not value)


def example(**values: Any) -> ConfigDict:
    """The configuration of a model whose schema has an example."""
    return ConfigDict(json_schema_extra={"examples": [values]})


class Css(Response):
    media_type = "text/css"


class JavaScript(Response):
    media_type = "text/javascript"


class Query(BaseModel):
    text: str


class Document(BaseModel):
    title: str
    contents: str
    metadata: dict[str, Value] = OMIT_EMPTY


class Candidate(BaseModel):
    docid: str
    score: float
    rank: int
    doc: Document | str | None  # str: a document without a title, or with parse=false its JSON
    snippet: str | None = OMIT_NONE
    page: int | None = OMIT_NONE  # of the snippet


class DocumentForm:
    """How a response shows documents: as title, contents and metadata, as a string if they have only contents, or as
    their stored JSON."""

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
        if not self._parse:
            return stored.raw
        if not (stored.title or stored.metadata):
            return stored.contents
        return Document(title=stored.title, contents=stored.contents, metadata=dict(stored.metadata))

    def candidates(self, hits: Hits, snippets: Sequence[Snippet] = ()) -> list[Candidate]:
        return [
            Candidate(
                docid=hit.id,
                score=hit.score,
                rank=hit.rank,
                doc=stored and self.of(stored),
                snippet=snippet and snippet.text,
                page=snippet and snippet.page,
            )
            for (hit, stored), snippet in zip_longest(hits, snippets)
        ]


Form = Annotated[DocumentForm, Depends()]


async def page_search(
    q: Annotated[Name, Parameter(description="the text to search for")] = "",
    a: Annotated[Name, Parameter(description="an index; for unknown names, the default")] = "",
    b: Annotated[Name, Parameter(description="an index to compare with; for unknown names, none")] = "",
    hits: Annotated[int, Parameter(description="hits to show", ge=1, le=MAX_SHOWN_HITS)] = DEFAULT_HITS,
    start: Annotated[int, Parameter(description="hits to skip", ge=0, lt=MAX_HITS)] = 0,
    filter: Filter = "",
    sort: Sort = "",
    like: Annotated[Name, Parameter(description="without q: a document, to find similar ones")] = "",
) -> Search:
    """What the page is asked for."""
    q = q.strip()
    return Search(q, "" if q else like, a, b, hits, start, filter.strip(), sort)


PageSearch = Annotated[Search, Depends(page_search)]


class Answer(BaseModel):
    api: Literal["v1"] = "v1"
    index: str


class SearchAnswer(Answer):
    model_config = example(**ANSWER, query={"text": "short fingers"}, candidates=[CANDIDATE])

    query: Query
    candidates: list[Candidate]
    facets: Counts = OMIT_EMPTY
    degraded: str | None = OMIT_NONE  # why the answer is partial, such as "dense timed out"
    reranked: int | None = OMIT_NONE  # the number of reranked documents, which come first


class Topic(BaseModel):
    """One of several queries."""

    model_config = ConfigDict(strict=True, extra="forbid")

    qid: Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH)]
    text: QueryText


class SearchRequest(BaseModel):
    """Several queries, with the same limits on characters and hits in total as a single one."""

    model_config = ConfigDict(strict=True, extra="forbid") | example(
        queries=[{"qid": "q1", "text": "short fingers"}, {"qid": "q2", "text": "hearing loss"}], hits=10
    )

    queries: list[Topic] = Field(min_length=1, max_length=BATCH)
    hits: int = Field(10, description="hits to return for each query", ge=1, le=MAX_HITS)
    filter: str = Field("", description=FILTER, max_length=MAX_QUERY_LENGTH)
    sort: str = Field("", description=SORT, max_length=MAX_ID_LENGTH)
    facets: list[Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH)]] = Field(
        [], description="fields whose values are counted", max_length=MAX_FACETS
    )
    snippets: bool = Field(False, description=SNIPPETS)

    def check_limits(self) -> None:
        """Raise HTTPException if the queries together exceed the limits, or two have the same id."""
        if (characters := sum(len(topic.text) for topic in self.queries)) > MAX_QUERY_LENGTH:
            raise HTTPException(400, f"queries: {characters} characters in all; {MAX_QUERY_LENGTH} are allowed")
        if (hits := self.hits * len(self.queries)) > MAX_HITS:
            raise HTTPException(400, f"hits: {hits} for all queries; {MAX_HITS} are allowed")
        check_snippets(hits, self.snippets)
        if len({topic.qid for topic in self.queries}) < len(self.queries):
            raise HTTPException(400, "queries: two have the same qid")


def check_snippets(hits: int, snippets: bool) -> None:
    """Raise HTTPException for too many snippets."""
    if snippets and hits > MAX_SHOWN_HITS:
        raise HTTPException(400, f"snippets: with {hits} hits; {MAX_SHOWN_HITS} are allowed")


class TopicAnswer(BaseModel):
    qid: str
    candidates: list[Candidate]
    facets: Counts = OMIT_EMPTY


class SearchAnswers(Answer):
    model_config = example(**ANSWER, results=[{"qid": "q1", "candidates": [CANDIDATE]}])

    results: list[TopicAnswer]  # in the order of the queries
    degraded: str | None = OMIT_NONE  # as in SearchAnswer


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
    suggestion: str | None  # None: every word is in a document, or nothing is similar


class Health(BaseModel):
    model_config = example(
        status="ok",
        version=VERSION,
        default="joint",
        indexes=["joint", "bm25"],
        unanswered=0,
    )

    status: Literal["ok", "stuck"]
    version: str
    default: str  # the index that the page and assistants use by default
    indexes: list[str]
    unanswered: int


class Readiness(BaseModel):
    model_config = example(status="ok", indexes={"bm25": "ok", "joint": "ok"})

    status: Literal["ok", "not ready"]
    indexes: dict[str, str]  # "ok" or the type of error


class Reloaded(BaseModel):
    model_config = example(status="ok", indexes=["bm25", "joint"])

    status: Literal["ok"] = "ok"
    indexes: list[str]


class Wrong(BaseModel):
    """Why a request was refused or failed."""

    model_config = example(error="hits: Input should be greater than or equal to 1")

    error: str


def create_app(service: Service, access: Access = EVERYBODY, log: AccessLog | None = None) -> Guard:
    """The application. With a key, all routes except PUBLIC_ROUTES need it."""
    metrics = Metrics(service)
    mcp = over_http(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running(), mcp.run():
            yield

    app = FastAPI(
        title="cai-pyserini",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy, the redirect would name the wrong host
        servers=[{"url": access.public_url}] if access.public_url else None,
        generate_unique_id_function=lambda route: route.name,  # short names in generated clients
        responses={status: {"model": Wrong} for status in (400, 401, 403, 404, 408, 411, 413, 429, 500, 503)},
        description="Search. Routes and answers under /v1 are those of Anserini's and Pyserini's REST API.",
    )
    locked = APIRouter(dependencies=[*(KEY_SCHEMES if access.key else ()), CHECK_PARAMETERS])

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        headers = error.headers
        if error.status_code == 405:  # Starlette names the methods of only one of the routes with this path
            methods = app.openapi()["paths"].get(getattr(request.scope.get("route"), "path_format", ""), ())
            allowed = [other for method in methods for other in (["get", "head"] if method == "get" else [method])]
            headers = {"Allow": ", ".join(map(str.upper, allowed))} if allowed else headers
        return error_response(error.status_code, str(error.detail), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        what = "should not be blank" if first["type"] == "string_pattern_mismatch" else first["msg"]
        return error_response(400, f"{'.'.join(map(str, first['loc'][1:])) or 'body'}: {what}")

    @app.exception_handler(BadFilter)
    async def not_understood(request: Request, error: BadFilter) -> Response:
        return error_response(400, str(error))

    @app.exception_handler(TimeoutError)
    async def late(request: Request, error: TimeoutError) -> Response:
        return error_response(503, "the request took too long; try again later", {"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:  # uvicorn logs the error
        return error_response(500, "the server failed to answer; its log says why")

    async def results(
        index: str,
        form: DocumentForm,
        texts: Sequence[str],
        rankings: Sequence[Hits],
        facets: Sequence[str],
        filter: Filters,
        snippets: bool,
    ) -> list[dict[str, Any]]:
        """The candidates and facets of each query, the facets and snippets if requested."""
        counts: list[Counts] = [{} for _ in texts]
        if facets:
            counts = await service.call(index, lambda engine: (engine.facets(facets, text, filter) for text in texts))
        shown = await service.snippets(index, texts, rankings) if snippets else [[] for _ in texts]
        return [
            {"candidates": form.candidates(hits, of_hits), "facets": of_query}
            for hits, of_hits, of_query in zip(rankings, shown, counts, strict=True)
        ]

    @locked.get("/v1/{index}/search")
    async def search(
        index: Name,
        form: Form,
        query: Annotated[QueryText | None, QUERY_PARAMETER] = None,
        like: Annotated[Name | None, Parameter(description="instead: a document, whose text is the query")] = None,
        hits: HitCount = 10,
        rerank: RerankCount = 0,
        filter: Filter = "",
        sort: Sort = "",
        facets: Facets = "",
        syntax: Syntax = False,
        snippets: Snippets = False,
    ) -> SearchAnswer:
        """The best documents for a query, or the documents most similar to one. Facets count all documents that contain
        a word of the query and pass the filter."""
        check_snippets(hits, snippets)
        filters: Filters = filter or None
        if like is not None:
            if query is not None or rerank or syntax:
                raise HTTPException(400, "like: not with query, rerank or syntax")
            text, answer = await service.similar(index, like, hits, filters, sort or None, form.length)
        elif query is not None:
            if sort and rerank:
                raise HTTPException(400, "sort: not with rerank")
            text, filters = without_operators(query, filter) if syntax else (query, filters)
            answer = await service.search_all(index, [text], hits, rerank, filters, sort or None, form.length)
            note(texts=[query])
        else:
            raise HTTPException(400, "query: Field required")
        names = facets.split(",") if facets else []
        (found,) = await results(index, form, [text], answer.rankings, names, filters, snippets)
        shown = Query(text=text if query is None else query)
        return SearchAnswer(index=index, query=shown, degraded=answer.degraded, reranked=answer.reranked, **found)

    @locked.post("/v1/{index}/search")
    async def search_all(index: Name, body: SearchRequest, form: Form) -> SearchAnswers:
        """The best documents for each of several queries."""
        body.check_limits()
        texts, filter = [topic.text for topic in body.queries], body.filter or None
        answer = await service.search_all(index, texts, body.hits, 0, filter, body.sort or None, form.length)
        found = await results(index, form, texts, answer.rankings, body.facets, filter, body.snippets)
        topics = [TopicAnswer(qid=topic.qid, **each) for topic, each in zip(body.queries, found, strict=True)]
        return SearchAnswers(index=index, results=topics, degraded=answer.degraded)

    @locked.get("/v1/{index}/doc/{docid:path}")
    async def document(index: Name, docid: Name, form: Form) -> DocumentAnswer:
        """A document."""
        stored = await service.document(index, docid, form.length)
        return DocumentAnswer(index=index, docid=docid, doc=form.of(stored))

    @locked.get("/v1/{index}/explain")
    async def explain(index: Name, query: Text, docid: Name) -> ExplainAnswer:
        """Why a document has its score: the terms that it shares with the query, or the parts of a hybrid."""
        note(texts=[query])
        explanations = await service.call(index, lambda engine: engine.explain(query, [docid]))
        if docid not in explanations:
            raise HTTPException(404, f"document {docid!r} has no score in {index}")
        return ExplainAnswer(index=index, query=Query(text=query), explanation=explanations[docid])

    @locked.get("/v1/{index}/suggest")
    async def suggest(index: Name, query: Text) -> SuggestAnswer:
        """A correction of a query with words that are in no document."""
        note(texts=[query])
        suggestion = await service.call(index, lambda engine: engine.suggestion(query))
        return SuggestAnswer(index=index, query=Query(text=query), suggestion=suggestion)

    @app.get("/health", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """Liveness: 503 if a search does not end, so that the server should be restarted."""
        response.status_code = 503 if service.stuck else 200
        status: Literal["ok", "stuck"] = "stuck" if service.stuck else "ok"
        indexes = {"default": service.default, "indexes": list(service.engines)}
        return Health(status=status, version=VERSION, **indexes, unanswered=service.unanswered)

    @app.get("/ready", responses={503: {"model": Readiness}})
    async def ready(response: Response) -> Readiness:
        """Readiness: a search of every index; 503 if one fails."""
        indexes = await service.probe()
        ok = set(indexes.values()) == {"ok"}
        response.status_code = 200 if ok else 503
        return Readiness(status="ok" if ok else "not ready", indexes=indexes)

    @locked.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Counters and latencies in Prometheus' format."""
        return Response(metrics.text(), media_type=metrics.MEDIA_TYPE)

    @locked.post("/reload")
    async def reload() -> Reloaded:
        """Reopen the indexes on disk; the old ones serve until the new ones are open."""
        try:
            await service.reload()
        except CaiError as error:
            raise HTTPException(503, f"the indexes could not be opened, the old ones stay: {error}") from None
        return Reloaded(indexes=list(service.engines))

    @locked.post("/mcp", include_in_schema=False)
    async def tools() -> Response:
        """The MCP tools."""
        return ForwardedResponse(mcp.handle_request)

    @locked.get("/", response_class=HTMLResponse, responses={303: {"description": "without the empty parameters"}})
    async def page(request: Request, search: PageSearch) -> Response:
        """The page for people."""
        address = search.link(start=search.start)
        if "" in request.query_params.values() and len(address) <= MAX_REDIRECT:  # the form sends empty fields
            return RedirectResponse(address, 303)
        return HTMLResponse(await render(service, search))

    @locked.get("/document", response_class=HTMLResponse)
    async def document_page(
        index: Name,
        id: Annotated[Name, Parameter(description="a document, or a passage of one")],
        search: PageSearch,
        part: Annotated[
            int | None,
            Parameter(description="of a long text; by default, that of its best passage", ge=1, le=MAX_PARTS),
        ] = None,
    ) -> str:
        """A document for people, with the words of the query marked. The other parameters are those of the search to go
        back to."""
        return await render_document(service, index, id, search, part)

    @locked.get("/style.css", response_class=Css)
    async def style() -> str:
        """The page's style sheet."""
        return STYLE

    @locked.get("/script.js", response_class=JavaScript)
    async def script() -> str:
        """The page's keys."""
        return SCRIPT

    app.include_router(locked)
    app.openapi()["components"]["schemas"]["ExplainAnswer"]["examples"] = [EXPLAINED]  # FastAPI leaves out what is None
    for unused in ("HTTPValidationError", "ValidationError"):  # of the 422s that are removed below
        del app.openapi()["components"]["schemas"][unused]
    for path in app.openapi()["paths"].values():
        for operation in path.values():
            responses = operation["responses"]
            responses.pop("422", None)  # wrong requests get a 400
            for status in responses.keys() - {"200", "303"}:  # errors are JSON, even of routes that return text
                responses[status]["content"] = {"application/json": responses[status]["content"].popitem()[1]}
    return Guard(app, access, metrics, log, open_paths=PUBLIC_ROUTES, sending=service.sending)
