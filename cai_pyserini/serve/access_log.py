"""The access log: a JSON object per request, a line each, in a file that changes every day.

A thread of its own writes it, so that no request waits for the disk. Lines are lost rather than requests: while the
disk is full or does not answer, and if the process is killed.
"""

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from logging.handlers import TimedRotatingFileHandler
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any, Literal

QueryForm = Literal["none", "hash", "text"]  # of the queries in the log

WAITING = 10_000  # lines at most
PATIENCE = 5.0  # seconds for the last lines
DATED = re.compile(r"\d{4}-\d\d-\d\d")
UNLOGGED = {"/health", "/ready", "/metrics"}  # which machines ask for all the time
logger = logging.getLogger(__name__)
_line: ContextVar[dict[str, Any]] = ContextVar("line")  # of the request that is being answered


def note(**facts: Any) -> None:
    """Add facts to the line of the request that is being answered, if there is a log."""
    _line.get({}).update(facts)


class AccessLog:
    """A log of requests that is kept for `days`.

    `queries` is what it has of the texts that are searched for: nothing, keyed hashes, by which equal ones are known as
    long as the process runs, or the texts.
    """

    def __init__(self, path: Path, days: int, queries: QueryForm = "none"):
        self._queries, self._key = queries, secrets.token_bytes()
        self._file = _DailyFile(path, days)
        self._lines: Queue[str | None] = Queue(WAITING)
        self._thread = Thread(target=self._write, name="access log", daemon=True)
        self._thread.start()

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
        with suppress(Full):
            self._lines.put_nowait(json.dumps(line))

    def _shown(self, texts: Sequence[str]) -> list[str]:
        if self._queries == "text":
            return list(texts)
        return [hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()[:16] for text in texts]

    def _write(self) -> None:
        for line in iter(self._lines.get, None):
            self._file.emit(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Write the last lines, unless the disk does not answer."""
        with suppress(Full):
            self._lines.put(None, timeout=PATIENCE)
        self._thread.join(PATIENCE)


class _DailyFile(TimedRotatingFileHandler):
    """A file of lines that at midnight, UTC, gets its date as a suffix; after so many days, it is deleted."""

    def __init__(self, path: Path, days: int):
        self._days = timedelta(days=days)
        self._said: set[str] = set()
        super().__init__(path, "midnight", backupCount=days, encoding="utf-8", utc=True)

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:  # what people search for is nobody else's business
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, "a", encoding=self.encoding, opener=private)

    def getFilesToDelete(self) -> list[str]:
        """Those of too long ago; the class itself would count files, and days without a request have none."""
        current = Path(self.baseFilename)
        oldest = (datetime.now(UTC) - self._days).date().isoformat()
        dated = ((path, path.name.removeprefix(f"{current.name}.")) for path in current.parent.iterdir())
        return [str(path) for path, date in dated if DATED.fullmatch(date) and date < oldest]

    def handleError(self, record: logging.LogRecord) -> None:
        error = str(sys.exc_info()[1])
        if error not in self._said:
            self._said.add(error)
            logger.warning("the access log could not be written: %s", error)
