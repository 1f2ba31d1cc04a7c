"""Results on disk that can be trusted: a manifest says what made each, and an unfinished one is never taken for whole.

An artifact is a file or a folder. Its recipe is everything its contents depend on: the stage, the settings and the
digests of the inputs. The manifest holds the recipe and is the last thing written, so an artifact whose manifest has
the wanted recipe is complete and up to date, and anything else is made again.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cai_pyserini import __version__
from cai_pyserini.cli import CaiError

Recipe = dict[str, Any]


def digest(recipe: Recipe) -> str:
    """A short name for a recipe: equal recipes have equal digests."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, read once a process for each version of the file."""
    status = path.stat()
    return _file_digest(path, status.st_size, status.st_mtime_ns)


@cache
def _file_digest(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_path(artifact: Path) -> Path:
    """`<folder>/manifest.json`, or `<file>.manifest.json` beside a file."""
    return artifact / "manifest.json" if artifact.is_dir() else artifact.with_name(artifact.name + ".manifest.json")


def read_manifest(artifact: Path) -> dict[str, Any] | None:
    """The manifest of a complete artifact; None where there is none."""
    path = manifest_path(artifact)
    if not artifact.exists() or not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise CaiError(
            f"{path}:{error.lineno}: not a manifest ({error.msg}); delete {artifact} and make it again"
        ) from None
    if not isinstance(manifest, dict) or not {"recipe", "digest"} <= manifest.keys():
        raise CaiError(f"{path}: not a manifest (it lacks recipe or digest); delete {artifact} and make it again")
    return manifest


def require_manifest(artifact: Path, stage: str) -> dict[str, Any]:
    """The manifest of an artifact that `stage` made; an error where it is missing, unfinished or something else."""
    manifest = read_manifest(artifact)
    if manifest is None:
        raise CaiError(f"{artifact} is missing or unfinished: make it with `python -m cai_pyserini.{stage}`")
    if manifest["recipe"]["stage"] != stage:
        raise CaiError(f"{artifact} was made by stage {manifest['recipe']['stage']!r}, not by {stage!r}")
    return manifest


def is_fresh(artifact: Path, recipe: Recipe) -> bool:
    """Whether `artifact` is complete and was made by exactly this recipe."""
    manifest = read_manifest(artifact)
    return manifest is not None and manifest["digest"] == digest(recipe)


def write_manifest(artifact: Path, recipe: Recipe, facts: dict[str, Any]) -> None:
    """Declare `artifact` complete. `facts` are what was found or counted while making it."""
    packages = ("pyserini", "torch", "transformers", "tokenizers")
    manifest = {
        "recipe": recipe,
        "digest": digest(recipe),
        **facts,
        "versions": {"cai_pyserini": __version__} | {name: version(name) for name in packages},
        "created": now(),
    }
    write_text(manifest_path(artifact), json.dumps(manifest, indent=1) + "\n")


def now() -> str:
    """The time, UTC, in a form that sorts."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yields a path to write a file to that is moved to `path` when it is whole, and removed when it is not."""
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all."""
    with beside(path) as partial:
        partial.write_text(text)


@contextmanager
def building(artifact: Path, recipe: Recipe, folder: bool = True) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Make an artifact beside its place and move it there when it is whole.

    Yields the temporary path to write to (an empty folder, or the path of a file not yet there) and a dict to fill
    with facts for the manifest. Where the body fails, nothing is left behind and the artifact is what it was before.
    """
    partial = artifact.with_name(f".{artifact.name}.partial")
    refuse_foreign(artifact)
    remove(partial)
    (partial if folder else partial.parent).mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        yield partial, facts
        facts.setdefault("seconds", round(time.perf_counter() - start, 3))
        if folder:
            write_manifest(partial, recipe, facts)
            remove(artifact)
            partial.rename(artifact)
        else:
            manifest_path(artifact).unlink(missing_ok=True)
            partial.replace(artifact)
            write_manifest(artifact, recipe, facts)
    except BaseException:
        remove(partial)
        raise


def refuse_foreign(path: Path, own: str = "manifest.json") -> None:
    """Raise CaiError for a folder that would be replaced but has files and not the one that marks ours."""
    if path.is_dir() and any(path.iterdir()) and not (path / own).exists() and not (path / "manifest.json").exists():
        raise CaiError(f"{path} has files that this command has not made: choose another --output, or empty it")


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        (path / "manifest.json").unlink(missing_ok=True)  # first, so that a half-deleted folder is not taken for whole
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def folder_bytes(folder: Path) -> int:
    """The size of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
