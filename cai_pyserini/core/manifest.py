"""Manifests: how an artifact was made, whether it is complete, and which files are its own.

The manifest of an artifact holds its recipe (core.identity) and the sizes of its files, and is written last. So an
artifact is complete if its files have the recorded sizes, and up to date if its manifest has the expected recipe, too.
Files of others are never deleted.
"""

import hashlib
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import MANIFEST, PARTIAL, json_text, require_file, resolved
from cai_pyserini.core.identity import Recipe, changes, command_of, digest
from cai_pyserini.core.lock import read_note, require_free
from cai_pyserini.core.version import VERSION

FORMAT = 4  # version of the manifest's format
UNFINISHED = ".unfinished"  # marks a folder that is being written in place; also its lock file
LUCENE_LOCK = "write.lock"
UNLISTED = {MANIFEST, UNFINISHED, LUCENE_LOCK}  # files that no manifest lists
EDITABLE = "encoder.yaml"  # users may edit it, for example when they move an encoder
PACKAGES = (  # manifests record their versions
    *("pyserini", "torch", "transformers", "tokenizers", "sentence-transformers", "numpy", "scipy", "faiss-cpu"),
    "ir-measures",
)
REMEDY = "choose another output"

Stats = dict[str, Any]  # counts and measurements of the stage
Sizes = dict[str, int]  # relative path -> bytes


@dataclass(frozen=True)
class Manifest:
    recipe: Recipe
    digest: str  # of the recipe
    stats: Stats  # with `seconds`, the time it took
    files: Sizes
    versions: dict[str, str]  # of packages
    created: str  # UTC
    format: int = FORMAT

    @classmethod
    def new(cls, recipe: Recipe, stats: Stats | None, files: Sizes, start: float) -> Self:
        """The manifest of an artifact whose making began at `start`, a time of the performance counter."""
        seconds = {"seconds": round(time.perf_counter() - start, 3)}
        return cls(recipe, digest(recipe), seconds | (stats or {}), files, versions(), now())

    def text(self) -> str:
        return json_text(asdict(self))


@cache
def versions() -> dict[str, str]:
    """The versions of the packages that compute."""
    found = {"cai_pyserini": VERSION}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # such as another build of Faiss
            found[name] = version(name)
    return found


def now() -> str:
    """The current time in UTC, in a format that sorts."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def manifest_path(path: Path) -> Path:
    """`<folder>/manifest.json`, or `<file>.manifest.json` beside a file: a link's target, unless only it has one."""
    if path.is_dir():
        return path / MANIFEST
    target = resolved(path)
    beside_link, beside_target = (file.with_name(f"{file.name}.{MANIFEST}") for file in (path, target))
    return beside_link if target != path and beside_link.exists() and not beside_target.exists() else beside_target


def sizes_in(folder: Path) -> Sizes:
    """The sizes of the files in a folder, sorted by path; without manifest, locks and partial files."""
    sizes = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process has just renamed it
            if file.is_file():
                sizes[file.relative_to(folder).as_posix()] = file.stat().st_size
    return {name: sizes[name] for name in sorted(sizes.keys() - UNLISTED) if not PARTIAL.fullmatch(name)}


def manifest_data(path: Path, ignore_foreign: bool = False) -> dict[str, Any] | None:
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
    data = manifest_data(path)
    if data is None:
        if not path.exists():
            return "is missing"
        return "is unfinished" if (path / UNFINISHED).exists() else "has no manifest"
    if data.get("format") != FORMAT:
        return "was made by another version of cai_pyserini"
    manifest = Manifest(**data)
    if path.is_file() and not manifest.files:
        return "is unfinished"
    sizes = dict.fromkeys(manifest.files, path.stat().st_size) if path.is_file() else sizes_in(path)
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


def outdated(path: Path, recipe: Recipe) -> str | None:
    """Why an artifact must be made; None if it is complete and has exactly this recipe."""
    state = _inspect(path)
    if isinstance(state, str):
        return state.removeprefix("is ")
    return None if state.digest == digest(recipe) else changes(state.recipe, recipe)


def is_up_to_date(path: Path, recipe: Recipe) -> bool:
    return outdated(path, recipe) is None


def require(path: Path, *stages: str, optional: bool = False) -> Manifest:
    """The manifest of an artifact of one of these stages. Raises CaiError if it is incomplete or of another stage. A
    file, or an `optional` artifact, may have been changed on purpose: the error suggests to delete its manifest."""
    state = _inspect(path)
    if isinstance(state, Manifest):
        if state.recipe["stage"] not in stages:
            raise CaiError(f"{path} was made by stage {state.recipe['stage']!r}, not by {stages[0]!r}")
        return state
    remedy = "make it again with" if manifest_path(path).exists() else "make it with"
    if state == "has no manifest":  # something else is there, which no stage would replace
        remedy = "name a finished output of"
    alternative = ""
    if state.startswith("is damaged") and (optional or path.is_file()):
        alternative = f", or delete {manifest_path(path)} if it was changed on purpose"
    elif path.is_dir() and (inside := _find_inside(path, stages[0])):
        alternative = f", or name one that is in it, such as {inside}"
    raise CaiError(f"{path} {state}: {remedy} {command_of(stages[0])}{alternative}")


