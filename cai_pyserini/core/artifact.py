"""Artifacts: results on disk, each with a manifest that records how it was made.

An artifact is a file or a folder. Its recipe says what shaped it (core.identity); its manifest, written last, says
whether it is complete and up to date (core.manifest); otherwise it is made again. Two processes cannot write the same
artifact, and files that no stage has made are never deleted.

A file or folder is written under a temporary name, and replaces the artifact as a whole. A resumable folder is written
in place, marked as unfinished until its manifest is there. Nothing half-written is ever taken for whole.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from cai_pyserini.core.files import (
    MANIFEST,
    PARTIAL,
    destination,
    remove,
    remove_leftovers,
    sync,
    temporary,
    write_text,
)
from cai_pyserini.core.identity import Recipe as Recipe
from cai_pyserini.core.identity import digest as digest
from cai_pyserini.core.identity import recipe as recipe
from cai_pyserini.core.lock import Note, locked, read_note
from cai_pyserini.core.manifest import FORMAT as FORMAT
from cai_pyserini.core.manifest import UNFINISHED as UNFINISHED
from cai_pyserini.core.manifest import Manifest as Manifest
from cai_pyserini.core.manifest import Stats as Stats
from cai_pyserini.core.manifest import artifact_files as artifact_files
from cai_pyserini.core.manifest import file_digest as file_digest
from cai_pyserini.core.manifest import foreign_files as foreign_files
from cai_pyserini.core.manifest import is_up_to_date as is_up_to_date
from cai_pyserini.core.manifest import lock_path, manifest_data, sizes_in
from cai_pyserini.core.manifest import manifest_path as manifest_path
from cai_pyserini.core.manifest import now as now
from cai_pyserini.core.manifest import outdated as outdated
from cai_pyserini.core.manifest import read_manifest as read_manifest
from cai_pyserini.core.manifest import require as require
from cai_pyserini.core.manifest import require_count as require_count
from cai_pyserini.core.manifest import require_if_ours as require_if_ours
from cai_pyserini.core.manifest import require_writable as require_writable
from cai_pyserini.core.manifest import versions as versions

Write = Callable[[Path], Stats | None]


def make(
    path: Path,
    recipe: Recipe,
    write: Write,
    *,
    folder: bool = True,
    resumable: bool = False,
    names: str = "[^/]*",
    shared: bool = False,
) -> Path:
    """Make the artifact at `path` unless it is up to date, and return `path`.

    `write` gets a temporary path, an empty folder or a file that does not exist yet, and returns statistics for the
    manifest. On success the temporary path replaces `path`; if `write` fails, it is deleted and `path` is unchanged.

    A `resumable` artifact is a folder that is written in place: `write` gets `path` itself, continues from the files
    of earlier attempts, and returns None while parts are missing. The artifact's files are those at the top of the
    folder whose names match the regular expression `names`. Several processes can write a `shared` artifact together.

    Raises CaiError if `path` cannot be written, has files that no stage made, or is being written by another process.
    """
    if (why := outdated(path, recipe)) is None:
        return path
    if in_dry_run():
        raise NotUpToDate(why)
    start, place = time.perf_counter(), destination(path)
    require_writable(place, folder, in_place=resumable)
    if resumable:
        _write_in_place(place, recipe, write, start, names=names, shared=shared)
    else:
        _replace(place.absolute(), recipe, write, start, folder)
    return path


def _replace(path: Path, recipe: Recipe, write: Write, start: float, folder: bool) -> None:
    """Write the artifact to a temporary path, which then replaces it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (temporary(path.with_name(f".{path.name}")) for _ in range(2))
    with locked(lock_path(path), path, {}) as lock:
        try:
            if is_up_to_date(path, recipe):  # another process has just made it
                return
            remove_leftovers(path.parent, rf"\.?{re.escape(path.name)}(?:\.manifest\.json)?")
            if folder:
                partial.mkdir()
            stats = write(partial)
            require_writable(path, folder)  # again, as it has taken long
            if folder:
                write_text(partial / MANIFEST, Manifest.new(recipe, stats, sizes_in(partial), start).text())
                sync(*partial.rglob("*"), partial)
                if path.exists():
                    path.rename(old)  # deleted later: an interruption here would lose it
                partial.replace(path)
            else:
                sync(partial)
                manifest, sizes = manifest_path(path), {path.name: partial.stat().st_size}
                write_text(manifest, Manifest.new(recipe, stats, {}, start).text())  # without files: means unfinished
                partial.replace(path)
                write_text(manifest, Manifest.new(recipe, stats, sizes, start).text())
            sync(path.parent)
        finally:
            if old.exists() and not path.exists():
                old.rename(path)
            remove(partial)
            remove(old)
            lock.place.unlink(missing_ok=True)


def _write_in_place(path: Path, recipe: Recipe, write: Write, start: float, *, names: str, shared: bool) -> None:
    """Write a folder that an attempt continues from the files of earlier ones."""
    path.mkdir(parents=True, exist_ok=True)

    def others() -> Note:
        """The files of others, before this or another process writes any."""
        return {"others": foreign_files(path)}

    with locked(path / UNFINISHED, path, {"digest": digest(recipe)}, others, shared) as lock:
        theirs = {*read_note(lock.place)["others"]}
        if lock.alone:
            remove_leftovers(path, r".*")
            before = manifest_data(path)
            stale = before.get("files", ()) if before and before["digest"] != digest(recipe) else ()
            if not is_up_to_date(path, recipe):
                for name in (MANIFEST, *stale):
                    (path / name).unlink(missing_ok=True)
                if shared:
                    lock.share()
        if not is_up_to_date(path, recipe):
            if (stats := write(path)) is None:
                return  # parts are missing
            if not is_up_to_date(path, recipe):  # else another process that shares the work has finished it
                for file in [*path.iterdir()]:  # what killed attempts have left, also on other machines
                    if PARTIAL.fullmatch(file.name) and not file.name.startswith(MANIFEST):
                        file.unlink(missing_ok=True)
                sizes = sizes_in(path)
                own = [name for name in sizes if name not in theirs and re.fullmatch(names, name)]
                sync(*(path / name for name in own), path)
                manifest = Manifest.new(recipe, stats, {name: sizes[name] for name in own}, start)
                write_text(path / MANIFEST, manifest.text())
        lock.remove()


class NotUpToDate(Exception):
    """Raised in a dry run instead of making an artifact; the message says why it must be made."""


_dry_run = ContextVar("dry_run", default=False)


@contextmanager
def dry_run() -> Iterator[None]:
    """Make `make` raise NotUpToDate instead of making anything."""
    token = _dry_run.set(True)
    try:
        yield
    finally:
        _dry_run.reset(token)


def in_dry_run() -> bool:
    return _dry_run.get()


def renew(path: Path, text: str) -> None:
    """Rewrite a small file of a complete artifact if its text differs; a dry run changes nothing."""
    if not in_dry_run() and (not path.is_file() or path.read_text(encoding="utf-8") != text):
        write_text(path, text)


def outdate(path: Path) -> None:
    """Mark an artifact as outdated for every recipe, because its inputs changed while it was made."""
    if manifest := read_manifest(path):
        recipe = manifest.recipe | {"version": 0}
        write_text(manifest_path(path), replace(manifest, recipe=recipe, digest=digest(recipe)).text())
