"""Artifacts: results on disk or in an object store, each with a manifest that records how it was made.

An artifact is a file or a folder. Its recipe is everything that its contents depend on: the stage, the settings and the
digests of the inputs. The manifest contains the recipe and is written last. So an artifact whose manifest has the
expected recipe is complete and up to date; any other is made again.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cai_pyserini import __version__
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.store import StorePath
from cai_pyserini.core.terminal import progress

FORMAT = 3  # of all artifacts; raised when the layout of any of them changes
UNFINISHED = ".unfinished"  # marks a folder that is written in place
PACKAGES = ("pyserini", "torch", "transformers", "tokenizers")  # whose versions a manifest records, where installed

Recipe = dict[str, Any]  # JSON values; `stage` is the command that makes the artifact
Stats = dict[str, Any]  # counts and measurements from making it


@dataclass(frozen=True)
class Manifest:
    """The manifest of a complete artifact."""

    recipe: Recipe
    digest: str  # of the recipe
    stats: Stats  # with `seconds`, the time it took
    versions: dict[str, str]  # of packages
    created: str  # UTC
    format: int = FORMAT


def make(
    path: Path,
    recipe: Recipe,
    write: Callable[[Path], Stats | None],
    *,
    folder: bool = True,
    resumable: bool = False,
) -> Path:
    """Make the artifact at `path` unless it is up to date, and return `path`.

    `write` is called with a temporary path, an empty folder or a file that does not exist yet, and returns statistics
    for the manifest. On success the temporary path replaces `path`; if `write` fails, it is deleted, and `path` stays
    as it was.

    A `resumable` artifact is a folder that is written in place: `write` gets `path` itself, must recognize what an
    earlier attempt left there, and returns None as long as something is missing.

    Any other folder in an object store is written on this machine, and then uploaded.

    Raises CaiError for a path that cannot be written, or that has files that are not ours.
    """
    if is_up_to_date(path, recipe):
        return path
    require_writable(path, folder)
    if isinstance(path, StorePath) and folder and not resumable:
        (path / UNFINISHED).touch()  # first, so that a store that refuses it costs no time
        with tempfile.TemporaryDirectory() as work:
            _upload(make(Path(work) / path.name, recipe, write), path)
        return path
    if folder and not resumable and path.resolve() == Path.cwd():
        raise CaiError(f"{path} is the current folder, which cannot be replaced: choose another --output")
    start = time.perf_counter()
    if resumable:
        path.mkdir(parents=True, exist_ok=True)
        (path / UNFINISHED).touch()
        manifest_path(path).unlink(missing_ok=True)
        if (stats := write(path)) is not None:
            for leftover in path.glob("*.partial"):  # of attempts that were killed
                leftover.unlink(missing_ok=True)
            _finish(path, recipe, stats, start)
            (path / UNFINISHED).unlink(missing_ok=True)
        return path
    partial = path.with_name(f".{path.name}.partial")
    remove(partial)
    (partial if folder else partial.parent).mkdir(parents=True, exist_ok=True)
    try:
        stats = write(partial)
        if folder:
            _finish(partial, recipe, stats or {}, start)
            remove(path)
            partial.rename(path)
        else:
            manifest_path(path).unlink(missing_ok=True)
            partial.replace(path)
            _finish(path, recipe, stats or {}, start)
    except BaseException:
        remove(partial)
        raise
    return path


def _finish(path: Path, recipe: Recipe, stats: Stats, start: float) -> None:
    """Write the manifest, which marks the artifact as complete."""
    stats = {"seconds": round(time.perf_counter() - start, 3)} | stats
    manifest = Manifest(recipe, digest(recipe), stats, _versions(), now())
    write_text(manifest_path(path), json.dumps(asdict(manifest), indent=1) + "\n")


def _upload(folder: Path, target: StorePath) -> None:
    """Replace an artifact in an object store, which is complete as soon as its manifest is there."""
    manifest = manifest_path(folder)
    (target / manifest.name).unlink(missing_ok=True)
    files = [path for path in folder.rglob("*") if path.is_file() and path != manifest]
    for stale in set(target.rglob("*")) - {target / path.relative_to(folder) for path in files}:
        if stale.name != UNFINISHED:
            stale.unlink(missing_ok=True)
    for path in progress([*files, manifest], len(files) + 1, f"upload {target.name}", "file"):
        (target / path.relative_to(folder)).upload(path)
    (target / UNFINISHED).unlink(missing_ok=True)


def download(source: StorePath, folder: Path) -> None:
    """Copy an artifact from an object store. Raises CaiError if it is replaced meanwhile, or has names with `..`."""
    before = read_manifest(source)
    files = list(source.rglob("*"))
    for file in progress(files, len(files), f"download {source.name}", "file"):
        if ".." in file.parts:
            raise CaiError(f"{file}: refused, as it is outside {source}")
        target = folder.joinpath(*file.relative_to(source).parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.download(target)
    if before is None or read_manifest(source) != before:
        raise CaiError(f"{source} was changed while it was downloaded: run the command again")


def _versions() -> dict[str, str]:
    """The versions of this package and PACKAGES; a machine that only encodes may not have all of them."""
    versions = {"cai_pyserini": __version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def digest(recipe: Any) -> str:
    """A short hash of a JSON value: equal values have equal digests."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, cached by size and modification time."""
    status = path.stat()
    return _file_digest(path, status.st_size, status.st_mtime_ns)


