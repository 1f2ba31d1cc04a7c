"""Artifacts: results on disk or in an object store, each with a manifest that records how it was made.

An artifact is a file or a folder. Its recipe says what shaped it (core.identity). The manifest holds the recipe and
the file sizes, and is written last, so an artifact is complete and up to date if its manifest has the expected recipe
and its files have the recorded sizes; otherwise it is made again. Two processes cannot write the same artifact, and
files that no stage has made are never deleted.
"""

import hashlib
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from glob import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import (
    MANIFEST,
    PARTIAL,
    atomic_write,
    destination,
    json_text,
    partial_suffix,
    remove,
    remove_leftovers,
    require_file,
    resolved,
    sync,
    write_text,
)
from cai_pyserini.core.identity import Recipe as Recipe
from cai_pyserini.core.identity import changes, command_of
from cai_pyserini.core.identity import digest as digest
from cai_pyserini.core.identity import recipe as recipe
from cai_pyserini.core.lock import locked, read_note, require_free
from cai_pyserini.core.store import StorePath
from cai_pyserini.core.terminal import progress
from cai_pyserini.core.version import VERSION

FORMAT = 4  # of manifests
UNFINISHED = ".unfinished"  # marks a folder that is being written in place; also its lock file
UNLISTED = {MANIFEST, UNFINISHED, "write.lock"}  # never in a manifest; the last is the lock file of Lucene
EDITABLE = "encoder.yaml"  # users may edit it, for example when they move an encoder
PACKAGES = (  # manifests record their versions
    *("pyserini", "torch", "transformers", "tokenizers", "sentence-transformers", "numpy", "scipy", "faiss-cpu"),
    "ir-measures",
)

Stats = dict[str, Any]  # counts and measurements of the stage
Write = Callable[[Path], Stats | None]


@dataclass(frozen=True)
class Manifest:
    recipe: Recipe
    digest: str  # of the recipe
    stats: Stats  # with `seconds`, the time it took
    files: dict[str, int]  # path -> bytes
    versions: dict[str, str]  # of packages
    created: str  # UTC
    format: int = FORMAT


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
    manifest. On success the temporary path replaces `path`; if `write` fails, it is deleted and `path` is unchanged. A
    folder in an object store is written on this machine, then uploaded.

    A `resumable` artifact is a folder that is written in place: `write` gets `path` itself, continues from the files
    of earlier attempts, and returns None while parts are missing. The artifact's files are those at the top of the
    folder whose names match the regular expression `names`; if names are arbitrary, `write` puts the files into the
    subfolder `result`, and they are moved to the top. Several processes can write a `shared` artifact together.

    Raises CaiError if `path` cannot be written, has files that no stage made, or is being written by another process.
    """
    if (why := outdated(path, recipe)) is None:
        return path
    if _dry_run.get():
        raise NotUpToDate(why)
    start, place = time.perf_counter(), destination(path)
    require_writable(place, folder, in_place=resumable)
    if resumable:
        _make_in_place(place, recipe, write, start, names=names, result=result, shared=shared)
    elif isinstance(place, StorePath) and folder:
        _make_in_store(place, recipe, write)
    else:
        _make_and_replace(place.absolute(), recipe, write, folder, start)
    return path


def _make_and_replace(path: Path, recipe: Recipe, write: Write, folder: bool, start: float) -> None:
    """Make a file or folder under a temporary name, then rename it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, old, link = (path.with_name(f".{path.name}{partial_suffix()}") for _ in range(3))
    with locked(_lock_path(path), path, {}) as lock:
        try:
            if is_up_to_date(path, recipe):
                return  # made by the last holder of the lock
            if folder and not path.exists():
                for leftover in path.parent.glob(f".{escape(path.name)}.*.partial"):
                    if is_up_to_date(leftover, recipe):  # its process was killed between the two renames
                        leftover.rename(path)
                        return
            remove_leftovers(path.parent, rf"\.?{re.escape(path.name)}(?:\.manifest\.json)?")
            if folder:
                partial.mkdir()
            stats = write(partial) or {}
            files = _sizes(partial) if folder else {path.name: partial.stat().st_size}
            manifest = _manifest(recipe, stats, files, start)
            if folder:
                write_text(partial / MANIFEST, manifest)
                sync(*partial.rglob("*"), partial)
                require_writable(path)
                if path.exists():
                    path.rename(old)  # deleted later: an interruption here would lose it
                _rename(partial, path, old)
            else:
                sync(partial)
                require_writable(path, folder)
                place = manifest_path(path)
                with _restored_on_failure(path, old), _restored_on_failure(place, link), atomic_write(place) as written:
                    written.write_text(manifest, encoding="utf-8")  # first, in case the disk is full
                    write_text(place, _manifest(recipe, stats, {}, start))  # without files: means unfinished
                    _rename(partial, path, old)
            sync(path.parent)
        finally:
            if folder and old.exists() and not path.exists():
                old.rename(path)
            remove(partial)
            remove(old)
            lock.place.unlink(missing_ok=True)


