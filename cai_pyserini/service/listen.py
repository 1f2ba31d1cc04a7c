"""The HTTP server: its address and API key, limits on connections, deadlines and shutdown."""

import asyncio
import errno
import logging
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, socket
from threading import Timer
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import API_KEY
from cai_pyserini.service.guard import Access, Guard, is_loopback
from cai_pyserini.service.settings import Listening

MAX_HEADER_BYTES = 1 << 19  # bytes without a body; three parameters of 10,000 characters, as %F0%9F%A7%AC, have 360,000
REQUEST_SECONDS = 10.0  # to receive the headers of a request
CHUNK_SECONDS = 10.0  # for a client to read guard.CHUNK_BYTES
SHUTDOWN_SECONDS = 10.0  # after the last response
MAX_CONNECTIONS = 1000
MAX_INCOMPLETE_BYTES = 1 << 26  # of all requests that are not complete
ACCEPT_BATCH = 16  # connections accepted before the first is read
BACKLOG = 2048  # connections that wait in the kernel
SPARE_FILES = 64  # file handles for requests; a reload needs as many again as are open now
TIMEOUT_ERROR = b'{"error":"the request was not complete in time"}'
FULL_ERROR = b'{"error":"too many connections; try again soon"}'
logger = logging.getLogger(__name__)


def access(settings: Listening, origins: Sequence[str] = ()) -> Access:
    """Whose requests are answered, with the key from the key file or the environment. Raises CaiError if clients cannot
    send it, or if there is none and the server is reachable from other machines."""
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
    return Access(key, local, settings.public_url, origins)


class _OpenConnections:
    """The open connections: at most `limit`, with at most MAX_INCOMPLETE_BYTES of incomplete requests.

    Beyond either, the connections that have waited longest for the rest of a request are closed, so that clients that
    send half a request cannot shut out others. If none is waiting, new connections are refused.
    """

    def __init__(self, limit: int, count_refused: Callable[[int], None]):
        self.limit, self.count_refused = limit, count_refused
        self.all: set[Connection] = set()
        self.incomplete: dict[Connection, int] = {}  # -> bytes received; longest wait first

    def make_room(self) -> None:
        while len(self.all) > self.limit and self.incomplete:
            self._drop(next(iter(self.incomplete)))
        while sum(self.incomplete.values()) > MAX_INCOMPLETE_BYTES:
            self._drop(next(connection for connection, received in self.incomplete.items() if received))

    def _drop(self, connection: "Connection") -> None:
        self.incomplete.pop(connection)
        self.all.discard(connection)
        connection.transport.abort()


class Connection(H11Protocol):
    """A connection with deadlines, which uvicorn lacks: REQUEST_SECONDS to receive the headers of a request, and
    CHUNK_SECONDS for the client to read each chunk of a response. Guard has the deadline for bodies."""

    def __init__(self, connections: _OpenConnections, **arguments: Any):
        super().__init__(**arguments)
        self._open_connections = connections
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # pause writing while anything is unsent
        self._open_connections.all.add(self)
        self._open_connections.make_room()
        if len(self._open_connections.all) > self._open_connections.limit:
            self._refuse(503, b"503 Service Unavailable\r\nRetry-After: 1", FULL_ERROR)
        else:
            self._open_connections.incomplete[self] = 0
            self._request_timer = self.loop.call_later(REQUEST_SECONDS, self._time_out)

    def _should_upgrade(self) -> bool:
        return False  # other protocols have no deadlines

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self.cycle.more_body:
            self._open_connections.incomplete.pop(self, None)
        else:
            self._open_connections.incomplete[self] = self._open_connections.incomplete.get(self, 0) + len(data)
            self._open_connections.make_room()
        if answering:
            self._cancel_request_timer()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_SECONDS, self._time_out)

    def on_response_complete(self) -> None:
        self._open_connections.incomplete.pop(self, None)
        self._open_connections.incomplete[self] = 0  # moves it to the end
        super().on_response_complete()
        if not self.cycle.response_complete and not self.cycle.more_body:  # a pipelined request
            self._open_connections.incomplete.pop(self, None)

    def shutdown(self) -> None:
        if self in self._open_connections.incomplete:
            self.transport.close()  # no request to answer
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(CHUNK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer:
            self._write_timer.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        self._open_connections.all.discard(self)
        self._open_connections.incomplete.pop(self, None)
        self._cancel_request_timer()
        self.resume_writing()
        super().connection_lost(error)

    def _cancel_request_timer(self) -> None:
        if self._request_timer:
            self._request_timer.cancel()
            self._request_timer = None

    def _time_out(self) -> None:
        """Close a connection whose request is late: with a 408 if part of it arrived, or else silently, because
        browsers open connections in advance."""
        if self._open_connections.incomplete.get(self):
            self._refuse(408, b"408 Request Timeout", TIMEOUT_ERROR)
        else:
            self.transport.close()

    def _refuse(self, status: int, line: bytes, body: bytes) -> None:
        self._open_connections.count_refused(status)
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.transport.write(head % (line, len(body)) + body)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn with limits on connections and shutdown: accepted requests have `seconds`, the rest of the shutdown
    SHUTDOWN_SECONDS. Raises CaiError if the limit on open files is too low."""

    def __init__(self, app: Guard, host: str = "127.0.0.1", port: int = 0, seconds: float = 10.0):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        opened = len(list(Path("/dev/fd").iterdir()))
        if (connections := limit - 2 * opened - SPARE_FILES) < ACCEPT_BATCH:
            raise CaiError(
                f"this process may open {limit} files, and has {opened} open: too few for connections and reloads; "
                f"raise the limit, with `ulimit -n 1024` or LimitNOFILE= of systemd"
            )
        open_connections = _OpenConnections(min(connections, MAX_CONNECTIONS), app.count_refused)
        super().__init__(
            uvicorn.Config(
                app,
                host,
                port,
                loop="asyncio",
                http=partial(Connection, open_connections),  # type: ignore[arg-type]
                ws="none",
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                backlog=ACCEPT_BATCH,
                timeout_graceful_shutdown=int(seconds) + 1,
                log_level="warning",
                use_colors=False,
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )

    async def startup(self, sockets: list[socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_ExceptionHandler())
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # asyncio sets it to ACCEPT_BATCH

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        def give_up() -> None:
            logger.error("a search does not end: exiting without it")
            os._exit(1)

        timer = Timer((self.config.timeout_graceful_shutdown or 0) + SHUTDOWN_SECONDS, give_up)
        timer.start()
        await super().shutdown(sockets)
        timer.cancel()


class _ExceptionHandler:
    """Handle errors of the event loop: out of files, log one line per minute, not asyncio's traceback per connection
    that it cannot accept."""

    def __init__(self) -> None:
        self._logged_at = -60.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._logged_at >= 60:
            self._logged_at = time.monotonic()
            logger.error("connections cannot be accepted: %s", error)


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
