"""Artifacts: results on disk, each with a manifest that records how it was made.

An artifact is a file or a folder. Its recipe says what shaped it (core.identity); its manifest, written last, says
whether it is complete and up to date (core.manifest); otherwise it is made again (core.writing). Two processes cannot
write the same artifact, and files that no stage has made are never deleted (core.ownership).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from cai_pyserini.core import writing
from cai_pyserini.core.files import destination, write_text
from cai_pyserini.core.identity import Recipe as Recipe
from cai_pyserini.core.identity import digest as digest
from cai_pyserini.core.identity import recipe as recipe
from cai_pyserini.core.manifest import FORMAT as FORMAT
from cai_pyserini.core.manifest import UNFINISHED as UNFINISHED
from cai_pyserini.core.manifest import Manifest as Manifest
from cai_pyserini.core.manifest import Stats as Stats
from cai_pyserini.core.manifest import file_digest as file_digest
from cai_pyserini.core.manifest import is_up_to_date as is_up_to_date
from cai_pyserini.core.manifest import manifest_path as manifest_path
from cai_pyserini.core.manifest import now as now
from cai_pyserini.core.manifest import outdated as outdated
from cai_pyserini.core.manifest import read_manifest as read_manifest
from cai_pyserini.core.manifest import require as require
from cai_pyserini.core.manifest import require_count as require_count
from cai_pyserini.core.manifest import require_if_ours as require_if_ours
from cai_pyserini.core.manifest import versions as versions
from cai_pyserini.core.ownership import artifact_files as artifact_files
from cai_pyserini.core.ownership import foreign_files as foreign_files
from cai_pyserini.core.ownership import require_writable as require_writable
from cai_pyserini.core.writing import Write as Write


def make(
    path: Path,
    recipe: Recipe,
    write: Write,
    *,
    folder: bool = True,
    resumable: bool = False,
    names: str = "[^/]*",
    result: str | None = None,
    shared: bool = False,
) -> Path:
    """Make the artifact at `path` unless it is up to date, and return `path`.

    `write` gets a temporary path, an empty folder or a file that does not exist yet, and returns statistics for the
    manifest. On success the temporary path replaces `path`; if `write` fails, it is deleted and `path` is unchanged.

    A `resumable` artifact is a folder that is written in place: `write` gets `path` itself, continues from the files
    of earlier attempts, and returns None while parts are missing. The artifact's files are those at the top of the
    folder whose names match the regular expression `names`; if names are arbitrary, `write` puts the files into the
    subfolder `result`, and they are moved to the top. Several processes can write a `shared` artifact together.

    Raises CaiError if `path` cannot be written, has files that no stage made, or is being written by another process.
    """
    if (why := outdated(path, recipe)) is None:
        return path
    if in_dry_run():
        raise NotUpToDate(why)
    start, place = time.perf_counter(), destination(path)
    require_writable(place, folder, in_place=resumable)
    attempt: writing.Attempt
    if resumable and result:
        attempt = writing.MovedToTop(place, recipe, write, start, result)
    elif resumable:
        attempt = writing.Parts(place, recipe, write, start, names, shared)
    elif not folder:
        attempt = writing.ReplacedFile(place.absolute(), recipe, write, start)
    else:
        attempt = writing.ReplacedFolder(place.absolute(), recipe, write, start)
    attempt.make()
    return path


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
