"""The HTTP service: the REST API v1 of Anserini and Pyserini, explanations, the page, health, metrics and MCP.

Wrong requests get a 4xx and failures a 5xx, with {"error": reason}.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi import Query as Parameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.version import VERSION
from cai_pyserini.indexes.filters import BadFilter, Filters, without_operators
from cai_pyserini.service import files, schema
from cai_pyserini.service.access_log import AccessLog, note
from cai_pyserini.service.document_page import MAX_PARTS, render_document
from cai_pyserini.service.guard import (
    CHECK_PARAMETERS,
    EVERYBODY,
    KEY_SCHEMES,
    STATIC,
    Access,
    Guard,
    Metrics,
    error_response,
)
from cai_pyserini.service.mcp import ForwardedResponse, over_http
from cai_pyserini.service.page import SCRIPT, STYLE, Search, render
from cai_pyserini.service.queue import Job, SearchResults, Service, documents
from cai_pyserini.service.schema import DocumentForm, Name, Text

PUBLIC_ROUTES = {"/health", "/ready", "/openapi.json"}  # need no key
MAX_REDIRECT = 2000  # characters of an address; nginx refuses 4 KiB of headers in an answer
probes = APIRouter()  # need no key
routes = APIRouter(dependencies=[CHECK_PARAMETERS])


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOfApp = Annotated[Service, Depends(_service)]
Form = Annotated[DocumentForm, Parameter()]
QUOTE_PARAMETER = Parameter(description="the text to look for")
PageSearch = Annotated[Search, Parameter()]


class Css(Response):
    media_type = "text/css"


class JavaScript(Response):
    media_type = "text/javascript"


@routes.get("/v1/{index}/search")
async def search(
    service: ServiceOfApp, index: Name, asked: Annotated[schema.SearchParameters, Parameter()], form: Form
) -> schema.SearchAnswer:
    """The best documents for a query, or the documents most similar to one. Facets count all documents that contain
    a word of the query and pass the filter."""
    asked.check()
    shown = text = asked.query or ""
    filters: Filters = asked.filter or None
    if asked.syntax:
        text, filters = without_operators(text, asked.filter)
    show = documents(form.max_doc_length, asked.snippets)
    options: dict[str, Any] = {"hits": asked.hits, "sort": asked.sort or None, "show": show, "filter": filters}
    excerpts, answer = None, SearchResults([[]])
    if asked.budget_tokens:
        excerpts = await service.excerpts(index, text, asked.budget_tokens, filters)
    elif asked.query is None:
        stored, answer = await service.similar(index, asked.like or "", **options)
        shown = text = stored.contents
    else:
        answer = await service.search(Job(index=index, texts=[text], rerank=asked.rerank, **options))
        note(texts=[shown])
    (facets,) = await _facets(service, index, [text], asked.facets.split(",") if asked.facets else [], filters)
    return schema.SearchAnswer(
        index=index,
        query=schema.Query(text=shown),
        candidates=form.candidates(answer.rankings[0]),
        excerpts=excerpts,
        facets=facets,
        degraded=answer.degraded,
        reranked=answer.reranked,
    )


@routes.post("/v1/{index}/search")
async def search_all(
    service: ServiceOfApp, index: Name, body: schema.SearchRequest, form: Form
) -> schema.SearchAnswers:
    """The best documents for each of several queries."""
    body.check_limits()
    texts, filter = [topic.text for topic in body.queries], body.filter or None
    show = documents(form.max_doc_length, body.snippets)
    answer = await service.search(
        Job(index=index, texts=texts, hits=body.hits, filter=filter, sort=body.sort or None, show=show)
    )
    counts = await _facets(service, index, texts, body.facets, filter)
    results = [
        schema.TopicAnswer(qid=topic.qid, candidates=form.candidates(ranking), facets=facets)
        for topic, ranking, facets in zip(body.queries, answer.rankings, counts, strict=True)
    ]
    return schema.SearchAnswers(index=index, results=results, degraded=answer.degraded)


async def _facets(
    service: Service, index: str, texts: Sequence[str], fields: Sequence[str], filter: Filters
) -> list[schema.Counts]:
    """The facets of each query, empty without `fields`."""
    if not fields:
        return [{} for _ in texts]
    counts: list[schema.Counts] = await service.call(
        index, lambda engine: (engine.facets(fields, text, filter) for text in texts)
    )
    return counts


@routes.get("/v1/{index}/doc/{docid:path}")
async def document(service: ServiceOfApp, index: Name, docid: Name, form: Form) -> schema.DocumentAnswer:
    """A document, or a passage of one."""
    stored = await service.document(index, docid, form.max_doc_length)
    return schema.DocumentAnswer(index=index, docid=docid, doc=form.of(stored))


@routes.get("/v1/{index}/explain")
async def explain(service: ServiceOfApp, index: Name, query: Text, docid: Name) -> schema.ExplainAnswer:
    """Why a document or passage has its score: the terms that it shares with the query, or the parts of a hybrid."""
    note(texts=[query])
    explanations = await service.call(index, lambda engine: engine.explain(query, [docid]))
    if docid not in explanations:
        raise HTTPException(404, f"document {docid!r} has no score in {index}")
    return schema.ExplainAnswer(index=index, query=schema.Query(text=query), explanation=explanations[docid])


@routes.get("/v1/{index}/quote")
async def quote(
    service: ServiceOfApp, index: Name, docid: Name, text: Annotated[schema.QueryText, QUOTE_PARAMETER]
) -> schema.QuoteAnswer:
    """Whether a text stands in a document, and where: white space, quotation marks, hyphens and case may differ. If it
    does not, the most similar place."""
    return schema.QuoteAnswer(index=index, quote=await service.quote(index, docid, text))


@routes.get("/v1/{index}/suggest")
async def suggest(service: ServiceOfApp, index: Name, query: Text) -> schema.SuggestAnswer:
    """A correction of a query with words that are in no document."""
    note(texts=[query])
    suggestion = await service.call(index, lambda engine: engine.suggestion(query))
    return schema.SuggestAnswer(index=index, query=schema.Query(text=query), suggestion=suggestion)


@probes.get("/health", responses={503: {"model": schema.Health}})
async def health(service: ServiceOfApp, response: Response) -> schema.Health:
    """Liveness: 503 if a search does not end, so that the server should be restarted."""
    response.status_code = 503 if service.stuck else 200
    return schema.Health(
        status="stuck" if service.stuck else "ok",
        version=VERSION,
        default=service.default,
        indexes=list(service.engines),
        unanswered=service.unanswered,
    )


@probes.get("/ready", responses={503: {"model": schema.Readiness}})
async def ready(service: ServiceOfApp, response: Response) -> schema.Readiness:
    """Readiness: a search of every index; 503 if one fails."""
    indexes = await service.probe()
    ok = set(indexes.values()) == {"ok"}
    response.status_code = 200 if ok else 503
    return schema.Readiness(status="ok" if ok else "not ready", indexes=indexes)


@routes.get("/metrics", response_class=PlainTextResponse)
async def prometheus(request: Request) -> Response:
    """Counters and latencies in Prometheus' format."""
    return Response(request.app.state.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@routes.post("/reload")
async def reload(service: ServiceOfApp) -> schema.Reloaded:
    """Reopen the indexes on disk; the old ones serve until the new ones are open."""
    try:
        await service.reload()
    except CaiError as error:
        raise HTTPException(503, f"the indexes could not be opened, the old ones stay: {error}") from None
    return schema.Reloaded(indexes=list(service.engines))


@routes.post("/mcp", include_in_schema=False)
@routes.post("/mcp/", include_in_schema=False)
async def tools(request: Request) -> Response:
    """The MCP tools."""
    return ForwardedResponse(request.app.state.mcp.handle_request)


@routes.get("/", response_class=HTMLResponse, responses={303: {"description": "without the empty parameters"}})
async def page(service: ServiceOfApp, request: Request, search: PageSearch) -> Response:
    """The page for people."""
    address = search.link(start=search.start)
    if "" in request.query_params.values() and len(address) <= MAX_REDIRECT:  # the form sends empty fields
        return RedirectResponse(address, 303)
    return HTMLResponse(await render(service, search))


@routes.get("/document", response_class=HTMLResponse)
async def document_page(
    service: ServiceOfApp,
    index: Name,
    id: Annotated[Name, Parameter(description="a document, or a passage of one")],
    *,
    part: Annotated[
        int | None, Parameter(description="of a long text; by default, that of its best passage", ge=1, le=MAX_PARTS)
    ] = None,
    search: PageSearch,
) -> str:
    """A document for people, with the words of the query marked. The other parameters are those of the search to go
    back to."""
    return await render_document(service, index, id, search, part)


@routes.get(
    "/file",
    response_class=FileResponse,
    responses={
        200: {"content": {kind: {} for kind in files.TYPES}},
        304: {"description": "the client has the file"},
        409: {"content": {"text/html": {}}, "description": "the file has changed since it was read"},
        410: {"content": {"text/html": {}}, "description": "the file is not there any more"},
    },
)
async def file(service: ServiceOfApp, request: Request, index: Name, id: Name) -> Response:
    """The file of a document, as it was when it was read; also in ranges."""
    return await files.render_file(service, index, id, request.app.state.comparing)


@routes.get("/style.css", response_class=Css)
async def style() -> Response:
    """The page's style sheet."""
    return Css(STYLE, headers=STATIC)


@routes.get("/script.js", response_class=JavaScript)
async def script() -> Response:
    """The page's keys."""
    return JavaScript(SCRIPT, headers=STATIC)


def create_app(service: Service, access: Access = EVERYBODY, log: AccessLog | None = None) -> Guard:
    """The application. With a key, all routes except PUBLIC_ROUTES need it."""
    app = FastAPI(
        title="cai-pyserini",
        version=VERSION,
        lifespan=_running,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy, the redirect would name the wrong host
        servers=[{"url": access.public_url}] if access.public_url else None,
        generate_unique_id_function=lambda route: route.name,  # short names in generated clients
        responses={
            status: {"model": schema.Wrong} for status in (400, 401, 403, 404, 408, 411, 413, 415, 429, 500, 503)
        },
        exception_handlers={
            HTTPException: _refused,
            RequestValidationError: _invalid,
            BadFilter: _not_understood,
            TimeoutError: _late,
            Exception: _failed,
        },
        description="Search. Routes and answers under /v1 are those of Anserini's and Pyserini's REST API.",
    )
    app.state.service, app.state.metrics, app.state.mcp = service, Metrics(service), over_http(service)
    app.state.comparing = CapacityLimiter(files.COMPARISONS)
    app.include_router(probes)
    app.include_router(routes, dependencies=KEY_SCHEMES if access.key else ())
    _correct(app.openapi())
    return Guard(app, access, metrics=app.state.metrics, log=log, open_paths=PUBLIC_ROUTES, sending=service.sending)


@asynccontextmanager
async def _running(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.service.running(), app.state.mcp.run():
        yield


async def _refused(request: Request, error: HTTPException) -> Response:
    headers = error.headers
    if error.status_code == 405:  # Starlette names the methods of only one of the routes with this path
        paths = request.app.openapi()["paths"]
        methods = paths.get(getattr(request.scope.get("route"), "path_format", ""), ())
        allowed = [other for method in methods for other in (["get", "head"] if method == "get" else [method])]
        headers = {"Allow": ", ".join(map(str.upper, allowed))} if allowed else headers
    return error_response(error.status_code, str(error.detail), headers)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    what = "should not be blank" if first["type"] == "string_pattern_mismatch" else first["msg"]
    return error_response(400, f"{'.'.join(map(str, first['loc'][1:])) or 'body'}: {what}")


async def _not_understood(request: Request, error: BadFilter) -> Response:
    return error_response(400, str(error))


async def _late(request: Request, error: TimeoutError) -> Response:
    return error_response(503, "the request took too long; try again later", {"Retry-After": "1"})


async def _failed(request: Request, error: Exception) -> Response:  # uvicorn logs the error
    return error_response(500, "the server failed to answer; its log says why")


def _correct(document: dict[str, Any]) -> None:
    """Change the OpenAPI document where FastAPI does not describe what the service does."""
    for unused in ("HTTPValidationError", "ValidationError"):  # of the 422s that are removed below
        del document["components"]["schemas"][unused]
    for path in document["paths"].values():
        for operation in path.values():
            responses = operation["responses"]
            responses.pop("422", None)  # wrong requests get a 400
            for status in responses.keys() - {"200", "303", "304", "409", "410"}:  # JSON, even of routes with text
                responses[status]["content"] = {"application/json": responses[status]["content"].popitem()[1]}
