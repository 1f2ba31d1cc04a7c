"""The HTTP service: the REST API v1 of Anserini and Pyserini, explanations, health, metrics, and a page.

Every wrong request gets a 4xx with {"error": reason}.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from cai_pyserini import __version__
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.lucene_index import Stored
from cai_pyserini.index.raw import raw_json
from cai_pyserini.serve.guard import Guard
from cai_pyserini.serve.metrics import Metrics
from cai_pyserini.serve.page import STYLE, Page, render
from cai_pyserini.serve.service import Busy, Service, UnknownIndex

LONGEST_QUERY = 10_000  # characters
MOST_HITS = 1000

Text = Annotated[
    str, Query(description="the text to search for", min_length=1, max_length=LONGEST_QUERY, pattern=r"\S")
]
HitCount = Annotated[int, Query(description="hits to return", ge=1, le=MOST_HITS)]
Parse = Annotated[bool, Query(description="parse the stored JSON; false: return it as a string")]
Length = Annotated[int | None, Query(description="characters of each document's contents to return", ge=1)]


class Wrong(BaseModel):
    """Why a request was refused."""

    error: str


def create_app(service: Service, key: str | None = None, hosts: Collection[str] = ()) -> FastAPI:
    """The application; `key` and `hosts` are those of Guard."""
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
        responses={status: {"model": Wrong} for status in (400, 401, 403, 404, 429, 503)},
        description="Search. Routes and answers under /v1 are those of Anserini's and Pyserini's REST API.",
    )

    app.add_middleware(Guard, metrics=metrics, key=key, hosts=hosts)

    @app.exception_handler(UnknownIndex)
    async def unknown(request: Request, error: UnknownIndex) -> Response:
        return _error(404, f"no index {error}; this server has {', '.join(service.engines)}")

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> Response:
        return _error(429, "too many requests wait; try again soon", {"Retry-After": "1"})

    @app.exception_handler(TimeoutError)
    async def late(request: Request, error: TimeoutError) -> Response:
        return _error(503, "the request took too long; try again later", {"Retry-After": "1"})

    @app.exception_handler(CaiError)
    async def failed(request: Request, error: CaiError) -> Response:
        return _error(500, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        what = "should not be blank" if first["type"] == "string_pattern_mismatch" else first["msg"]
        return _error(400, f"{first['loc'][-1]}: {what}")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, str(error.detail), error.headers)

    @app.get("/v1/{index}/search")
    async def search(
        index: str, query: Text, hits: HitCount = 10, parse: Parse = True, max_doc_length: Length = None
    ) -> dict[str, Any]:
        """The best documents for a query."""
        found = await service.search(index, query, hits)
        candidates = [
            {"docid": hit.id, "score": hit.score, "rank": hit.rank, "doc": _document(stored, parse, max_doc_length)}
            for hit, stored in found
        ]
        return {"api": "v1", "index": index, "query": {"text": query}, "candidates": candidates}

    @app.get("/v1/{index}/doc/{docid:path}")
    async def document(index: str, docid: str, parse: Parse = True, max_doc_length: Length = None) -> dict[str, Any]:
        """A document."""
        stored = await service.document(index, docid)
        if stored is None:
            raise HTTPException(404, f"no document {docid!r}, or {index} does not store documents")
        return {"api": "v1", "index": index, "docid": docid, "doc": _document(stored, parse, max_doc_length)}

    @app.get("/v1/{index}/explain")
    async def explain(index: str, query: Text, docid: str) -> dict[str, Any]:
        """Why a document has its score: the terms that it shares with the query, or the parts of a hybrid."""
        explanation = await service.explain(index, query, docid)
        if explanation is None:
            raise HTTPException(404, f"document {docid!r} has no score in {index}")
        return {"api": "v1", "index": index, "query": {"text": query}, "explanation": explanation}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the server works, and what it serves."""
        return {
            "status": "ok",
            "version": __version__,
            "indexes": list(service.engines),
            "unanswered": service.unanswered,
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Counters and latencies in the format of Prometheus."""
        return Response(metrics.text(), media_type=metrics.MEDIA_TYPE)

    @app.post("/reload")
    async def reload() -> dict[str, Any]:
        """Open the indexes again, as they are on disk now; meanwhile the old ones answer."""
        try:
            await service.reload()
        except CaiError as error:
            raise HTTPException(503, f"the indexes could not be opened, the old ones go on: {error}") from None
        return {"status": "ok", "indexes": list(service.engines)}

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page(q: str = "", a: str = "", b: str = "", hits: HitCount = 10) -> str:
        return await render(service, Page(q.strip()[:LONGEST_QUERY], a, b, hits))

    @app.get("/style.css", include_in_schema=False)
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    schema = app.openapi()
    for operation in (of_method for path in schema["paths"].values() for of_method in path.values()):
        operation["responses"].pop("422", None)  # a wrong request is a 400 here
    return app


def _document(stored: Stored | None, parse: bool, length: int | None) -> Any:
    """A stored document as the API gives it: its fields but the id, or the one field that it has; or its JSON."""
    if stored is None:
        return None
    if not parse:
        return raw_json(stored.id, stored.title, stored.contents)
    contents = stored.contents[:length]
    return {"title": stored.title, "contents": contents} if stored.title else contents


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)
