"""What every request passes: the API key, the host's name, security headers, and metrics for Prometheus."""

import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit
from uuid import uuid4

from fastapi import HTTPException, Request, Security
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cai_pyserini.serve.access_log import AccessLog
from cai_pyserini.serve.service import Service

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
LONGEST_BODY = 1 << 19  # bytes of a request; queries, 64 ids, a filter and names, all as \ud83e\uddec, have 450,000
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
STAGE_SECONDS = (0.0002, 0.0005, 0.001, 0.002, *SECONDS)


class Metrics:
    """Counters and latencies of a service."""

    MEDIA_TYPE = CONTENT_TYPE_LATEST

    def __init__(self, service: Service):
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("cai_requests", "Requests", ["route", "status"], registry=registry)
        self.seconds = Histogram("cai_request_seconds", "Time to answer", ["route"], registry=registry, buckets=SECONDS)
        unanswered = Gauge("cai_unanswered_requests", "Requests that wait for an answer", registry=registry)
        unanswered.set_function(lambda: service.unanswered)
        sizes = Histogram(
            "cai_batch_queries", "Queries answered together", registry=registry, buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        service.batches = sizes.observe
        stages = Histogram(
            "cai_stage_seconds", "Time of a batch", ["index", "stage"], registry=registry, buckets=STAGE_SECONDS
        )

        def observe(index: str, seconds: dict[str, float]) -> None:
            for stage, spent in seconds.items():
                stages.labels(index, stage).observe(spent)

        service.stages = observe

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Guard:
    """An ASGI application around another: every response, errors included, is counted and gets `headers`.

    With `local`, requests for another host name than loopback's are refused, so that no web site can read a server on
    loopback through a name of its own (DNS rebinding). A POST from another site's page is always refused. A response
    has an X-Request-ID, which the `log` has too.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics | None,
        local: bool,
        log: AccessLog | None = None,
        headers: Mapping[str, str] = HEADERS,
    ):
        self._app, self._metrics, self._local, self._log, self._headers = app, metrics, local, log, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, id = time.perf_counter(), uuid4().hex
        line = self._log.begin() if self._log else {}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({**self._headers, "X-Request-ID": id})
                route, seconds = getattr(scope.get("route"), "path", "other"), time.perf_counter() - start
                if self._metrics:
                    self._metrics.requests.labels(route, str(message["status"])).inc()
                    self._metrics.seconds.labels(route).observe(seconds)
                if self._log:
                    self._log.end(line, route, message["status"], seconds, id)
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> JSONResponse | None:
        host = request.headers.get("host", "")
        if self._local and not is_loopback(_name(host)):
            return JSONResponse({"error": f"this server is not {host}"}, 403)
        if "transfer-encoding" in request.headers:
            return JSONResponse({"error": "a body needs its Content-Length"}, 411)
        if int(request.headers.get("content-length", 0)) > LONGEST_BODY:
            return JSONResponse({"error": f"the body has more than {LONGEST_BODY:,} bytes"}, 413)
        origin = request.headers.get("origin")
        if request.method == "POST" and origin and origin.partition("://")[2] != host:
            return JSONResponse({"error": f"a page of {origin} may not do this"}, 403)
        return None


def is_loopback(host: str) -> bool:
    """Whether a name or address is that of this machine alone."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host.lower() == "localhost"


def _name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


def require(key: str) -> Callable[..., Awaitable[None]]:
    """A dependency of routes that need an API key: as X-API-Key, as a bearer token, or as the password of a browser."""
    header = APIKeyHeader(name="X-API-Key", auto_error=False)
    bearer, basic = HTTPBearer(auto_error=False), HTTPBasic(auto_error=False)

    async def check(
        of_header: Annotated[str | None, Security(header)],
        of_bearer: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
        of_basic: Annotated[HTTPBasicCredentials | None, Security(basic)],
    ) -> None:
        given = (of_header, of_bearer and of_bearer.credentials, of_basic and of_basic.password)
        if not any(hmac.compare_digest((one or "").encode(), key.encode()) for one in given):
            reason = "this server needs its API key, as X-API-Key or Authorization: Bearer"
            raise HTTPException(401, reason, {"WWW-Authenticate": 'Basic realm="search"'})

    return check