def _rename(partial: Path, path: Path, old: Path) -> None:
    """Rename `partial` to `path`. If that fails, restore a folder `old`, and raise CaiError with the place of both."""
    try:
        partial.replace(path)
    except OSError as error:
        where = f"the new result is {partial.rename(partial.with_suffix(''))}"  # else the next command deletes it
        try:
            if old.is_dir():
                old.rename(path)
        except OSError:
            where += f", and the old one is {old.rename(old.with_suffix(''))}"
        raise CaiError(f"{path} could not be replaced ({error.strerror}): {where}") from None


@contextmanager
def _restored_on_failure(file: Path, link: Path) -> Iterator[None]:
    """Keep a hard link to a file meanwhile, and put the file back if an exception is raised."""
    with suppress(OSError):  # no such file, or a file system without links
        os.link(file, link)
    try:
        yield
    except BaseException:
        if link.exists() and not (file.exists() and file.samefile(link)):
            link.replace(file)
        link.unlink(missing_ok=True)
        raise
    link.unlink(missing_ok=True)


def _make_in_place(
    path: Path, recipe: Recipe, write: Write, start: float, *, names: str, result: str | None, shared: bool
) -> None:
    path.mkdir(parents=True, exist_ok=True)
    marker, made_from = path / UNFINISHED, digest(recipe)

    def files_before() -> dict[str, list[str]]:
        """The files in the folder before this attempt; called with the lock held, before any other process writes."""
        before = _read(path) if result else None
        moved = [*before.get("files", ())] if before else read_note(marker).get("moved", [])  # by a killed attempt
        return {"others": foreign_files(path), "moved": moved}

    with locked(marker, path, {"digest": made_from}, files_before, shared) as lock:
        note = read_note(marker)
        if lock.alone and not isinstance(path, StorePath):
            remove_leftovers(path, r".*")
            if (old := _read(path)) and old["digest"] != made_from:
                for name in old.get("files", ()):
                    (path / name).unlink(missing_ok=True)
        if not is_up_to_date(path, recipe):
            if lock.alone:
                for name in (MANIFEST, *note["moved"]):
                    (path / name).unlink(missing_ok=True)
                if shared:
                    lock.share()
            if (stats := write(path)) is None:
                return
            if not is_up_to_date(path, recipe):  # a process that shares the work may have finished it
                lock.require_held()
                for partial in [each for each in path.iterdir() if PARTIAL.fullmatch(each.name)]:
                    if not partial.name.startswith(MANIFEST):  # a process that shares the work may be writing that
                        partial.unlink(missing_ok=True)  # left by a killed attempt
                if result:
                    moved = sorted(each.name for each in (path / result).iterdir())
                    lock.add(moved=moved)
                    for name in moved:
                        (path / result / name).replace(path / name)
                sizes = _sizes(path)
                matching = {name for name in sizes.keys() - note["others"] if re.fullmatch(names, name)}
                files = {name: sizes[name] for name in (moved if result else matching)}
                if not isinstance(path, StorePath):
                    sync(*(path / name for name in files), path)
                write_text(path / MANIFEST, _manifest(recipe, stats, files, start))
        lock.remove()


