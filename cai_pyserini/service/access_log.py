"""The access log: one line of JSON per request, in a file that logrotate may move and several processes may write."""

import json
import logging
import os
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

UNLOGGED = {"/health", "/ready", "/metrics"}  # polled by machines
logger = logging.getLogger(__name__)
_line: ContextVar[dict[str, Any]] = ContextVar("line")  # of the current request


def note(**fields: Any) -> None:
    """Add fields to the log line of the current request, if there is a log."""
    _line.get({}).update(fields)


class AccessLog(WatchedFileHandler):
    """A log of requests, with the texts of queries if `queries` is set. Only its owner can read it, because queries are
    private. While the disk is full, lines are lost, not requests."""

    def __init__(self, path: Path, queries: bool = False):
        super().__init__(path)
        self._queries, self._is_failing = queries, False

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
        try:
            self.emit(logging.makeLogRecord({"msg": json.dumps(line)}))
        except OSError as error:
            if not self._is_failing:
                logger.warning("the access log could not be written: %s", error)
            self._is_failing = True

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600))

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # logging would print the error
