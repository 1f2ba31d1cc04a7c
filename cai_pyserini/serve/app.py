"""The HTTP service: the REST API v1 of Anserini and Pyserini, explanations, health, metrics, and a page.

Every wrong request gets a 4xx with {"error": reason}.
"""

import asyncio
import hmac
import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from cai_pyserini import __version__
from cai_pyserini.engine.lucene_index import Stored
from cai_pyserini.index.raw import raw_json
from cai_pyserini.serve.metrics import Metrics
from cai_pyserini.serve.page import STYLE, Page, render
from cai_pyserini.serve.service import Busy, Service, UnknownIndex

LONGEST_QUERY = 10_000  # characters
MOST_HITS = 1000
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
OPEN = ("/health",)  # to everybody, even with an API key

Text = Annotated[
    str, Query(description="the text to search for", min_length=1, max_length=LONGEST_QUERY, pattern=r"\S")
]
HitCount = Annotated[int, Query(description="hits to return", ge=1, le=MOST_HITS)]
Parse = Annotated[bool, Query(description="parse the stored JSON; false: return it as a string")]
Length = Annotated[int | None, Query(description="characters of each document's contents to return", ge=1)]


def create_app(service: Service, key: str | None = None) -> FastAPI:
    """The application. With `key`, requests need it: as X-API-Key, as a bearer token, or as a browser's password."""
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
        description="Search. Routes and answers under /v1 are those of Anserini's and Pyserini's REST API.",
    )

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        start = time.perf_counter()
        if key and request.url.path not in OPEN and not _has_key(request, key):
            response: Response = _error(401, "this server needs its API key: X-API-Key, or Authorization: Bearer")
            response.headers["WWW-Authenticate"] = "Basic realm=search, charset=UTF-8"
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        metrics.observe(_route(request), response.status_code, time.perf_counter() - start)
        return response

    @app.exception_handler(UnknownIndex)
    async def unknown(request: Request, error: UnknownIndex) -> Response:
        return _error(404, f"no index {error}; this server has {', '.join(service.engines)}")

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> Response:
        return _error(429, "too many requests wait; try again soon", {"Retry-After": "1"})

    @app.exception_handler(TimeoutError)
    async def late(request: Request, error: TimeoutError) -> Response:
        return _error(503, "the request took too long; try again later", {"Retry-After": "1"})

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return _error(400, f"{first['loc'][-1]}: {first['msg']}")

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

    @app.get("/v1/{index}/doc/{docid:path}", responses={404: {"description": "no such document"}})
    async def document(index: str, docid: str, parse: Parse = True, max_doc_length: Length = None) -> dict[str, Any]:
        """A document."""
        stored = await service.document(index, docid)
        if stored is None:
            raise HTTPException(404, f"no document {docid!r}, or {index} does not store documents")
        return {"api": "v1", "index": index, "docid": docid, "doc": _document(stored, parse, max_doc_length)}

    @app.get("/v1/{index}/explain", responses={404: {"description": "the document has no score"}})
    async def explain(index: str, query: Text, docid: str) -> dict[str, Any]:
        """Why a document has its score: the terms that it shares with the query, or the parts of a hybrid."""
        explanation = await service.explain(index, query, docid)
        if explanation is None:
            raise HTTPException(404, f"document {docid!r} has no score in {index}")
        return {"api": "v1", "index": index, "query": {"text": query}, "explanation": explanation}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the server works, and what it serves."""
        return {"status": "ok", "version": __version__, "indexes": list(service.engines), "waiting": service.waiting}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Counters and latencies in the format of Prometheus."""
        return Response(metrics.text(), media_type=metrics.MEDIA_TYPE)

    @app.post("/reload")
    async def reload() -> dict[str, Any]:
        """Open the indexes again, as they are on disk now; meanwhile the old ones answer."""
        await service.reload()
        return {"status": "ok", "indexes": list(service.engines)}

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page(q: str = "", a: str = "", b: str = "", hits: HitCount = 10) -> str:
        return await render(service, Page(q.strip()[:LONGEST_QUERY], a, b, hits))

    @app.get("/style.css", include_in_schema=False)
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

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


def _route(request: Request) -> str:
    """The pattern of the request's path, of which there are few."""
    return getattr(request.scope.get("route"), "path", "other")


def _has_key(request: Request, key: str) -> bool:
    given = request.headers.get("x-api-key", "")
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        given = value.strip()
    elif kind.lower() == "basic":
        with suppress(Base64Error, UnicodeDecodeError):
            given = b64decode(value).decode().partition(":")[2]
    return hmac.compare_digest(given.encode(), key.encode())
