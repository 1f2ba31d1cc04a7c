"""The HTTP server: its address and API key, limits on connections, deadlines and shutdown."""

import asyncio
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from socket import IPPROTO_TCP, TCP_NODELAY, socket
from typing import Any, cast

import uvicorn
from starlette.types import Message, Receive, Scope, Send

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import API_KEY
from cai_pyserini.service.guard import Access, Guard, is_loopback
from cai_pyserini.service.settings import Listening

MAX_HEADER_BYTES = 1 << 19  # bytes without a body; three parameters of 10,000 characters, as %F0%9F%A7%AC, have 360,000
REQUEST_SECONDS = 10.0  # limit for receiving the headers of a request
CHUNK_SECONDS = 10.0  # limit for a client to read guard.CHUNK_BYTES
MAX_CONNECTIONS = 500  # each with at most MAX_HEADER_BYTES and guard.MAX_BODY_BYTES: 500 MB
BACKLOG = 128  # connections that wait in the kernel; asyncio accepts them all at once


def access(settings: Listening) -> Access:
    """The access policy, with the key from the key file or the environment. Raises CaiError if clients cannot send the
    key, or if there is none and the server is reachable from other machines."""
    file, local = settings.key_file, is_loopback(settings.host)
    key = file.read_text(encoding="utf-8").strip() if file else os.environ.get(API_KEY)
    advice = "a long random text, as `openssl rand -hex 32` prints"
    if key is None and not (local or settings.proxy_authenticates):
        raise CaiError(
            f"without an API key, everybody who reaches this machine could use this server: set {API_KEY} to {advice}, "
            "or give --proxy-authenticates if a proxy in front of it authenticates users"
        )
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise CaiError(f"{file or API_KEY} is empty or has other characters than printable ASCII; use {advice}")
    return Access(key, local, settings.public_url)


class Connections:
    """ASGI middleware that knows the open connections, at most `limit`.

    Beyond that, the connections that have waited longest for a request, or for the rest of one, are closed, so that
    clients that send half a request cannot shut out others. If none is waiting, new connections are refused.
    """

    def __init__(self, app: Guard, limit: int):
        self.app, self._limit = app, limit
        self._open: dict[object, Connection] = {}  # by the client's address
        self.waiting: dict[Connection, None] = {}  # those without a whole request, longest wait first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = self._open.get(scope.get("client"))
        if connection is None:  # the server starts or stops
            await self.app(scope, receive, send)
            return

        async def receive_body() -> Message:
            message = await receive()
            if not message.get("more_body"):
                self.waiting.pop(connection, None)
            return message

        body = [value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")]
        if body in ([], [b"0"]):
            self.waiting.pop(connection, None)
        connection.begin_answer()
        try:
            await self.app(scope, receive_body, send)
        finally:
            connection.answers -= 1
            if not connection.answers and self._open.get(connection.client) is connection:
                self.waiting.pop(connection, None)
                self.waiting[connection] = None  # at the end

    def add(self, connection: "Connection") -> bool:
        """Add a connection; false if there are too many."""
        if len(self._open) >= self._limit and self.waiting:
            longest = next(iter(self.waiting))
            self.remove(longest)
            longest.transport.abort()
        if len(self._open) >= self._limit:
            return False
        self._open[connection.client] = connection
        self.waiting[connection] = None
        return True

    def remove(self, connection: "Connection") -> None:
        self.waiting.pop(connection, None)
        self._open.pop(connection.client, None)


class Connection(asyncio.Protocol):
    """A connection with deadlines around `http`, uvicorn's protocol, which has none: REQUEST_SECONDS to receive the
    headers of a request, and CHUNK_SECONDS for the client to read each chunk of a response. Guard has the deadline for
    bodies."""

    transport: asyncio.Transport
    client: object

    def __init__(self, connections: Connections, http: Callable[..., asyncio.Protocol], **arguments: Any):
        self._connections, self._http = connections, http(**arguments)
        self.answers = 0  # in progress
        self._has_begun = False  # the next request
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def begin_answer(self) -> None:
        """Answer a request whose headers have arrived."""
        self.answers += 1
        self._has_begun = False
        self._stop_request_timer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.client = (transport.get_extra_info("peername") or ())[:2]
        self._http.connection_made(transport)
        self.transport.set_write_buffer_limits(0)  # pause writing while anything is unsent
        self._start_request_timer()
        if not self._connections.add(self):
            self._refuse(503, b"503 Service Unavailable\r\nRetry-After: 1", "too many connections; try again soon")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self.answers:
            self._has_begun = True
            self._start_request_timer()
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()
        self._write_timer = asyncio.get_running_loop().call_later(CHUNK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._http.resume_writing()
        if self._write_timer:
            self._write_timer.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.remove(self)
        self._stop_request_timer()
        self.resume_writing()
        self._http.connection_lost(error)

    def _start_request_timer(self) -> None:
        if not self._request_timer:
            self._request_timer = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self._time_out)

    def _stop_request_timer(self) -> None:
        if self._request_timer:
            self._request_timer.cancel()
            self._request_timer = None

    def _time_out(self) -> None:
        """Close a connection whose request is late: with a 408 if part of it arrived, or else silently, because
        browsers open connections in advance."""
        if self._has_begun:
            self._refuse(408, b"408 Request Timeout", "the request was not complete in time")
        else:
            self.transport.close()

    def _refuse(self, status: int, line: bytes, reason: str) -> None:
        self._connections.app.count_refused(status)
        body = json.dumps({"error": reason}).encode()
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.transport.write(head % (line, len(body)) + body)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn with limits on connections: when it stops, accepted requests have `seconds`."""

    def __init__(self, app: Guard, host: str = "127.0.0.1", port: int = 0, seconds: float = 10.0):
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections = Connections(app, min(MAX_CONNECTIONS, files // 2))  # the others are for indexes
        config = uvicorn.Config(
            self._connections,
            host,
            port,
            loop="asyncio",
            http="h11",
            ws="none",
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            backlog=BACKLOG,
            timeout_graceful_shutdown=int(seconds) + 1,
            log_level="error",  # its warnings are faults of clients, which could fill the log
            use_colors=False,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        config.load()
        config.http_protocol_class = partial(Connection, self._connections, config.http_protocol_class)  # type: ignore[assignment]
        super().__init__(config)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        for connection in list(self._connections.waiting):
            connection.transport.close()
        await asyncio.sleep(0)  # until they are closed
        await super().shutdown(sockets)


def listen(app: Guard, settings: Listening, content: str, seconds: float = 10.0) -> None:
    """Serve an application until the process is terminated; accepted requests then have `seconds`. `content`, what is
    served, is printed with the address."""
    server = Server(app, settings.host, settings.port, seconds)
    listening = server.config.bind_socket()
    listening.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # saves 40 ms; asyncio sets it only on sockets that it creates
    listening.listen()  # requests can arrive before the server has started
    host, port = listening.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    print(f"serving {content} at http://{address}/", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises SIGTERM again when it has finished
    server.run([listening])
