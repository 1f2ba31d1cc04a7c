"""The HTTP service: the REST API v1 of Anserini and Pyserini, explanations, health, metrics, and a page.

Every wrong request gets a 4xx, and every failure a 5xx, with {"error": reason}.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi import Query as Parameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field, StringConstraints
from starlette.exceptions import HTTPException

from cai_pyserini import __version__
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Value
from cai_pyserini.search.engine import BadFilter, Stored
from cai_pyserini.search.explanation import Explanation
from cai_pyserini.serve.guard import Guard, Metrics, require
from cai_pyserini.serve.page import MOST_SHOWN, STYLE, render
from cai_pyserini.serve.service import LONGEST_QUERY, MOST_HITS, Service

NOT_BLANK = r"[^\s\x1c-\x1f]"  # Python's str.strip, which decides what is an empty query, strips these four as well
Text = Annotated[
    str, Parameter(description="the text to search for", min_length=1, max_length=LONGEST_QUERY, pattern=NOT_BLANK)
]
Name = Annotated[str, StringConstraints(max_length=LONGEST_QUERY)]
HitCount = Annotated[int, Parameter(description="hits to return", ge=1, le=MOST_HITS)]
Filter = Annotated[Name, Parameter(description='only documents with such metadata: year>=2020 AND journal:"BMJ"')]
Sort = Annotated[Name, Parameter(description="order the best hits by a field; with - before it, largest first")]
Facets = Annotated[Name, Parameter(description="fields whose values are counted, separated by commas")]


class Css(Response):
    media_type = "text/css"


class Query(BaseModel):
    text: str


class Document(BaseModel):
    title: str
    contents: str
    metadata: dict[str, Value] = Field({}, exclude_if=lambda metadata: not metadata)


class Candidate(BaseModel):
    docid: str
    score: float
    rank: int
    doc: Document | str | None  # str: a document without a title, or with parse=false its JSON


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
        self._parse, self._length = parse, max_doc_length

    def of(self, stored: Stored) -> Document | str:
        """A stored document."""
        if not self._parse:
            return stored.raw
        contents = stored.contents[: self._length]
        if not (stored.title or stored.metadata):
            return contents
        return Document(title=stored.title, contents=contents, metadata=dict(stored.metadata))


Form = Annotated[DocumentForm, Depends()]


class Answer(BaseModel):
    api: Literal["v1"] = "v1"
    index: str


class SearchAnswer(Answer):
    query: Query
    candidates: list[Candidate]
    facets: dict[str, dict[str, int]] = Field({}, exclude_if=lambda facets: not facets)  # field -> value -> documents


class DocumentAnswer(Answer):
    docid: str
    doc: Document | str


class ExplainAnswer(Answer):
    query: Query
    explanation: Explanation


class Health(BaseModel):
    status: Literal["ok", "stuck"]
    version: str
    indexes: list[str]
    unanswered: int


class Readiness(BaseModel):
    status: Literal["ok", "not ready"]
    indexes: dict[str, str]  # "ok", or the kind of error


class Reloaded(BaseModel):
    status: Literal["ok"] = "ok"
    indexes: list[str]


class Wrong(BaseModel):
    """Why a request was refused or failed."""

    error: str


def create_app(service: Service, key: str | None = None, local: bool = False) -> Guard:
    """The application. With `key`, all routes need it but /health, /ready and /openapi.json; `local` is Guard's."""
    metrics = Metrics(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(service.work())
        yield
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        service.close()

    app = FastAPI(
        title="cai-pyserini",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={status: {"model": Wrong} for status in (400, 401, 403, 404, 429, 500, 503)},
        description="Search. Routes and answers under /v1 are those of Anserini's and Pyserini's REST API.",
    )
    locked = APIRouter(dependencies=[Depends(require(key))] if key else [])

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        what = "should not be blank" if first["type"] == "string_pattern_mismatch" else first["msg"]
        return _error(400, f"{first['loc'][-1]}: {what}")

    @app.exception_handler(BadFilter)
    async def not_understood(request: Request, error: BadFilter) -> Response:
        return _error(400, str(error))

    @app.exception_handler(TimeoutError)
    async def late(request: Request, error: TimeoutError) -> Response:
        return _error(503, "the request took too long; try again later", {"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:  # uvicorn logs the error
        return _error(500, "the server failed to answer; its log says why")

    @locked.get("/v1/{index}/search")
    async def search(
        index: Name,
        query: Text,
        form: Form,
        hits: HitCount = 10,
        filter: Filter = "",
        sort: Sort = "",
        facets: Facets = "",
    ) -> SearchAnswer:
        """The best documents for a query. Facets count all documents that have a word of it and that the filter lets
        through."""
        names = facets.split(",") if facets else []
        counts = await service.call(index, lambda engine: engine.facets(names, query, filter or None)) if names else {}
        candidates = [
            Candidate(docid=hit.id, score=hit.score, rank=hit.rank, doc=stored and form.of(stored))
            for hit, stored in await service.search(index, query, hits, filter or None, sort or None)
        ]
        return SearchAnswer(index=index, query=Query(text=query), candidates=candidates, facets=counts)

    @locked.get("/v1/{index}/doc/{docid:path}")
    async def document(index: Name, docid: Name, form: Form) -> DocumentAnswer:
        """A document."""
        stored: Stored | None = await service.call(index, lambda engine: engine.document(docid))
        if stored is None:
            raise HTTPException(404, f"no document {docid!r}, or {index} does not store documents")
        return DocumentAnswer(index=index, docid=docid, doc=form.of(stored))

    @locked.get("/v1/{index}/explain")
    async def explain(index: Name, query: Text, docid: Name) -> ExplainAnswer:
        """Why a document has its score: the terms that it shares with the query, or the parts of a hybrid."""
        explained = await service.call(index, lambda engine: engine.explain(query, [docid]))
        if docid not in explained:
            raise HTTPException(404, f"document {docid!r} has no score in {index}")
        return ExplainAnswer(index=index, query=Query(text=query), explanation=explained[docid])

    @app.get("/health", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """Liveness: 503 if the server should be restarted, since a search does not end."""
        response.status_code = 503 if service.stuck else 200
        status: Literal["ok", "stuck"] = "stuck" if service.stuck else "ok"
        indexes = list(service.engines)
        return Health(status=status, version=__version__, indexes=indexes, unanswered=service.unanswered)

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

    @locked.get("/", response_class=HTMLResponse)
    async def page(
        q: Annotated[Name, Parameter(description="the text to search for")] = "",
        a: Annotated[Name, Parameter(description="an index; any other text: the first")] = "",
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
    for operation in (of_method for path in app.openapi()["paths"].values() for of_method in path.values()):
        responses = operation["responses"]
        responses.pop("422", None)  # a wrong request is a 400 here
        for status in responses.keys() - {"200"}:  # errors are JSON, also of routes that return text
            responses[status]["content"] = {"application/json": responses[status]["content"].popitem()[1]}
    return Guard(app, metrics, local)


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)
