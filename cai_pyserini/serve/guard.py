"""What every request passes: the API key, the host's name, security headers, and the clock."""

import hmac
import time
from base64 import b64decode
from collections.abc import Collection
from contextlib import suppress

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cai_pyserini.serve.metrics import Metrics

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
OPEN = ("/health",)  # to everybody, even with an API key


class Guard:
    """An ASGI application in front of another.

    With `key`, requests need it: as X-API-Key, as a bearer token, or as the password of a browser. With `hosts`, those
    that name another host are refused, so that no web site can read a server on loopback by a name of its own (DNS
    rebinding); a POST that another site's page makes is refused always.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, key: str | None = None, hosts: Collection[str] = ()):
        self._app, self._metrics, self._key, self._hosts = app, metrics, key, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
                route = getattr(scope.get("route"), "path", "other")
                self._metrics.observe(route, message["status"], time.perf_counter() - start)
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> JSONResponse | None:
        host = request.headers.get("host", "")
        if self._hosts and host.rsplit(":", 1)[0] not in self._hosts:
            return JSONResponse({"error": f"this server is not {host}"}, 403)
        origin = request.headers.get("origin")
        if request.method == "POST" and origin and origin.partition("://")[2] != host:
            return JSONResponse({"error": f"a page of {origin} may not do this"}, 403)
        if self._key and request.url.path not in OPEN and not _has_key(request.headers, self._key):
            reason = "this server needs its API key, as X-API-Key or Authorization: Bearer"
            return JSONResponse({"error": reason}, 401, {"WWW-Authenticate": 'Basic realm="search", charset="UTF-8"'})
        return None


def _has_key(headers: Headers, key: str) -> bool:
    given = headers.get("x-api-key", "").encode("latin-1")  # as headers are decoded
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        given = value.strip().encode("latin-1")
    elif kind.lower() == "basic":
        with suppress(ValueError):
            _, _, given = b64decode(value).partition(b":")
    return hmac.compare_digest(given, key.encode())
