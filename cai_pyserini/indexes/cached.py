"""Indexes downloaded once, to `indexes` in Pyserini's cache."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import cache_home, remove, sync
from cai_pyserini.core.store import StorePath
from cai_pyserini.core.terminal import progress


def cached_index(name: str, get: Callable[[Path], Path]) -> Path:
    """The index `name` in the cache. If it is missing or damaged, `get` makes it inside a temporary folder."""
    target = cache_home() / "indexes" / name
    if artifact.read_manifest(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as work:
        folder = get(Path(work))
        artifact.require(folder, "index")
        sync(*folder.rglob("*"), folder)
        if not artifact.read_manifest(target):
            remove(target)
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    return target


def index_here(index: Path) -> Path:
    """The folder of an index on this machine. An index in an object store is downloaded if the cache lacks its current
    version; a symbolic link is resolved, because an update of the run redirects it."""
    if not isinstance(index, StorePath):
        target = Path(os.path.realpath(index))  # which, unlike resolve, raises nothing for a link to itself
        return index if target == index.absolute() else target
    manifest = artifact.require(index, "index")

    def get(work: Path) -> Path:
        download(index, work / "index")
        return work / "index"

    version = artifact.digest([str(index), manifest.digest, manifest.created])
    return cached_index(f"{version}/{index.name}", get)


def download(source: StorePath, folder: Path) -> None:
    """Copy an artifact from an object store. Raises CaiError if it changes meanwhile, or has file names with `..`."""
    before = artifact.read_manifest(source)
    files = list(source.rglob("*"))
    for file in progress(files, len(files), f"download {source.name}", "files"):
        if ".." in file.parts:
            raise CaiError(f"{file}: refused, as it is outside {source}")
        target = folder.joinpath(*file.relative_to(source).parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.download(target)
    if before is None or artifact.read_manifest(source) != before:
        raise CaiError(f"{source} was changed while it was downloaded: run the command again")