def _make_in_store(path: StorePath, recipe: Recipe, write: Write) -> None:
    """Make a folder on this machine and upload it, the manifest last."""
    with (
        locked(path / UNFINISHED, path, {"token": secrets.token_hex(8)}) as lock,  # first, to fail early without access
        tempfile.TemporaryDirectory() as work,
    ):
        folder = make(Path(work) / path.name, recipe, write)
        require_writable(path)
        (path / MANIFEST).unlink(missing_ok=True)
        names = [*_sizes(folder), MANIFEST]
        for stale in _sizes(path).keys() - names:
            (path / stale).unlink(missing_ok=True)
        for name in progress(names, len(names), f"upload {path.name}", "files"):
            if name == MANIFEST:
                lock.require_held()
            (path / name).upload(folder / name)
        lock.place.unlink(missing_ok=True)


def _manifest(recipe: Recipe, stats: Stats, files: dict[str, int], start: float) -> str:
    stats = {"seconds": round(time.perf_counter() - start, 3)} | stats
    return json_text(asdict(Manifest(recipe, digest(recipe), stats, files, versions(), now())))


@cache
def versions() -> dict[str, str]:
    """The versions of the packages that compute."""
    found = {"cai_pyserini": VERSION}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # such as another build of Faiss
            found[name] = version(name)
    return found


def _sizes(path: Path) -> dict[str, int]:
    """The size in bytes of every file in a folder, by relative path; without manifest, locks and partial files."""
    if isinstance(path, StorePath):
        sizes = path.sizes()
    else:
        sizes = {}
        for file in path.rglob("*"):
            with suppress(FileNotFoundError):  # another process has just renamed it
                if file.is_file():
                    sizes[file.relative_to(path).as_posix()] = file.stat().st_size
    return {name: sizes[name] for name in sorted(sizes.keys() - UNLISTED) if not PARTIAL.fullmatch(name)}


def foreign_files(folder: Path) -> list[str]:
    """The files in an artifact's folder that its stage did not make; also valid while the stage writes there."""
    if (manifest := _read(folder)) is not None:
        return sorted(_sizes(folder).keys() - manifest.get("files", {}).keys())
    if note := read_note(folder / UNFINISHED):
        return [name for name in note.get("others", ()) if (folder / name).exists()]
    return sorted(_sizes(folder))


def artifact_files(place: Path) -> set[Path]:
    """The files of an artifact, or of all artifacts in a folder, with manifests, locks, and unfinished files."""
    if place.is_file():
        return {place, manifest_path(place)}
    owned: set[Path] = set()
    for path in place.rglob("*"):
        folder = path.parent
        if path.name == UNFINISHED or (path.name == MANIFEST and _read(folder, ignore_foreign=True)):
            owned |= {path, *(folder / name for name in _sizes(folder).keys() - foreign_files(folder))}
        elif path.name.endswith(f".{MANIFEST}"):
            owned |= {path, path.with_name(path.name.removesuffix(f".{MANIFEST}"))}
        elif path.name in UNLISTED or re.fullmatch(r"\..*\.lock", path.name) or any(map(PARTIAL.fullmatch, path.parts)):
            owned.add(path)
    return owned


def _lock_path(path: Path) -> Path:
    """The lock file of an artifact that is not written in place."""
    return path.with_name(f".{path.name}.lock")


