"""Atomic file writes: each file is written under a temporary name, then renamed."""

import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import HOST

PARTIAL = re.compile(r"[^/]+-\d+-[0-9a-f]{8}\.partial")  # the name of an incomplete file or folder
MANIFEST = "manifest.json"  # name of a folder's manifest
POINTER = b"version https://git-lfs.github.com/spec/"  # how a Git LFS pointer file begins


def temporary(path: Path) -> Path:
    """A new path beside `path`, for what this process writes before it is renamed to `path`."""
    return path.with_name(f"{path.name}.{HOST}-{os.getpid()}-{secrets.token_hex(4)}.partial")


def remove_leftovers(folder: Path, name: str) -> None:
    """Delete partial files and folders of killed processes of this machine whose names without suffix match `name`."""
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
    """The target of a symbolic link; any other path unchanged."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def without_links(folder: Path) -> Path:
    """A folder by its path without symbolic links, which an update of a run redirects."""
    target = Path(os.path.realpath(folder))  # which, unlike resolve, raises nothing for a link to itself
    return folder if target == folder.absolute() else target


def destination(path: Path) -> Path:
    """The path that a write to `path` replaces, with links resolved. Raises CaiError for a device or pipe."""
    path = resolved(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CaiError(f"{path} is neither a file nor a folder: choose another output")
    return path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` on success and is deleted on failure."""
    path = destination(path)
    partial = temporary(path)
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
    """Raise CaiError for a Git LFS pointer in place of the file itself."""
    with suppress(OSError), path.open("rb") as file:  # the caller reports other errors when it reads the file
        if file.read(len(POINTER)) == POINTER:
            raise CaiError(
                f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull` in {path.parent}, or "
                "download the file"
            )


def require_file(path: Path, what: str = "file") -> None:
    """Raise CaiError for a path that is not a file."""
    if not path.is_file():
        raise CaiError(f"{path} is a folder, not a {what}" if path.is_dir() else f"no {what} {path}")


def json_text(value: Any, **options: Any) -> str:
    """A value as indented JSON, with a final newline; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_without_nan(value), indent=1, allow_nan=False, **options) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [*map(_without_nan, value)] if isinstance(value, list | tuple) else value


def sync(*paths: Path) -> None:
    """Flush files, and the entries of folders, to disk, so that they survive a power cut."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def cache_home() -> Path:
    """The folder of Pyserini's downloads, in which this package has its own, too."""
    return Path(os.environ.get("PYSERINI_CACHE") or Path.home() / ".cache" / "pyserini")


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
