"""Versions of a run, side by side in its folder: one per update, and the original.

A run folder belongs to its users: commands replace, move and delete only what commands have written. An update writes
`versions/N` and then points the link `versions/current` at it with one atomic rename, so that readers see either the
old or the new run (run_folder.current). Names such as `indexes/bm25` then become links through `versions/current`, and
the files that had these names before the first update move to `versions/1`.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import MANIFEST, PARTIAL, remove, remove_leftovers, sync, temporary, write_text
from cai_pyserini.core.lock import locked, read_note
from cai_pyserini.experiments.run_folder import CURRENT, RunFolder, current

logger = logging.getLogger(__name__)
MARKER = ".made-from"  # a version has it: {"of": digest of the previous run's results}
NOT_CARRIED_OVER = ("runs", "evaluations")  # they belong to the previous state of the collection


@contextmanager
def updating(root: Path) -> Iterator[RunFolder]:
    """Lock and open a run, and finish what a killed update left undone. Raises CaiError for a folder without a finished
    run."""
    RunFolder(root).results  # noqa: B018 - raises before a lock is written to a folder that is no run
    with locked(root / ".lock", root, {}):
        publish(root)
        yield RunFolder(root)


def begin(run: RunFolder) -> Path:
    """Prepare the folder of the next version, with the run's artifacts as hard links where possible (no file is changed
    in place). Continues an interrupted update, unless the run has changed since."""
    versions, note = (run.root / CURRENT).parent, {"of": artifact.file_digest(run.results_file)}
    if not (run.root / CURRENT).is_symlink():
        versions.mkdir(exist_ok=True)
        if any(versions.iterdir()):
            raise CaiError(f"{versions} was not written by an update, or is a copy that followed links: move it away")
        try:
            (run.root / CURRENT).symlink_to("..")
        except OSError as error:
            raise CaiError(
                f"{run.root} cannot be updated, as its file system has no symbolic links ({error.strerror}): run it "
                "again with another output"
            ) from None
    remove_leftovers(versions, r"\..*")
    folder = _next_version(run.root)
    if folder.exists() and read_note(folder / MARKER) != note:
        remove(folder)
    if not folder.exists():
        partial = temporary(versions / f".{folder.name}")
        try:
            for path in outputs(run):
                if path.relative_to(run.folder).parts[0] not in NOT_CARRIED_OVER and artifact.read_manifest(path):
                    for file in artifact.artifact_files(path):
                        _link(file, partial / file.relative_to(run.folder))
            RunFolder(partial).lock.touch()  # marks it as a run folder
            write_text(partial / MARKER, json.dumps(note) + "\n")
            partial.rename(folder)
        finally:
            remove(partial)
    remove_leftovers(folder, r".*")
    return folder


def swap(root: Path) -> Path:
    """Make the complete next version the current one; returns the folder of the previous version."""
    folder, partial = _next_version(root), temporary(root / CURRENT.with_name(".current"))
    previous = folder.with_name(str(current_number(root)))
    for parent, _, names in folder.walk():  # fast, as hard links are on disk already
        sync(*(parent / name for name in names), parent)
    partial.symlink_to(folder.name)
    partial.replace(root / CURRENT)
    sync(folder.parent)
    publish(root)
    for file in sorted(_foreign_files(previous)):  # in artifact folders
        target = folder / file.relative_to(previous)
        if target.parent.is_dir() and not target.exists():
            file.rename(target)
    return previous


def clean(root: Path) -> list[Path]:
    """Remove all earlier versions and any interrupted update of a run. Returns the removed folders."""
    with updating(root):
        unfinished = [folder] if (folder := _next_version(root)).exists() else []
        for folder in unfinished:
            remove(folder)
        return [*prune(root, 0), *unfinished]


def prune(root: Path, keep: int) -> list[Path]:
    """Remove all earlier versions but the last `keep`, and return their folders. Foreign files in them stay."""
    kept, removed = earlier(root)[-keep:] if keep else [], []
    for folder in previous_versions(root):
        if folder in kept or not (files := _files(folder) - _foreign_files(folder)):
            continue
        RunFolder(folder).results_file.unlink(missing_ok=True)  # first, so that the rest is not taken for a run
        for file in files:
            file.unlink(missing_ok=True)
        for parent, _, _ in folder.walk(top_down=False):
            with suppress(OSError):  # not empty
                parent.rmdir()
        if folder.exists():
            logger.warning("%s stays, because it has files that no command wrote", folder)
        removed.append(folder)
    return removed


def _next_version(root: Path) -> Path:
    return (root / CURRENT).with_name(str(current_number(root) + 1))


def _foreign_files(version: Path) -> set[Path]:
    """The files in the folder of a version that no command wrote."""
    run = RunFolder(version)
    own = {run.results_file, run.started_file, run.report, run.page, run.changes, run.files, run.lock, version / MARKER}
    return _files(version) - own - artifact.artifact_files(version)


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)


def publish(root: Path) -> None:
    """Link every artifact name in an updated run folder to the current version; files that had these names move to
    `versions/1`."""
    if current_number(root) == 1:
        return
    version, first = current(root), RunFolder((root / CURRENT).with_name("1"))
    results = root / first.results_file.name
    if results.exists() and not results.is_symlink():
        _move(results, first.results_file)  # first, because it lists the others
    names = {path.relative_to(folder) for folder in (*earlier(root), version) for path in _artifacts(folder)}
    if first.is_finished:
        names |= {path.relative_to(first.folder) for path in outputs(first)}
    for name in sorted(names):
        path, exists = root / name, (version / name).exists()
        if version.parent in path.parent.resolve().parents:
            continue  # a parent folder is a link already
        target = Path(os.path.relpath(root.resolve() / CURRENT / name, path.parent.resolve()))
        if path.is_symlink() and path.readlink() == target:
            if not exists:
                path.unlink()
            continue
        if os.path.lexists(path):
            if not _is_ours(path, root):
                logger.warning("%s stays, because no command wrote it; the run's own is in %s", path, version)
                continue
            _move(path, first.folder / name)
        if exists:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)


def earlier(root: Path) -> list[Path]:
    """The complete versions before the current one, oldest first."""
    return [folder for folder in previous_versions(root) if RunFolder(folder).is_finished]


def current_number(root: Path) -> int:
    """The number of the current version; 1 for a run that was never updated."""
    return 1 if (version := current(root)).resolve() == root.resolve() else int(version.name)


def outputs(run: RunFolder) -> Iterator[Path]:
    """The files and folders that a run wrote in its folder."""
    for path in (run.folder / name for name in run.results.made):
        yield from (path, path.with_name(f"{path.name}.{MANIFEST}"))
    yield from (run.results_file, run.report, run.page, run.changes, run.files)


def _artifacts(folder: Path) -> Iterator[Path]:
    """The artifacts and other files in a folder that only a run has written to."""
    for path in folder.iterdir():
        if path.is_dir() and not _is_artifact(path):
            yield from _artifacts(path)
        elif not path.name.startswith(".") and not PARTIAL.fullmatch(path.name):
            yield path


def _is_artifact(folder: Path) -> bool:
    return any((folder / name).exists() for name in (MANIFEST, artifact.UNFINISHED))


def _is_ours(path: Path, root: Path) -> bool:
    """Whether a command wrote the file or folder at the path of an artifact."""
    if path.is_dir():
        return _is_artifact(path)
    return path.parent == root or path.name.endswith(MANIFEST) or artifact.manifest_path(path).exists()


def previous_versions(root: Path) -> list[Path]:
    folders = [(root / CURRENT).with_name(str(number)) for number in range(1, current_number(root))]
    return [folder for folder in folders if folder.is_dir()]


def _move(path: Path, target: Path) -> None:
    """Move a file, folder or link without replacing anything; links become absolute."""
    target.parent.mkdir(parents=True, exist_ok=True)
    while os.path.lexists(target):
        target = target.with_name(f"{target.name}~")
    if path.is_symlink():
        target.symlink_to(path.resolve())
        path.unlink()
    else:
        shutil.move(path, target)
