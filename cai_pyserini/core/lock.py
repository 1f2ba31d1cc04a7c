"""Lock files that record their holder. The system releases the lock of a process that ends, however it ends."""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cai_pyserini.core.errors import CaiError

HOST = socket.gethostname()

Note = dict[str, Any]  # the JSON content of a lock file
SHARED: Note = {"shared": True}


@dataclass
class Lock:
    """A held lock: the file `place` protects `what`. Its holders all have the same `note`."""

    place: Path
    what: Path
    note: Note
    alone: bool
    file: IO[str]

    def share(self) -> None:
        """Admit processes that share the lock. It is free for a moment, in which another may become its sole holder."""
        while not _flock(self.file, fcntl.LOCK_SH):
            _wait_to_share(self.what, self.note | SHARED, self.place)

    def remove(self) -> None:
        """Delete the file, unless another process has replaced it."""
        if _is_at(self.file, self.place):
            self.place.unlink(missing_ok=True)


@contextmanager
def locked(
    place: Path, what: Path, note: Note, more: Callable[[], Note] = dict, shared: bool = False
) -> Iterator[Lock]:
    """Hold the lock file `place`, with `note`, the result of `more`, and the holder in it. The file remains unless it
    is deleted while the lock is held. Raises CaiError, which names the holder, if another process works on `what`.

    Several processes can hold the lock together if it is `shared` and their notes are equal. The first, which writes
    the note, holds it alone until it calls `share`; the others wait.
    """
    note = note | SHARED if shared else note
    while True:
        with place.open("a+", encoding="utf-8") as file:
            alone = _flock(file, fcntl.LOCK_EX)
            if not alone and not (shared and _flock(file, fcntl.LOCK_SH)):
                if not shared:
                    raise _busy(what, read_note(place))
                _wait_to_share(what, note, place)
                continue
            if not _is_at(file, place):
                continue  # the previous holder has deleted the file
            if alone:
                text = _text(note | more())
                file.truncate(0)
                file.write(text)
                file.flush()
            elif not note.items() <= (current := read_note(place)).items():
                raise _busy(what, current)
            yield Lock(place, what, note, alone, file)
            return


def _wait_to_share(what: Path, note: Note, place: Path) -> None:
    """Wait a little for a holder that will share the lock. Raises CaiError if the holder will not."""
    if (current := read_note(place)) and not note.items() <= current.items():
        raise _busy(what, current)
    time.sleep(0.01)


def _text(note: Note) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    return json.dumps(note | {"host": HOST, "process": os.getpid(), "since": since}) + "\n"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, and wait for it, so that one process at a time changes its files. A database is set up
    under it, as SQLite fails if two processes set the journal mode at once, and closing a lock on its own file would
    release SQLite's."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _flock(descriptor, fcntl.LOCK_EX, wait=True)
        yield
    finally:
        os.close(descriptor)


def holder(place: Path) -> Note | None:
    """The note of the holder of a lock; None if the lock is free."""
    if place.is_file():
        with place.open(encoding="utf-8") as file:
            if not _flock(file, fcntl.LOCK_SH):
                return read_note(place)
    return None


def require_free(place: Path, what: Path) -> None:
    """Raise CaiError, which names the holder, if a lock is held."""
    if (note := holder(place)) is not None:
        raise _busy(what, note)


def read_note(place: Path) -> Note:
    """The note in a lock file; empty if there is none."""
    try:
        note = json.loads(place.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _flock(file: IO[str] | int, kind: int, wait: bool = False) -> bool:
    """Take a lock, and return whether that succeeded; on network file systems without locks it always does."""
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
    remedy = "wait until it has ended, or choose another output"
    return CaiError(f"{what} is being written by {holder_name(note)}: {remedy}")


def holder_name(note: Note) -> str:
    """The process that wrote a note, for messages."""
    return "process {process} on {host}, since {since}".format(**note) if "process" in note else "another process"
