"""The folders of an update: the run, the next one beside it, and earlier ones.

The next run is made in `.RUN.next`, whose marker tells it from the run that was there before: they change places in one
step, after which the earlier run becomes RUN.before-TIME, and the marker is deleted. So a killed update leaves either
run whole in its place, and the next one knows what is left to do.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cai_pyserini.beir.run_folder import RunFolder
from cai_pyserini.core.artifact import UNFINISHED, file_digest
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import own_suffix, remove, remove_leftovers, sync, write_text
from cai_pyserini.core.lock import locked, read_note

MARKER = ".next"  # of the next run: {"of": digest of the results of the run that it is made from}
COMPLETE = {"complete": True}  # is added before the swap
NOT_LINKED = (".lock", MARKER, "write.lock", "*.partial")  # they belong to a process
HERE, EXCHANGE = -100, 2  # Linux: AT_FDCWD, RENAME_EXCHANGE
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)  # of a file system that cannot


def next_of(run: Path) -> Path:
    return run.with_name(f".{run.name}.next")


def earlier(run: Path) -> list[Path]:
    """The runs that were in the place of a run, the oldest first."""
    name = re.compile(rf"{re.escape(run.name)}\.before-\d{{8}}T\d{{6}}Z")
    return sorted(path for path in run.parent.iterdir() if name.fullmatch(path.name))


@contextmanager
def updating(run: Path) -> Iterator[RunFolder]:
    """Open a run, keep other updates and `beir` away from it, and end the swap of a killed update. Raises CaiError for
    a folder without a finished run."""
    if not run.parent.is_dir():
        raise CaiError(f"no folder {run}")
    with locked(run.with_name(f".{run.name}.lock"), run, {}) as lock:
        try:
            remove_leftovers(run.parent, rf"\.{re.escape(run.name)}")
            if not run.exists() and COMPLETE.items() <= read_note(next_of(run) / MARKER).items():  # between two renames
                next_of(run).rename(run)
            _tidy(run)
            of_run = RunFolder(run)
            of_run.results  # noqa: B018 - or an error, before there is a lock in a folder that is not ours
            with locked(of_run.lock, run, {}):
                yield of_run
        finally:
            lock.place.unlink(missing_ok=True)


def begin(run: Path) -> Path:
    """The folder of the next run, with the files of the run: links, where the file system has them, since no file is
    ever changed in place. Continues an interrupted update, unless the run has been changed since."""
    folder, note = next_of(run), {"of": file_digest(RunFolder(run).results_file)}
    if folder.exists() and not note.items() <= read_note(folder / MARKER).items():
        _discard_next(run)
    if not folder.exists():
        partial = folder.with_name(f".{run.name}{own_suffix()}")
        try:
            shutil.copytree(run, partial, ignore=shutil.ignore_patterns(*NOT_LINKED), copy_function=_link)
            RunFolder(partial).lock.touch()  # shows that it is a run folder
            write_text(partial / MARKER, json.dumps(note) + "\n")
            partial.rename(folder)
        finally:
            remove(partial)
    return folder


def swap(run: Path) -> Path:
    """Let the next run, which is complete, take the place of a run; returns where the earlier one is now."""
    folder, known = next_of(run), earlier(run)
    write_text(folder / MARKER, json.dumps(read_note(folder / MARKER) | COMPLETE) + "\n")
    for root, _, names in folder.walk():  # of links, nothing is left to write
        sync(*(root / name for name in names), root)
    if not _exchange(folder, run):
        run.rename(_before(run))
        folder.rename(run)
    _tidy(run)
    sync(run.parent)
    return next(path for path in earlier(run) if path not in known)


def clean(run: Path) -> list[Path]:
    """Remove what an interrupted update of a run has left, and all earlier runs. Returns the folders."""
    run = run.resolve()
    with updating(run):
        unfinished = [next_of(run)] if next_of(run).exists() else []
        if unfinished:
            _discard_next(run)
        return [*prune(run, 0), *unfinished]


def prune(run: Path, keep: int) -> list[Path]:
    """Remove all earlier runs but the last `keep`, and return them."""
    found = earlier(run)
    old = found[: max(len(found) - keep, 0)]
    for folder in old:
        _discard(run, folder)
    return old


def _tidy(run: Path) -> None:
    """After a swap: give the earlier run its name, and delete the marker of the new one."""
    if (run / MARKER).exists():
        if next_of(run).exists():
            next_of(run).rename(_before(run))
        (run / MARKER).unlink()


def _before(run: Path) -> Path:
    return run.with_name(f"{run.name}.before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")


def _discard_next(run: Path) -> None:
    if not (next_of(run) / MARKER).exists():
        raise CaiError(f"{next_of(run)} has files that this command has not made: move them away")
    _discard(run, next_of(run))


def _discard(run: Path, folder: Path) -> None:
    """Remove a folder, under a name that nobody takes for that of a run."""
    partial = run.with_name(f".{run.name}{own_suffix()}")
    folder.rename(partial)
    remove(partial)


def _link(source: str, target: str) -> None:
    if Path(source).name != UNFINISHED:  # a lock, into which its holder writes
        with suppress(OSError):  # another disk, or a file system without links
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot."""
    with suppress(AttributeError):  # no such function: not Linux
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(HERE, os.fsencode(first), HERE, os.fsencode(second), EXCHANGE) == 0:
            return True
        if (error := ctypes.get_errno()) not in NO_EXCHANGE:
            raise OSError(error, os.strerror(error), str(second))
    return False
