"""The versions of a run, beside each other in its folder: what an update makes, and what was there before.

A run folder is people's; commands own what they have made in it, and replace, move or delete nothing else. An update
makes `versions/N`, and is done as soon as the link `versions/current` names it: one rename, before which the run is the
old one, and after which it is the new one, for all who open it (run_folder.current). Then names such as `indexes/bm25`
are links through `versions/current`; what had such a name before the first update is `versions/1`.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cai_pyserini.beir.run_folder import CURRENT, RunFolder, current
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import MANIFEST, PARTIAL, own_suffix, remove, remove_leftovers, sync, write_text
from cai_pyserini.core.lock import locked, read_note

logger = logging.getLogger(__name__)
MARKER = ".made-from"  # of a version: {"of": digest of the results of the run that it was made from}
OF_COLLECTION = ("runs", "evaluations")  # are not taken over, as those of the earlier collection would be wrong


@contextmanager
def updating(root: Path) -> Iterator[RunFolder]:
    """Open a run, keep other commands that write it away, and end what a killed update has left to do. Raises CaiError
    for a folder without a finished run."""
    RunFolder(root).results  # noqa: B018 - or an error, before there is a lock in a folder that is not ours
    with locked(root / ".lock", root, {}):
        publish(root)
        yield RunFolder(root)


def begin(run: RunFolder) -> Path:
    """The folder of the next version, with the artifacts of the run: links, where the file system has them, since no
    file is ever changed in place. Continues an interrupted update, unless the run has been changed since."""
    versions, note = (run.root / CURRENT).parent, {"of": artifact.file_digest(run.results_file)}
    if not (run.root / CURRENT).is_symlink():
        versions.mkdir(exist_ok=True)
        if any(versions.iterdir()):
            raise CaiError(f"{versions} is not that of an update, or a copy that follows links: move it away")
        try:
            (run.root / CURRENT).symlink_to("..")
        except OSError as error:
            raise CaiError(
                f"{run.root} cannot be updated, as its file system has no symbolic links ({error.strerror}): run it "
                "again with another --output"
            ) from None
    remove_leftovers(versions, r"\..*")
    folder = _next_of(run.root)
    if folder.exists() and read_note(folder / MARKER) != note:
        remove(folder)
    if not folder.exists():
        partial = versions / f".{folder.name}{own_suffix()}"
        try:
            for path in _outputs(run):
                if path.relative_to(run.folder).parts[0] not in OF_COLLECTION and artifact.read_manifest(path):
                    for file in artifact.artifact_files(path):
                        _link(file, partial / file.relative_to(run.folder))
            RunFolder(partial).lock.touch()  # shows that it is a run folder
            write_text(partial / MARKER, json.dumps(note) + "\n")
            partial.rename(folder)
        finally:
            remove(partial)
    remove_leftovers(folder, r".*")
    return folder


def swap(root: Path) -> Path:
    """Let the next version, which is complete, be the run; returns where the earlier one is now."""
    folder, partial = _next_of(root), root / CURRENT.with_name(f".current{own_suffix()}")
    before = folder.with_name(str(_number(root)))
    for place, _, names in folder.walk():  # of links, nothing is left to write
        sync(*(place / name for name in names), place)
    partial.symlink_to(folder.name)
    partial.replace(root / CURRENT)
    sync(folder.parent)
    publish(root)
    for file in sorted(_of_others(before)):  # in folders of artifacts
        target = folder / file.relative_to(before)
        if target.parent.is_dir() and not target.exists():
            file.rename(target)
    return before


def publish(root: Path) -> None:
    """Have every name of an artifact in a run folder that was updated lead to the current version, and move what had
    such a name before to `versions/1`."""
    if _number(root) == 1:
        return
    version, first = current(root), RunFolder((root / CURRENT).with_name("1"))
    results = root / first.results_file.name
    if results.exists() and not results.is_symlink():
        _move(results, first.results_file)  # before all others, which it names
    names = {path.relative_to(folder) for folder in (*earlier(root), version) for path in _walk(folder)}
    if first.is_finished:
        names |= {path.relative_to(first.folder) for path in _outputs(first)}
    for name in sorted(names):
        place, exists = root / name, (version / name).exists()
        if version.parent in place.parent.resolve().parents:
            continue  # it is in a folder that has a link
        target = Path(os.path.relpath(root.resolve() / CURRENT / name, place.parent.resolve()))
        if place.is_symlink() and place.readlink() == target:
            if not exists:
                place.unlink()
            continue
        if os.path.lexists(place):
            if not _is_ours(place, root):
                logger.warning("%s stays, as no command has made it: that of the run is in %s", place, version)
                continue
            _move(place, first.folder / name)
        if exists:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)


def earlier(root: Path) -> list[Path]:
    """The complete versions before the current one, the oldest first."""
    return [folder for folder in _older(root) if RunFolder(folder).is_finished]


def clean(root: Path) -> list[Path]:
    """Remove what an interrupted update of a run has left, and all earlier versions. Returns the folders."""
    with updating(root):
        unfinished = [folder] if (folder := _next_of(root)).exists() else []
        for folder in unfinished:
            remove(folder)
        return [*prune(root, 0), *unfinished]


def prune(root: Path, keep: int) -> list[Path]:
    """Remove all earlier versions but the last `keep`, and return them; files of others in them stay."""
    kept, removed = earlier(root)[-keep:] if keep else [], []
    for folder in _older(root):
        if folder in kept or not (files := _files(folder) - _of_others(folder)):
            continue
        RunFolder(folder).results_file.unlink(missing_ok=True)  # first, or what is left would pass for a run
        for file in files:
            file.unlink(missing_ok=True)
        for place, _, _ in folder.walk(top_down=False):
            with suppress(OSError):  # it is not empty
                place.rmdir()
        if folder.exists():
            logger.warning("%s has files that no command has made, which stay", folder)
        removed.append(folder)
    return removed


def _number(root: Path) -> int:
    """The number of the current version; that of a run which was never updated is 1."""
    return 1 if (version := current(root)).resolve() == root.resolve() else int(version.name)


def _older(root: Path) -> list[Path]:
    return [folder for n in range(1, _number(root)) if (folder := (root / CURRENT).with_name(str(n))).is_dir()]


def _next_of(root: Path) -> Path:
    return (root / CURRENT).with_name(str(_number(root) + 1))


def _outputs(run: RunFolder) -> Iterator[Path]:
    """What a run has made in its folder, where others may be as well."""
    for path in (run.folder / name for name in run.results.made):
        yield from (path, path.with_name(f"{path.name}.{MANIFEST}"))
    yield from (run.results_file, run.report, run.changes)


def _walk(folder: Path) -> Iterator[Path]:
    """The artifacts in a folder that only a run has written, and other files."""
    for path in folder.iterdir():
        if path.is_dir() and not _is_artifact(path):
            yield from _walk(path)
        elif not path.name.startswith(".") and not PARTIAL.fullmatch(path.name):
            yield path


def _is_artifact(folder: Path) -> bool:
    return any((folder / name).exists() for name in (MANIFEST, artifact.UNFINISHED))


def _is_ours(place: Path, root: Path) -> bool:
    """Whether a command has made what has the name of an artifact."""
    if place.is_dir():
        return _is_artifact(place)
    return place.parent == root or place.name.endswith(MANIFEST) or artifact.manifest_path(place).exists()


def _of_others(version: Path) -> set[Path]:
    """The files in the folder of a version that no command has made."""
    run = RunFolder(version)
    own = {run.results_file, run.report, run.changes, run.lock, version / MARKER}
    return _files(version) - own - artifact.artifact_files(version)


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


def _move(place: Path, target: Path) -> None:
    """Move a file, a folder or what a link leads to, and replace nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    while os.path.lexists(target):
        target = target.with_name(f"{target.name}~")
    if place.is_symlink():
        target.symlink_to(place.resolve())
        place.unlink()
    else:
        shutil.move(place, target)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)
