"""Locks: files that say who is at work. The system frees the lock of a process that ends, however it ends.

An object store has no locks: there, such a file only tells whether somebody else has begun meanwhile.
"""

import errno
import fcntl
import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.store import StorePath

HOST = socket.gethostname()

Note = dict[str, Any]  # what is written into a lock, JSON
SHARED: Note = {"shared": True}


@dataclass
class Lock:
    """A lock that is held on `place`, by all whose notes contain `note`."""

    place: Path
    what: Path
    note: Note
    alone: bool = True
    file: IO[str] | None = None

    def share(self) -> None:
        """Let others in that share it. Another may be alone meanwhile, as the system frees the lock for a moment."""
        while self.file and not _flock(self.file, fcntl.LOCK_SH):
            _wait_to_share(self.what, self.note | SHARED, self.place)

    def remove(self) -> None:
        """Delete the file, unless it is that of another by now."""
        if not self.file or _is_at(self.file, self.place):
            self.place.unlink(missing_ok=True)

    def add(self, **more: Any) -> None:
        if self.file:
            note = read_note(self.place) | more
            self.file.truncate(0)
            self.file.write(json.dumps(note) + "\n")
            self.file.flush()

    def require_held(self) -> None:
        """Raise CaiError if somebody else has begun, where locks could not prevent it."""
        if not self.note.items() <= (now := read_note(self.place)).items():
            raise CaiError(f"{self.what} was begun again by {named(now)}: run the command again when that has ended")


@contextmanager
def locked(
    place: Path, what: Path, note: Note, more: Callable[[], Note] = dict, shared: bool = False
) -> Iterator[Lock]:
    """Hold the lock file `place`, into which `note`, what `more` returns, and who holds it are written.

    Several processes hold it together if their notes are equal and all are `shared`: the first one is alone until it
    calls `share`, for which the others wait; it has written the note. Raises CaiError, which names the holder, if
    another process is at work on `what`. The file remains unless it is deleted while the lock is held.
    """
    note = note | SHARED if shared else note
    if isinstance(place, StorePath):
        place.put(_text(note | more()))
        yield Lock(place, what, note)
        return
    while True:
        with place.open("a+", encoding="utf-8") as file:
            alone = _flock(file, fcntl.LOCK_EX)
            if not alone and not (shared and _flock(file, fcntl.LOCK_SH)):
                if not shared:
                    raise _busy(what, read_note(place))
                _wait_to_share(what, note, place)
                continue
            if not _is_at(file, place):
                continue  # its holder has deleted it
            if alone:
                text = _text(note | more())
                file.truncate(0)
                file.write(text)
                file.flush()
            elif not note.items() <= (before := read_note(place)).items():
                raise _busy(what, before)
            yield Lock(place, what, note, alone, file)
            return


def _wait_to_share(what: Path, note: Note, place: Path) -> None:
    """Wait a little for a holder that is about to share. Raises CaiError for any other."""
    if (before := read_note(place)) and not note.items() <= before.items():
        raise _busy(what, before)
    time.sleep(0.01)


def _text(note: Note) -> str:
    return json.dumps(note | {"host": HOST, "process": os.getpid(), "since": _now()}) + "\n"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Change files of a folder, one process after the other."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _flock(descriptor, fcntl.LOCK_EX, wait=True)
        yield
    finally:
        os.close(descriptor)


def execute_alone(database: sqlite3.Connection, path: Path, script: str) -> None:
    """Execute statements that set up the database at `path`: SQLite does not wait where two choose the journal."""
    with alone_in(path.parent):  # closing the file itself would free SQLite's locks
        database.executescript(script)


def holder(place: Path) -> Note | None:
    """The note of whoever holds a lock; None if nobody does."""
    if place.is_file() and not isinstance(place, StorePath):
        with place.open(encoding="utf-8") as file:
            if not _flock(file, fcntl.LOCK_SH):
                return read_note(place)
    return None


def require_free(place: Path, what: Path) -> None:
    """Raise CaiError, which names the holder, if a lock is held."""
    if (note := holder(place)) is not None:
        raise _busy(what, note)


def read_note(place: Path) -> Note:
    """The note in a lock file; empty where there is none."""
    try:
        note = json.loads(place.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _flock(file: IO[str] | int, kind: int, wait: bool = False) -> bool:
    """Whether a lock could be had; some network file systems have none, and give it to all."""
    try:
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    return True


def _is_at(file: IO[str], place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), place.stat())
    except FileNotFoundError:
        return False


def _busy(what: Path, note: Note) -> CaiError:
    return CaiError(f"{what} is being written by {named(note)}: wait until it has ended, or choose another --output")


def named(note: Note) -> str:
    """Whose note it is."""
    return "process {process} on {host}, since {since}".format(**note) if "process" in note else "another process"


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z")
