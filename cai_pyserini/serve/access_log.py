"""The access log: a JSON object per request, a line each, in a file that logrotate may move away.

A thread of its own writes it, so that no request waits for the disk. Lines are lost rather than requests: while the
disk is full or does not answer, and if the process is killed.
"""

import hashlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any, Literal

QueryForm = Literal["none", "hash", "text"]  # of the queries in the log

WAITING = 10_000  # lines at most
PATIENCE = 5.0  # seconds for the last ones
UNLOGGED = {"/health", "/ready", "/metrics"}  # which machines ask for all the time
logger = logging.getLogger(__name__)
_line: ContextVar[dict[str, Any]] = ContextVar("line")  # of the request that is being answered


def note(**facts: Any) -> None:
    """Add facts to the line of the request that is being answered, if there is a log."""
    _line.get({}).update(facts)


class Writer:
    """A thread that writes a log, so that nobody waits for the disk. Of what waits, at most WAITING is kept."""

    def __init__(self, log: str):
        self._log = log
        self._waiting: Queue[tuple[Future[Any], Callable[[], Any]] | None] = Queue(WAITING)
        self._thread = Thread(target=self._work, name=log, daemon=True)
        self._thread.start()

    def submit(self, write: Callable[[], Any]) -> "Future[Any]":
        """Have the thread call `write`; the result is what it returns, or False if it fails or too much waits."""
        written: Future[Any] = Future()
        try:
            self._waiting.put_nowait((written, write))
        except Full:
            written.set_result(False)
        return written

    def _work(self) -> None:
        said = set()
        for written, write in iter(self._waiting.get, None):
            if not written.set_running_or_notify_cancel():
                continue
            try:
                written.set_result(write())
            except Exception as error:
                if (reason := str(error)) not in said:
                    said.add(reason)
                    logger.warning("the %s could not be written: %s", self._log, reason)
                written.set_result(False)

    def close(self) -> None:
        """Write what waits, unless the disk does not answer."""
        with suppress(Full):
            self._waiting.put(None, timeout=PATIENCE)
        self._thread.join(PATIENCE)


class AccessLog:
    """A log of requests. Several processes can write it.

    `queries` is what it has of the texts that are searched for: nothing, keyed hashes, by which equal ones are known as
    long as the process runs, or the texts.
    """

    def __init__(self, path: Path, queries: QueryForm = "none"):
        self._queries, self._key = queries, secrets.token_bytes()
        self._file = _File(path)
        self._writer = Writer("access log")
        self.close = self._writer.close

    def begin(self) -> dict[str, Any]:
        """The line of a request that begins, to which `note` adds."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        _line.set(line)
        return line

    def end(self, line: dict[str, Any], route: str, status: int, seconds: float, id: str) -> None:
        """Log a request that is answered."""
        if route in UNLOGGED:
            return
        line |= {"id": id, "route": route, "status": status, "ms": round(1000 * seconds, 2)}
        if (texts := line.pop("texts", None)) and self._queries != "none":
            line["texts" if self._queries == "text" else "hashes"] = self._shown(texts)
        self._writer.submit(partial(self._file.emit, logging.makeLogRecord({"msg": json.dumps(line)})))

    def _shown(self, texts: Sequence[str]) -> list[str]:
        if self._queries == "text":
            return list(texts)
        return [hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()[:16] for text in texts]


class _File(WatchedFileHandler):
    """A file of lines, opened again when logrotate has moved it. Only its owner can read it."""

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:  # what people search for is nobody else's business
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", opener=private)

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # the error that is being handled
