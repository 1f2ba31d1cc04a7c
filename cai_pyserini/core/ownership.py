"""Which files stages have made, and where they may write: files of others are never deleted."""

import os
import re
from pathlib import Path

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import MANIFEST, PARTIAL
from cai_pyserini.core.lock import read_note, require_free
from cai_pyserini.core.manifest import UNFINISHED, UNLISTED, manifest_data, manifest_path, sizes_in

REMEDY = "choose another output"


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
    if folder and not inside and path.resolve() == Path.cwd():
        raise CaiError(f"{path} is the current folder, which cannot be replaced: {REMEDY}")
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