@cache
def _file_digest(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_path(path: Path) -> Path:
    """`<folder>/manifest.json`, or `<file>.manifest.json` beside a file."""
    return path / "manifest.json" if path.is_dir() else path.with_name(path.name + ".manifest.json")


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a complete artifact; None if it has none, or one in another FORMAT. Raises CaiError if broken."""
    place = manifest_path(path)
    if not path.exists() or not place.exists():
        return None
    remedy = f"delete {path} and make it again"
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CaiError(f"{place}:{error.lineno}: not a manifest ({error.msg}); {remedy}") from None
    if not isinstance(data, dict) or not {"recipe", "digest"} <= data.keys():
        raise CaiError(f"{place}: not a manifest (recipe or digest is missing); {remedy}")
    if data.get("format") != FORMAT:
        return None
    if data.keys() != {field.name for field in fields(Manifest)}:
        raise CaiError(f"{place}: not a manifest (it has been changed); {remedy}")
    return Manifest(**data)


def require(path: Path, *stages: str) -> Manifest:
    """The manifest of an artifact of one of these stages. Raises CaiError if it is missing, unfinished or of another
    stage."""
    command = f"`python -m cai_pyserini.{stages[0]}`"
    manifest = read_manifest(path)
    if manifest is None and path.exists() and manifest_path(path).exists():
        raise CaiError(f"{path} was made by another version of cai_pyserini: make it again with {command}")
    if manifest is None:
        raise CaiError(f"{path} is missing or unfinished: make it with {command}")
    if manifest.recipe["stage"] not in stages:
        raise CaiError(f"{path} was made by stage {manifest.recipe['stage']!r}, not by {stages[0]!r}")
    return manifest


def is_up_to_date(path: Path, recipe: Recipe) -> bool:
    """Whether the artifact is complete and was made by exactly this recipe."""
    manifest = read_manifest(path)
    return manifest is not None and manifest.digest == digest(recipe)


def require_writable(path: Path, folder: bool = True, marker: str = UNFINISHED) -> None:
    """Raise CaiError if an artifact cannot be written, or would replace a folder that is not ours.

    A folder is ours if it is empty, complete, unfinished, or has the file `marker`.
    """
    markers = (marker, "manifest.json", UNFINISHED)
    if folder and path.is_file():
        raise CaiError(f"{path} is a file: choose a folder for --output")
    if not folder and path.is_dir():
        raise CaiError(f"{path} is a folder: choose a file for --output")
    if path.is_dir() and any(path.iterdir()) and not any((path / name).exists() for name in markers):
        raise CaiError(f"{path} has files that this command has not made: choose another --output, or empty it")
    if isinstance(path, StorePath):
        return  # the first write there shows it
    parent = next(p for p in (path, *path.absolute().parents) if p.is_dir())
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if existing != path and existing.is_file():
        raise CaiError(f"{path} cannot be written: {existing} is a file; choose another --output")
    if not os.access(parent, os.W_OK):
        raise CaiError(f"{path} cannot be written: {parent} is read-only; choose another --output")


def remove(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir():
        (path / "manifest.json").unlink(missing_ok=True)  # first, so that a half-deleted folder is not used
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def now() -> str:
    """The current time in UTC, in a format that sorts."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextmanager
def atomic_write(path: Path, writer: str = "") -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` on success and is deleted on failure.

    Where several may write the same file at once, `writer` tells them apart.
    """
    if isinstance(path, StorePath):
        with tempfile.TemporaryDirectory() as folder:
            yield (partial := Path(folder) / path.name)
            path.upload(partial)
        return
    partial = path.with_name(f"{path.name}{writer and f'.{writer}'}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def folder_bytes(folder: Path) -> int:
    """The total size of the files in a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
