"""The access log: one line of JSON per request, in a file that logrotate may move.

A separate thread writes it, so that requests never wait for the disk. If the disk is full or hangs, or the process is
killed, lines are lost, not requests.
"""

import json
import logging
import os
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

MAX_PENDING = 10_000  # lines
FLUSH_SECONDS = 5.0
UNLOGGED = {"/health", "/ready", "/metrics"}  # polled by machines
logger = logging.getLogger(__name__)
_line: ContextVar[dict[str, Any]] = ContextVar("line")  # of the current request


def note(**fields: Any) -> None:
    """Add fields to the log line of the current request, if there is a log."""
    _line.get({}).update(fields)


class AccessLog:
    """A log of requests, which several processes can write, with the texts of queries if `queries` is set."""

    def __init__(self, path: Path, queries: bool = False):
        self._queries = queries
        self._file = _File(path)
        self._pending: Queue[str | None] = Queue(MAX_PENDING)
        self._thread = Thread(target=self._write, name="access log", daemon=True)
        self._thread.start()

    def begin(self) -> dict[str, Any]:
        """Start the line of a request; `note` adds to it."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        _line.set(line)
        return line

    def end(self, line: dict[str, Any], route: str, status: int, seconds: float, id: str) -> None:
        """Log a request that has been answered."""
        if route in UNLOGGED:
            return
        line |= {"id": id, "route": route, "status": status, "ms": round(1000 * seconds, 2)}
        if not self._queries:
            line.pop("texts", None)
        with suppress(Full):
            self._pending.put_nowait(json.dumps(line))

    def _write(self) -> None:
        reported = set()
        for line in iter(self._pending.get, None):
            try:
                self._file.emit(logging.makeLogRecord({"msg": line}))
            except Exception as error:
                if (reason := str(error)) not in reported:
                    reported.add(reason)
                    logger.warning("the access log could not be written: %s", reason)

    def close(self) -> None:
        """Write the pending lines, unless the disk hangs."""
        with suppress(Full):
            self._pending.put(None, timeout=FLUSH_SECONDS)
        self._thread.join(FLUSH_SECONDS)


class _File(WatchedFileHandler):
    """The log file, reopened when logrotate has moved it. Only its owner can read it, because queries are private."""

    def _open(self) -> TextIOWrapper:
        def open_private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", opener=open_private)

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # logging would print the error
