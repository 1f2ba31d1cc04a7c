"""The routes: the REST API v1 of Anserini and Pyserini, explanations, the page, health, metrics, and MCP."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi import Query as Parameter
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.version import VERSION
from cai_pyserini.indexes.filters import Filters, without_operators
from cai_pyserini.service import schema
from cai_pyserini.service.access_log import note
from cai_pyserini.service.document_page import MAX_PARTS, render_document
from cai_pyserini.service.guard import CHECK_PARAMETERS
from cai_pyserini.service.mcp import ForwardedResponse
from cai_pyserini.service.page import SCRIPT, STYLE, Search, render
from cai_pyserini.service.queue import Service, documents
from cai_pyserini.service.schema import DocumentForm, Name, Text

MAX_REDIRECT = 2000  # characters of an address; nginx refuses 4 KiB of headers in an answer
probes = APIRouter()  # need no key
routes = APIRouter(dependencies=[CHECK_PARAMETERS])


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOfApp = Annotated[Service, Depends(_service)]
Form = Annotated[DocumentForm, Parameter()]
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
    filters: Filters = asked.filter or None
    sort, show = asked.sort or None, documents(form.max_doc_length, asked.snippets)
    if asked.query is None:
        text, answer = await service.similar(index, asked.like or "", asked.hits, filter=filters, sort=sort, show=show)
    else:
        text = asked.query
        if asked.syntax:
            text, filters = without_operators(asked.query, asked.filter)
        answer = await service.search_all(
            index, [text], asked.hits, rerank=asked.rerank, filter=filters, sort=sort, show=show
        )
        note(texts=[asked.query])
    facets = asked.facets.split(",") if asked.facets else []
    counts = await _facets(service, index, [text], facets, filters)
    return schema.SearchAnswer(
        index=index,
        query=schema.Query(text=text if asked.query is None else asked.query),
        candidates=form.candidates(answer.rankings[0]),
        facets=counts[0],
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
    answer = await service.search_all(
        index,
        texts,
        body.hits,
        filter=filter,
        sort=body.sort or None,
        show=documents(form.max_doc_length, body.snippets),
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
    """A document."""
    stored = await service.document(index, docid, form.max_doc_length)
    return schema.DocumentAnswer(index=index, docid=docid, doc=form.of(stored))


@routes.get("/v1/{index}/explain")
async def explain(service: ServiceOfApp, index: Name, query: Text, docid: Name) -> schema.ExplainAnswer:
    """Why a document has its score: the terms that it shares with the query, or the parts of a hybrid."""
    note(texts=[query])
    explanations = await service.call(index, lambda engine: engine.explain(query, [docid]))
    if docid not in explanations:
        raise HTTPException(404, f"document {docid!r} has no score in {index}")
    return schema.ExplainAnswer(index=index, query=schema.Query(text=query), explanation=explanations[docid])


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
    metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=metrics.MEDIA_TYPE)


@routes.post("/reload")
async def reload(service: ServiceOfApp) -> schema.Reloaded:
    """Reopen the indexes on disk; the old ones serve until the new ones are open."""
    try:
        await service.reload()
    except CaiError as error:
        raise HTTPException(503, f"the indexes could not be opened, the old ones stay: {error}") from None
    return schema.Reloaded(indexes=list(service.engines))


@routes.post("/mcp", include_in_schema=False)
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
        int | None,
        Parameter(description="of a long text; by default, that of its best passage", ge=1, le=MAX_PARTS),
    ] = None,
    search: PageSearch,
) -> str:
    """A document for people, with the words of the query marked. The other parameters are those of the search to go
    back to."""
    return await render_document(service, index, id, search, part)


@routes.get("/style.css", response_class=Css)
async def style() -> str:
    """The page's style sheet."""
    return STYLE


@routes.get("/script.js", response_class=JavaScript)
async def script() -> str:
    """The page's keys."""
    return SCRIPT
