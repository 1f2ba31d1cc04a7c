"""Listen for HTTP: at which address, with which key, for how many, and until when."""

import asyncio
import errno
import logging
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, socket
from threading import Timer
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import API_KEY, Listening
from cai_pyserini.serve.guard import Guard, is_loopback

LONGEST_REQUEST = 1 << 19  # bytes without a body; three parameters of 10,000 characters, as %F0%9F%A7%AC, have 360,000
REQUEST_SECONDS = 10.0  # until a request has all of its headers
PIECE_SECONDS = 10.0  # for a client to read what is sent at once, guard.PIECE bytes
END_SECONDS = 10.0  # for the end, after the last answer
CONNECTIONS = 1000
UNFINISHED = 1 << 26  # bytes of requests that are not complete
ACCEPTED = 16  # connections, before the first of them is looked at
WAITING = 2048  # connections that the system holds for us
SPARE = 64  # file handles for what a request opens, beside as many as are open now, for a reload
LATE = b'{"error":"the request was not complete in time"}'
FULL = b'{"error":"too many connections; try again soon"}'
logger = logging.getLogger(__name__)


def api_key(settings: Listening) -> str | None:
    """The key in a file, or else in the environment. Raises CaiError for one that clients cannot send, and for none
    where others than this machine are served."""
    file = settings.key_file
    key = file.read_text(encoding="utf-8").strip() if file else os.environ.get(API_KEY)
    advice = "a long random text, as `openssl rand -hex 32` prints"
    if key is None and not (is_loopback(settings.host) or settings.proxy_authenticates):
        raise CaiError(
            f"without an API key, everybody who reaches this machine could use this: set {API_KEY} to {advice}, or "
            "give --proxy-authenticates if a proxy in front of this server checks who may"
        )
    if key is not None and not re.fullmatch("[!-~]+", key):
        place = file or API_KEY
        raise CaiError(f"{place} is empty or has other characters than printable ASCII; it should be {advice}")
    return key


class _Open:
    """The open connections: at most `most`, and at most UNFINISHED bytes of requests that are not complete.

    Beyond either, those that wait longest for the rest of a request are closed, so that new clients are answered
    however many others send half a request. If none waits, a new one is refused.
    """

    def __init__(self, most: int, refused: Callable[[int], None]):
        self.most, self.refused = most, refused
        self.all: set[Connection] = set()
        self.unfinished: dict[Connection, int] = {}  # -> bytes received; the one that waits longest first

    def make_room(self) -> None:
        while len(self.all) > self.most and self.unfinished:
            self._drop(next(iter(self.unfinished)))
        while sum(self.unfinished.values()) > UNFINISHED:
            self._drop(next(connection for connection, received in self.unfinished.items() if received))

    def _drop(self, connection: "Connection") -> None:
        self.unfinished.pop(connection)
        self.all.discard(connection)
        connection.transport.abort()


class Connection(H11Protocol):
    """A connection, on which the headers of a request have REQUEST_SECONDS, and each piece of an answer has
    PIECE_SECONDS to be read; the guard has a deadline for bodies. uvicorn waits for all of them for ever."""

    def __init__(self, opened: _Open, **arguments: Any):
        super().__init__(**arguments)
        self._opened = opened
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # pause_writing, as long as anything is not sent
        self._opened.all.add(self)
        self._opened.make_room()
        if len(self._opened.all) > self._opened.most:
            self._end(503, b"503 Service Unavailable\r\nRetry-After: 1", FULL)
        else:
            self._opened.unfinished[self] = 0
            self._late = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _should_upgrade(self) -> bool:
        return False  # to another protocol, which would know no deadlines

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self.cycle.more_body:
            self._opened.unfinished.pop(self, None)
        else:
            self._opened.unfinished[self] = self._opened.unfinished.get(self, 0) + len(data)
            self._opened.make_room()
        if answering:
            self._cancel_late()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def on_response_complete(self) -> None:
        self._opened.unfinished.pop(self, None)
        self._opened.unfinished[self] = 0  # now the one that waits shortest
        super().on_response_complete()
        if not self.cycle.response_complete and not self.cycle.more_body:  # another request had arrived
            self._opened.unfinished.pop(self, None)

    def shutdown(self) -> None:
        if self in self._opened.unfinished:
            self.transport.close()  # there is nothing to answer yet
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(PIECE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread:
            self._unread.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        self._opened.all.discard(self)
        self._opened.unfinished.pop(self, None)
        self._cancel_late()
        self.resume_writing()
        super().connection_lost(error)

    def _cancel_late(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        """Close a connection whose request is late, with an answer if it was begun; some browsers open others before
        they have a request."""
        if self._opened.unfinished.get(self):
            self._end(408, b"408 Request Timeout", LATE)
        else:
            self.transport.close()

    def _end(self, status: int, line: bytes, body: bytes) -> None:
        self._opened.refused(status)
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.transport.write(head % (line, len(body)) + body)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn, with bounds on connections and on its end: `seconds` for the requests that it has accepted, and
    END_SECONDS for the rest. Raises CaiError where the process may not open enough files for any."""

    def __init__(self, app: Guard, host: str = "127.0.0.1", port: int = 0, seconds: float = 10.0):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        now = len(list(Path("/dev/fd").iterdir()))
        if (most := limit - 2 * now - SPARE) < ACCEPTED:
            raise CaiError(
                f"this process may open {limit} files, of which {now} are open: too few for connections and reloads; "
                f"raise the limit, with `ulimit -n 1024` or LimitNOFILE= of systemd"
            )
        super().__init__(
            uvicorn.Config(
                app,
                host,
                port,
                loop="asyncio",
                http=partial(Connection, _Open(min(most, CONNECTIONS), app.refused)),  # type: ignore[arg-type]
                ws="none",
                h11_max_incomplete_event_size=LONGEST_REQUEST,
                backlog=ACCEPTED,
                timeout_graceful_shutdown=int(seconds) + 1,
                log_level="warning",
                use_colors=False,
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )

    async def startup(self, sockets: list[socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_Brief())
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(WAITING)  # of which asyncio accepts ACCEPTED at a time

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        def give_up() -> None:
            logger.error("a search does not end: this process ends without it")
            os._exit(1)

        bound = Timer((self.config.timeout_graceful_shutdown or 0) + END_SECONDS, give_up)
        bound.start()
        await super().shutdown(sockets)
        bound.cancel()


class _Brief:
    """A handler of errors of the event loop: asyncio would log a traceback for each connection that it cannot accept
    where files run out."""

    def __init__(self) -> None:
        self._said = -60.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._said >= 60:
            self._said = time.monotonic()
            logger.error("connections cannot be accepted: %s", error)


def listen(app: Guard, settings: Listening, what: str, seconds: float = 10.0) -> None:
    """Serve an application until the process is told to end; `what` it serves is printed with the address. Requests
    that are accepted then have `seconds`."""
    server = Server(app, settings.host, settings.port, seconds)
    listening = server.config.bind_socket()
    listening.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # asyncio does so only for sockets of its own; saves 40 ms
    listening.listen()  # from now on, requests wait until the server has started
    host, port = listening.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    print(f"serving {what} at http://{place}:{port}/", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which uvicorn raises again when it has finished
    server.run([listening])
