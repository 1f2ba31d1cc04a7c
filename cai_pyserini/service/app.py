"""The HTTP service: its routes behind the guard, and what its errors look like.

Wrong requests get a 4xx and failures a 5xx, with {"error": reason}.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from cai_pyserini.core.version import VERSION
from cai_pyserini.indexes.filters import BadFilter
from cai_pyserini.service.access_log import AccessLog
from cai_pyserini.service.guard import EVERYBODY, KEY_SCHEMES, Access, Guard, Metrics, error_response
from cai_pyserini.service.mcp import over_http
from cai_pyserini.service.queue import Service
from cai_pyserini.service.routes import probes, routes
from cai_pyserini.service.schema import EXPLAINED, Wrong

PUBLIC_ROUTES = {"/health", "/ready", "/openapi.json"}  # need no key


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
        responses={status: {"model": Wrong} for status in (400, 401, 403, 404, 408, 411, 413, 429, 500, 503)},
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


def _correct(schema: dict[str, Any]) -> None:
    """Change the OpenAPI document where FastAPI does not describe what the service does."""
    schema["components"]["schemas"]["ExplainAnswer"]["examples"] = [EXPLAINED]  # FastAPI leaves out what is None
    for unused in ("HTTPValidationError", "ValidationError"):  # of the 422s that are removed below
        del schema["components"]["schemas"][unused]
    for path in schema["paths"].values():
        for operation in path.values():
            responses = operation["responses"]
            responses.pop("422", None)  # wrong requests get a 400
            for status in responses.keys() - {"200", "303"}:  # errors are JSON, even of routes that return text
                responses[status]["content"] = {"application/json": responses[status]["content"].popitem()[1]}