def _find_inside(folder: Path, stage: str) -> Path | None:
    """The first artifact of a stage two levels below a folder, such as a run folder; None if there is none."""
    for manifest in sorted(folder.glob(f"*/*/{MANIFEST}")):
        if (data := manifest_data(manifest.parent, ignore_foreign=True)) and data["recipe"]["stage"] == stage:
            return manifest.parent
    return None


def require_count(path: Path, found: int, expected: int) -> None:
    """Raise CaiError if the number of documents found in an artifact is not the one in its manifest."""
    if found != expected:
        raise CaiError(f"{path} has {found:,} documents, its manifest says {expected:,}: delete it")


def require_if_ours(path: Path, *stages: str) -> Manifest | None:
    """As `require`, by default of any stage, but None for the output of another tool, even one with a manifest.json."""
    if manifest := manifest_data(path, ignore_foreign=True):
        return require(path, *(stages or [manifest["recipe"]["stage"]]), optional=True)
    if path.is_dir() and (path / UNFINISHED).exists():
        raise CaiError(f"{path} is unfinished: run the command that makes it again")
    return None


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


def foreign_files(folder: Path) -> list[str]:
    """The files in an artifact's folder that its stage did not make; also valid while the stage writes there."""
    if (manifest := manifest_data(folder)) is not None:
        return sorted(sizes_in(folder).keys() - manifest.get("files", {}).keys())
    if note := read_note(folder / UNFINISHED):
        return [name for name in note.get("others", ()) if (folder / name).exists()]
    return sorted(sizes_in(folder))


def artifact_files(place: Path) -> set[Path]:
    """The files of an artifact, or of all artifacts in a folder, with manifests, locks, and unfinished files."""
    if place.is_file():
        return {place, manifest_path(place)}
    owned: set[Path] = set()
    for path in place.rglob("*"):
        folder = path.parent
        if path.name == UNFINISHED or (path.name == MANIFEST and manifest_data(folder, ignore_foreign=True)):
            owned |= {path, *(folder / name for name in sizes_in(folder).keys() - foreign_files(folder))}
        elif path.name.endswith(f".{MANIFEST}"):
            owned |= {path, path.with_name(path.name.removesuffix(f".{MANIFEST}"))}
        elif path.name in UNLISTED or re.fullmatch(r"\..*\.lock", path.name) or any(map(PARTIAL.fullmatch, path.parts)):
            owned.add(path)
    return owned


def lock_path(path: Path) -> Path:
    """The lock file of an artifact that is not written in place."""
    return path.with_name(f".{path.name}.lock")


def require_writable(path: Path, folder: bool = True, marker: str = UNFINISHED, in_place: bool = False) -> None:
    """Raise CaiError if an artifact cannot be written, is being written, or would replace foreign files: a folder must
    be empty, complete or unfinished, or have the file `marker`; one that is written `in_place` may have other files."""
    inside = in_place or marker != UNFINISHED
    if folder and path.is_file():
        raise CaiError(f"{path} is a file: choose a folder for the output")
    if not folder and path.is_dir():
        raise CaiError(f"{path} is a folder: choose a file for the output")
    if path.is_dir() and any(path.iterdir()):
        if not any((path / name).exists() for name in (marker, MANIFEST, UNFINISHED)):
            raise CaiError(f"{path} has files that this command has not made: {REMEDY}, or empty it")
        if not inside and (foreign := foreign_files(path)):
            some = ", ".join(foreign if len(foreign) <= 3 else [*foreign[:3], "…"])
            raise CaiError(f"{path} has files that this command has not made ({some}): {REMEDY}, or move them away")
    if folder and not inside and (path.resolve() == Path.cwd() or os.path.ismount(path)):
        raise CaiError(f"{path} is the current folder or that of a disk, which cannot be replaced: {REMEDY}")
    path = path.absolute()
    if path.is_file() and path.stat().st_size and not manifest_path(path).exists():
        raise CaiError(f"{path} is a file that this command has not made: {REMEDY}, or delete it")
    require_free(lock_path(path) if in_place else path / UNFINISHED, path)
    _require_permission(path, [path, *path.parents] if inside else [*path.parents])


def _require_permission(path: Path, places: list[Path]) -> None:
    """Raise CaiError if the first of these places that exists is no folder to write in."""
    existing = next(place for place in places if place.exists())
    if existing != path and existing.is_file():
        raise CaiError(f"{path} cannot be written: {existing} is a file; {REMEDY}")
    if not os.access(existing, os.W_OK):
        raise CaiError(f"{path} cannot be written: {existing} is read-only; {REMEDY}")
