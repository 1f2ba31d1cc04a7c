"""Versions of a run, side by side in its folder: one per update, and the original.

A run folder belongs to its users: commands replace, move and delete only what commands have written. An update writes
`versions/N` and then points the link `versions/current` at it with one atomic rename, so that readers see either the
old or the new run (run_folder.current). Names such as `indexes/bm25` then become links through `versions/current`, and
the files that had these names before the first update move to `versions/1`.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.files import MANIFEST, PARTIAL
from cai_pyserini.experiments.run_folder import CURRENT, RunFolder, current

logger = logging.getLogger(__name__)


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
    yield from (run.results_file, run.report, run.page, run.changes)


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