def download(source: StorePath, folder: Path) -> None:
    """Copy an artifact from an object store. Raises CaiError if it changes meanwhile, or has file names with `..`."""
    before = read_manifest(source)
    files = list(source.rglob("*"))
    for file in progress(files, len(files), f"download {source.name}", "files"):
        if ".." in file.parts:
            raise CaiError(f"{file}: refused, as it is outside {source}")
        target = folder.joinpath(*file.relative_to(source).parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.download(target)
    if before is None or read_manifest(source) != before:
        raise CaiError(f"{source} was changed while it was downloaded: run the command again")


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, cached by size and modification time. Raises CaiError for a missing or damaged file."""
    require_file(path)
    require_if_ours(path)
    status = path.stat()
    return _file_digest(path, status.st_size, status.st_mtime_ns)


@cache
def _file_digest(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_path(path: Path) -> Path:
    """`<folder>/manifest.json`, or `<file>.manifest.json` beside a file: a link's target, unless only it has one."""
    if path.is_dir():
        return path / MANIFEST
    target = resolved(path)
    beside_link, beside_target = (file.with_name(f"{file.name}.{MANIFEST}") for file in (path, target))
    return beside_link if target != path and beside_link.exists() and not beside_target.exists() else beside_target


def _read(path: Path, ignore_foreign: bool = False) -> dict[str, Any] | None:
    """The content of an artifact's manifest, in any FORMAT; None if there is none. Raises CaiError if it is broken.
    With `ignore_foreign`, a manifest.json of another tool counts as none."""
    place = manifest_path(path)
    if not path.exists() or not place.exists():
        return None
    remedy = f"delete {path} and make it again"
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CaiError(f"{place}:{error.lineno}: not a manifest ({error.msg}); {remedy}") from None
    except UnicodeDecodeError as error:
        raise CaiError(f"{place}: not a manifest ({error.reason}); {remedy}") from None
    if ignore_foreign and (not isinstance(data, dict) or data.keys().isdisjoint({"recipe", "digest"})):
        return None
    if not isinstance(data, dict) or not {"recipe", "digest"} <= data.keys():
        raise CaiError(f"{place}: not a manifest (recipe or digest is missing); {remedy}")
    if data.get("format") == FORMAT and data.keys() != {field.name for field in fields(Manifest)}:
        raise CaiError(f"{place}: not a manifest (it has been changed); {remedy}")
    return data


def _inspect(path: Path) -> Manifest | str:
    """The manifest of a complete artifact, or else the problem, as the predicate of a sentence."""
    data = _read(path)
    if data is None:
        if not path.exists():
            return "is missing"
        return "is unfinished" if (path / UNFINISHED).exists() else "has no manifest"
    if data.get("format") != FORMAT:
        return "was made by another version of cai_pyserini"
    manifest = Manifest(**data)
    sizes = dict.fromkeys(manifest.files, path.stat().st_size) if path.is_file() else _sizes(path)
    if path.is_file() and not manifest.files:
        return "is unfinished"
    for name, size in manifest.files.items():
        if name not in sizes:
            return f"is damaged ({name} is missing)"
        if sizes[name] != size and name != EDITABLE:
            return f"is damaged ({name} has {sizes[name]:,} bytes, not {size:,})"
    return manifest


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a complete artifact, else None. Raises CaiError if the manifest is broken."""
    state = _inspect(path)
    return state if isinstance(state, Manifest) else None


def require(path: Path, *stages: str, optional: bool = False) -> Manifest:
    """The manifest of an artifact of one of these stages. Raises CaiError if it is incomplete or of another stage. A
    file, or an `optional` artifact, may have been changed on purpose: the error suggests to delete its manifest."""
    state = _inspect(path)
    if isinstance(state, str):
        remedy = "make it again with" if manifest_path(path).exists() else "make it with"
        if state == "has no manifest":  # something else is there, which no stage would replace
            remedy = "name a finished output of"
        alternative = ""
        if state.startswith("is damaged") and (optional or path.is_file()):
            alternative = f", or delete {manifest_path(path)} if it was changed on purpose"
        elif path.is_dir() and (inside := _find_inside(path, stages[0])):
            alternative = f", or name one that is in it, such as {inside}"
        raise CaiError(f"{path} {state}: {remedy} {command_of(stages[0])}{alternative}")
    if state.recipe["stage"] not in stages:
        raise CaiError(f"{path} was made by stage {state.recipe['stage']!r}, not by {stages[0]!r}")
    return state


def _find_inside(folder: Path, stage: str) -> Path | None:
    """The first artifact of a stage two levels below a folder, such as a run folder; None if there is none."""
    for manifest in sorted(folder.glob(f"*/*/{MANIFEST}")):
        if (data := _read(manifest.parent, ignore_foreign=True)) and data["recipe"]["stage"] == stage:
            return manifest.parent
    return None


def require_count(path: Path, found: int, expected: int) -> None:
    """Raise CaiError if the number of documents found in an artifact is not the one in its manifest."""
    if found != expected:
        raise CaiError(f"{path} has {found:,} documents, its manifest says {expected:,}: delete it")


def require_if_ours(path: Path, *stages: str) -> Manifest | None:
    """As `require`, by default of any stage, but None for the output of another tool, even one with a manifest.json."""
    if manifest := _read(path, ignore_foreign=True):
        return require(path, *(stages or [manifest["recipe"]["stage"]]), optional=True)
    if path.is_dir() and (path / UNFINISHED).exists():
        raise CaiError(f"{path} is unfinished: run the command that makes it again")
    return None


def outdated(path: Path, recipe: Recipe) -> str | None:
    """Why an artifact must be made; None if it is complete and has exactly this recipe."""
    state = _inspect(path)
    if isinstance(state, str):
        return state.removeprefix("is ")
    return None if state.digest == digest(recipe) else changes(state.recipe, recipe)


def is_up_to_date(path: Path, recipe: Recipe) -> bool:
    return outdated(path, recipe) is None


def renew(path: Path, text: str) -> None:
    """Rewrite a small file of a complete artifact if its text differs; a dry run changes nothing."""
    if not _dry_run.get() and (not path.is_file() or path.read_text(encoding="utf-8") != text):
        write_text(path, text)


def outdate(path: Path) -> None:
    """Mark an artifact as outdated for every recipe, because its inputs changed while it was made."""
    if manifest := read_manifest(path):
        recipe = manifest.recipe | {"version": 0}
        write_text(manifest_path(path), json_text(asdict(replace(manifest, recipe=recipe, digest=digest(recipe)))))


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


def require_writable(path: Path, folder: bool = True, marker: str = UNFINISHED, in_place: bool = False) -> None:
    """Raise CaiError if an artifact cannot be written, is being written, or would replace foreign files: a folder must
    be empty, complete or unfinished, or have the file `marker`; one that is written `in_place` may have other files."""
    remedy = "choose another output"
    inside = in_place or marker != UNFINISHED
    if folder and path.is_file():
        raise CaiError(f"{path} is a file: choose a folder for the output")
    if not folder and path.is_dir():
        raise CaiError(f"{path} is a folder: choose a file for the output")
    if path.is_dir() and any(path.iterdir()):
        if not any((path / name).exists() for name in (marker, MANIFEST, UNFINISHED)):
            raise CaiError(f"{path} has files that this command has not made: {remedy}, or empty it")
        if not inside and (foreign := foreign_files(path)):
            some = ", ".join(foreign if len(foreign) <= 3 else [*foreign[:3], "…"])
            raise CaiError(f"{path} has files that this command has not made ({some}): {remedy}, or move them away")
    if isinstance(path, StorePath):
        return  # the first write fails if the store refuses it
    if folder and not inside and path.resolve() == Path.cwd():
        raise CaiError(f"{path} is the current folder, which cannot be replaced: {remedy}")
    path = path.absolute()
    if path.is_file() and path.stat().st_size and not manifest_path(path).exists():
        raise CaiError(f"{path} is a file that this command has not made: {remedy}, or delete it")
    require_free(_lock_path(path) if in_place else path / UNFINISHED, path)
    places = [path, *path.parents] if inside else path.parents
    existing = next(place for place in places if place.exists())
    if existing != path and existing.is_file():
        raise CaiError(f"{path} cannot be written: {existing} is a file; {remedy}")
    if not os.access(existing, os.W_OK):
        raise CaiError(f"{path} cannot be written: {existing} is read-only; {remedy}")


def now() -> str:
    """The current time in UTC, in a format that sorts."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
