"""The guard that every request passes: API key, hosts and origins, deadlines, security headers, and metrics."""

import asyncio
import binascii
import hmac
import re
import time
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit
from uuid import uuid4

from fastapi import Depends, HTTPException, Request, Security
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader
from fastapi.security.http import HTTPBase
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cai_pyserini.core.errors import did_you_mean
from cai_pyserini.service.access_log import AccessLog
from cai_pyserini.service.queue import Service

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
STATIC = {"Cache-Control": "private, max-age=300"}  # of what has nothing of documents and queries
MAX_BODY_BYTES = 1 << 19  # queries, 64 ids, a filter and names, all as \ud83e\uddec, have 450,000
BODY_SECONDS = 10.0  # limit for receiving a body
UNREAD_SECONDS = 2.0  # limit for receiving the rest of a body that is refused
CHUNK_BYTES = 1 << 16  # part of a response that is sent at once; little is buffered for slow clients
CHARSET, UTF_8 = re.compile(r';\s*charset="?([^\s;"]+)', re.IGNORECASE), ("utf-8", "utf8", "us-ascii", "ascii")
CLIENT_CLOSED = 499  # status of a request whose client left before the response
BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)  # seconds


class Metrics:
    """Counters and latencies of a service."""

    def __init__(self, service: Service):
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("cai_requests", "Requests", ["route", "status"], registry=registry)
        self.seconds = Histogram("cai_request_seconds", "Time to answer", ["route"], registry=registry, buckets=BUCKETS)
        unanswered = Gauge("cai_unanswered_requests", "Requests that wait for an answer", registry=registry)
        unanswered.set_function(lambda: service.unanswered)
        sizes = Histogram(
            "cai_batch_queries", "Queries answered together", registry=registry, buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        service.batches = sizes.observe

    def count(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Access(NamedTuple):
    """Which requests are answered.

    With `key`, those that have it: as X-API-Key, as a bearer token, or as a browser's password. With `local`, those for
    a loopback host or that of `public_url`, so that no web site can read a server on loopback through a name of its own
    (DNS rebinding). `public_url` is the address in browsers if a proxy is in front, whether it strips the path or not.
    A POST from a page of another site is refused.
    """

    key: str | None = None
    local: bool = False
    public_url: str | None = None


EVERYBODY = Access()


class Guard:
    """ASGI middleware that counts every response, errors included, and adds those of `headers` that it lacks.

    The key is not needed for `open_paths`. It is checked before the body is read, within BODY_SECONDS. HEAD is answered
    like GET. The context `sending` surrounds each request until its response is sent. Responses have an X-Request-ID,
    which is also in the `log`.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access = EVERYBODY,
        *,
        metrics: Metrics | None = None,
        log: AccessLog | None = None,
        headers: Mapping[str, str] = HEADERS,
        open_paths: Collection[str] = (),
        sending: Callable[[], AbstractContextManager[object]] = nullcontext,
    ):
        self._app, self._access, self._metrics, self._log, self._headers = app, access, metrics, log, headers
        self._open_paths, self._sending = open_paths, sending
        public = urlsplit(access.public_url or "")
        self._public_origin = f"{public.scheme}://{public.netloc}" if access.public_url else None
        self._public_host, self._root = public.netloc or None, public.path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, id = time.perf_counter(), uuid4().hex
        line = self._log.begin() if self._log else {}
        head = scope["method"] == "HEAD"
        path = scope["path"].removeprefix(self._root) if scope["path"].startswith(f"{self._root}/") else scope["path"]
        scope = {**scope, "method": "GET" if head else scope["method"], "path": path, "is_head": head}
        request = Request(scope, receive)
        headers = {**self._headers, "X-Request-ID": id}
        started = False

        def count(status: int) -> None:
            route, seconds = getattr(scope.get("route"), "path", "other"), time.perf_counter() - start
            if self._metrics:
                self._metrics.count(route, status, seconds)
            if self._log:
                self._log.end(line, route, status, seconds, id)

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                sent = MutableHeaders(scope=message)
                for name, value in headers.items():
                    sent.setdefault(name, value)
                count(message["status"])
                await send(message)
                return
            body = b"" if head else message.get("body", b"")
            last = max(0, len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES
            for at in range(0, last, CHUNK_BYTES):
                await send({**message, "body": body[at : at + CHUNK_BYTES], "more_body": True})
            await send({**message, "body": body[last:], "more_body": is_unread or message.get("more_body", False)})
            if is_unread:
                await _discard(receive)
                await send({**message, "body": b""})

        with self._sending():
            app: ASGIApp = self._refusal(request) or self._app
            is_unread = _has_body(request) and app is not self._app
            if is_unread:
                headers["Connection"] = "close"
            elif _has_body(request):
                try:
                    async with asyncio.timeout(BODY_SECONDS):
                        body = await request.body()
                    receive = _replay(body, receive)
                    body.decode()
                except UnicodeDecodeError as error:
                    app = error_response(400, f"the body is not UTF-8: byte {error.start} is {body[error.start]:02X}")
                except TimeoutError:
                    reason = f"the body was not there after {BODY_SECONDS:g} seconds"
                    app = error_response(408, reason, {"Connection": "close"})
                except ClientDisconnect:
                    count(CLIENT_CLOSED)
                    return
            await app(scope, receive, send_guarded)
        if not started:
            count(CLIENT_CLOSED)

    def count_refused(self, status: int) -> None:
        """Count a request that the HTTP server refused."""
        if self._metrics:
            self._metrics.requests.labels("other", str(status)).inc()

    def _refusal(self, request: Request) -> Response | None:
        """The response to a request that the application must not see; None to pass it on."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        own_origins = [self._public_origin, f"http://{host}", f"https://{host}"]
        if self._access.local and not is_loopback(_hostname(host)) and host.lower() != self._public_host:
            return error_response(403, f"this server is not {host}")
        if self._access.key and request.scope["path"] not in self._open_paths and not _has(request, self._access.key):
            reason = "this server needs its API key, as X-API-Key or Authorization: Bearer"
            return error_response(401, reason, {"WWW-Authenticate": 'Basic realm="search"'})
        if "transfer-encoding" in request.headers:
            return error_response(411, "a body needs its Content-Length")
        if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
            return error_response(413, f"the body has more than {MAX_BODY_BYTES:,} bytes")
        encoding = request.headers.get("content-encoding", "identity").lower()
        if _has_body(request) and encoding != "identity":
            reason = f"the body is compressed ({encoding[:50]}): send it as it is"
            return error_response(415, reason, {"Accept-Encoding": "identity"})
        charset = CHARSET.search(request.headers.get("content-type", ""))
        if _has_body(request) and charset and charset[1].lower() not in UTF_8:
            return error_response(415, f"the body is in {charset[1][:50]}: send UTF-8")
        if request.method == "POST" and origin and origin not in own_origins:
            return error_response(403, f"a page of {origin} may not do this; see --public-url")
        return None


def _has(request: Request, key: str) -> bool:
    """Whether a request has the key."""
    keys = request.headers.getlist("x-api-key")
    for value in request.headers.getlist("authorization"):
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "bearer":
            keys.append(credentials.strip())
        elif scheme.lower() == "basic":
            with suppress(binascii.Error, UnicodeDecodeError):
                keys.append(b64decode(credentials, validate=True).decode().partition(":")[2])
    return any(hmac.compare_digest(each.encode(), key.encode()) for each in keys)


def error_response(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": reason}, status, headers)


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


async def _discard(receive: Receive) -> None:
    """Read the rest of a refused body, a little of it: a client that still sends when the connection is closed loses
    the answer."""
    left = 8 * MAX_BODY_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(UNREAD_SECONDS):
            while left > 0 and (message := await receive()).get("more_body"):
                left -= len(message["body"])


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body already read, then continues."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


async def _check_parameters(request: Request) -> None:
    """Raise HTTPException for unknown or repeated parameters, and bytes that are not UTF-8, which would silently become
    U+FFFD."""
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise HTTPException(400, f"the parameters are not UTF-8: a byte is %{byte:02X}") from None
    operations = request.app.openapi()["paths"].get(request.scope["route"].path_format)
    if operations is None:  # MCP
        return
    parameters = operations[request.method.lower()].get("parameters", ())
    known = [parameter["name"] for parameter in parameters if parameter["in"] == "query"]
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            raise HTTPException(400, unknown_parameter(name, known))
        if names.count(name) > 1:
            raise HTTPException(400, f"{name}: given {names.count(name)} times")


CHECK_PARAMETERS = Depends(_check_parameters)
KEY_SCHEMES = [  # declare the key in the OpenAPI schema; Guard checks it
    Security(APIKeyHeader(name="X-API-Key", auto_error=False)),
    Security(HTTPBase(scheme="bearer", scheme_name="HTTPBearer", auto_error=False)),
    Security(HTTPBase(scheme="basic", scheme_name="HTTPBasic", auto_error=False)),
]


def unknown_parameter(name: str, known: Sequence[str]) -> str:
    """The error message for an unknown parameter, with the most similar known ones."""
    hint = did_you_mean(name, known) or f"; there are {', '.join(known) or 'none'}"
    return f"{name[:50]}: no such parameter{hint}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is loopback."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host.lower() == "localhost"


def _hostname(host: str) -> str:
    """The host name or address of a Host header, without the port."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""
