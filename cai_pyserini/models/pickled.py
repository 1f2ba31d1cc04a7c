"""Convert a checkpoint with pickled weights to safetensors."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import MANIFEST
from cai_pyserini.core.terminal import progress
from cai_pyserini.models import unpickle
from cai_pyserini.models.checkpoint import checkpoint_folder, suffixes

WEIGHTS = "pytorch_model.bin"
INDEX = f"{WEIGHTS}.index.json"  # of weights in several files
SHARD = re.compile(r"pytorch_model[\w-]*\.bin")
MODULE = re.compile(r"(\w+_)?\d+_\w+")  # the folder of a module in a sentence-transformers folder


def convert_checkpoint(spec: str, output: Path) -> Path:
    """Write a checkpoint with its pickled weights as safetensors, and all other files that a model is loaded from.

    `spec` names an encoder, see load_encoder. Tensors that share memory become copies, so that the weights keep all
    their names. Raises CaiError for a checkpoint without pickles, with safetensors, or with more than tensors in them.
    """
    config = load_encoder(spec)
    source = checkpoint_folder(config, pickles=True)
    folders = [source, *(path for path in sorted(source.iterdir()) if path.is_dir() and MODULE.fullmatch(path.name))]
    pickles = [path for folder in folders for path in _pickles(folder)]
    if not pickles:
        has_safetensors = any(path for folder in folders for path in folder.glob("*.safetensors"))
        reason = "has safetensors already: use it as it is" if has_safetensors else f"has no {WEIGHTS}"
        raise CaiError(f"{source} {reason}")
    others = [
        path
        for folder in folders
        for path in sorted(folder.iterdir())
        if path.suffix in suffixes(config) and path.name not in (MANIFEST, INDEX)
    ]
    names = [path.relative_to(source).as_posix() for path in (*pickles, *others)]
    recipe = artifact.recipe(
        "convert checkpoint",
        {name: artifact.file_digest(source / name) for name in progress(names, len(names), "digest", "files")},
    )

    def write(folder: Path) -> artifact.Stats:
        for path in others:
            (target := folder / path.relative_to(source)).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        written = {}
        for path in progress(pickles, len(pickles), "convert", "files"):
            target = _renamed(path.relative_to(source))
            (folder / target).parent.mkdir(exist_ok=True)
            written[target.as_posix()] = _unpickle(path, folder / target)
        for path in {path.parent / INDEX for path in pickles if path.name != WEIGHTS}:
            index = json.loads(path.read_text(encoding="utf-8"))
            index["weight_map"] = {name: str(_renamed(Path(file))) for name, file in index["weight_map"].items()}
            name = folder / path.parent.relative_to(source) / "model.safetensors.index.json"
            name.write_text(json.dumps(index, indent=1), encoding="utf-8")
        return {"written": written}

    return artifact.make(output, recipe, write)


def _pickles(folder: Path) -> list[Path]:
    """The pickled weights of a folder without safetensors: one file, or the files in the index."""
    if any(folder.glob("*.safetensors")):
        return []
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (index := folder / INDEX).is_file():
        return []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if wrong := [name for name in names if not SHARD.fullmatch(name)]:
            raise CaiError(f"{index}: {wrong[0]!r} is not the name of a file of weights, such as {WEIGHTS}")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CaiError(f"{index}: expected a JSON object with `weight_map`, which maps weights to files") from None
    return [folder / name for name in names]


def _renamed(path: Path) -> Path:
    return path.with_name(path.name.replace("pytorch_model", "model")).with_suffix(".safetensors")


def _unpickle(source: Path, target: Path) -> dict[str, int]:
    """Convert one file in a separate process, see unpickle. Returns the numbers of tensors and bytes."""
    command = [sys.executable, "-m", unpickle.__name__, str(source), str(target)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [""])[-1]
        died = f"{source} cannot be read: the process that reads it died (exit code {process.returncode}) {last}"
        raise CaiError(last.removeprefix("error: ") if last.startswith("error: ") else died)
    counts: dict[str, int] = json.loads(process.stdout)
    return counts
