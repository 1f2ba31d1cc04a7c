"""Files that are whole or absent: each is written under a name of its own, and renamed."""

import json
import math
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import HOST
from cai_pyserini.core.store import StorePath

PARTIAL = re.compile(r"[^/]+-\d+-[0-9a-f]{8}\.partial")  # the name of what a process has not completed
MANIFEST = "manifest.json"  # of a folder
POINTER = b"version https://git-lfs.github.com/spec/"  # begins what Git LFS puts in place of a large file


def own_suffix() -> str:
    """The end of the name of a file or folder that is not complete."""
    return f".{HOST}-{os.getpid()}-{secrets.token_hex(4)}.partial"


def remove_leftovers(folder: Path, name: str) -> None:
    """Delete what killed processes of this machine have left of files and folders whose names match."""
    own = re.compile(rf"{name}(\.{re.escape(HOST)}-(\d+)-[0-9a-f]{{8}}\.partial)+")
    for path in [*folder.iterdir()]:
        if (found := own.fullmatch(path.name)) and not _is_running(int(found[2])):
            remove(path)


def _is_running(process: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True


def remove(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        (path / MANIFEST).unlink(missing_ok=True)  # first, so that a half-deleted folder is not used
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def resolved(path: Path) -> Path:
    """What a link leads to; any other path as it is."""
    return path if isinstance(path, StorePath) or not path.is_symlink() else Path(os.path.realpath(path))


def destination(path: Path) -> Path:
    """Where what is written to `path` goes. Raises CaiError for a device or pipe, which a file would replace."""
    path = resolved(path)
    if not isinstance(path, StorePath) and path.exists() and not (path.is_file() or path.is_dir()):
        raise CaiError(f"{path} is neither a file nor a folder: choose another --output")
    return path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path of one's own, which replaces `path` on success and is deleted on failure."""
    path = destination(path)
    if isinstance(path, StorePath):
        with tempfile.TemporaryDirectory() as folder:
            yield (partial := Path(folder) / path.name)
            path.upload(partial)
        return
    partial = path.with_name(path.name + own_suffix())
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def require_content(path: Path) -> None:
    """Raise CaiError for a file of which a clone has only the pointer of Git LFS."""
    with suppress(OSError), path.open("rb") as file:  # what reads the file reports it
        if file.read(len(POINTER)) == POINTER:
            raise CaiError(
                f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull` in {path.parent}, or "
                "download the file"
            )


def require_file(path: Path, what: str = "file") -> None:
    """Raise CaiError for a path that is not a file."""
    if not path.is_file():
        raise CaiError(f"{path} is a folder, not a {what}" if path.is_dir() else f"no {what} {path}")


def json_text(value: Any, **how: Any) -> str:
    """A value as JSON, indented, and a line break. JSON has no NaN and no infinity: undefined numbers are null."""
    return json.dumps(_defined(value), indent=1, allow_nan=False, **how) + "\n"


def _defined(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _defined(item) for key, item in value.items()}
    return [*map(_defined, value)] if isinstance(value, list | tuple) else value


def sync(*paths: Path) -> None:
    """Have the disk hold the contents of files, and the names in folders, so that they survive a power cut."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
