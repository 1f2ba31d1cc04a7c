"""Converted pickled checkpoints equal what transformers or sentence-transformers reads from the pickles."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from transformers import AutoModelForMaskedLM

from cai_pyserini.cli.convert import main
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import load_checkpoint, require_safetensors
from cai_pyserini.models.splade import Splade
from tests.hub import Hub

TEXTS = ["short fingers", "a fever that returns every other day, and a rash", "colon"]


def without_weights(checkpoint: Path, folder: Path) -> Path:
    return Path(shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors")))


def masked_lm(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForMaskedLM.from_pretrained(str(folder), trust_remote_code=False).state_dict()


@pytest.fixture
def pickled(checkpoint: Path, tmp_path: Path) -> Path:
    """splade-tiny as saved before safetensors existed, with embeddings and decoder in the same memory."""
    folder = without_weights(checkpoint, tmp_path / "pickled")
    torch.save(masked_lm(checkpoint), folder / "pytorch_model.bin")
    return folder


def split(folder: Path) -> None:
    """Split the weights into files of the older and the newer format, and an index."""
    tensors, weights = torch.load(folder / "pytorch_model.bin", weights_only=True), dict[str, str]()
    (folder / "pytorch_model.bin").unlink()
    for newer in (False, True):
        part = {name: tensor for name, tensor in tensors.items() if (".encoder." in name) == newer}
        weights |= dict.fromkeys(part, name := f"pytorch_model-0000{newer + 1}-of-00002.bin")
        torch.save(part, folder / name, _use_new_zipfile_serialization=newer)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))


def assert_same_weights(one: Path, other: Path) -> None:
    before, after = masked_lm(one), masked_lm(other)
    assert before.keys() == after.keys() and all(before[name].equal(after[name]) for name in before)


@pytest.mark.slow
def test_the_same_model_comes_out(
    pickled: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split(pickled)
    output = tmp_path / "safe"
    main(["checkpoint", str(pickled), "--output", str(output)])
    printed = capsys.readouterr().out
    assert printed.startswith("converted from pickles to safetensors:\nmodel") and printed.endswith(f"\n\n{output}\n")
    assert not list(output.glob("*.bin*")) and len(list(output.glob("*.safetensors"))) == 2
    inputs = artifact.require(output, "convert checkpoint").recipe["inputs"]
    weights = [path for path in pickled.iterdir() if path.suffix == ".bin"]
    assert {path.name: inputs[path.name] for path in weights} == {p.name: artifact.file_digest(p) for p in weights}

    assert_same_weights(pickled, output)
    vectors = [Splade(folder, "cpu", "float32").encode(TEXTS, 64) for folder in (checkpoint, output)]
    assert vectors[0].nnz > 30 and (vectors[0] != vectors[1]).nnz == 0
    written = (output / "manifest.json").stat().st_mtime_ns
    main(["checkpoint", str(pickled), "--output", str(output)])
    assert (output / "manifest.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_modules_of_sentence_transformers_are_converted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformer = Transformer(str(load_checkpoint("minilm")))
    width = transformer.get_embedding_dimension()
    folder, output = tmp_path / "dense", tmp_path / "safe"
    SentenceTransformer(modules=[transformer, Pooling(width, "cls"), Dense(width, 8)], device="cpu").save(str(folder))
    for path in folder.rglob("model.safetensors"):
        torch.save(load_file(path), path.with_name("pytorch_model.bin"))
        path.unlink()
    main(["checkpoint", str(folder), "--output", str(output)])
    assert (output / "2_Dense" / "model.safetensors").is_file() and not list(output.rglob("*.bin"))
    before, after = (SentenceTransformer(str(f), device="cpu").encode(TEXTS) for f in (folder, output))
    assert before.shape == (3, 8) and np.array_equal(before, after)


class Payload:
    """A payload that runs a command when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


# Converts each file as `python -m cai_pyserini.models.unpickle` does, in a process of its own, after one import.
EACH = """
import os, sys, torch
from cai_pyserini.core import terminal
from cai_pyserini.models import unpickle

for source in sys.argv[1:]:
    if not os.fork():
        sys.argv[1:] = source, f"{source}.safetensors"
        try:
            terminal.run(unpickle.main)
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_files_of_something_else_are_refused_and_code_in_them_does_not_run(pickled: Path, tmp_path: Path) -> None:
    marker, output = tmp_path / "ran", tmp_path / "safe"
    code = "refused, because it refers to posix.system, which is code; nothing in it was run. Use a safetensors file"
    tensors = "expected tensors by name and nothing else, as transformers saves them"
    holding = {"weight": torch.ones(2), "payload": Payload(marker)}
    saved: dict[str, tuple[Any, str]] = {
        **dict.fromkeys(("pytorch_model.bin", "legacy"), (holding, code)),
        "bare": (pickle.dumps(Payload(marker), protocol=2), code),
        "large": ({"w": torch.zeros(1).expand(10**12)}, "its tensors need more than 2.1 GB, many times its size"),
        "nested": ({"state_dict": {"w": torch.ones(1)}}, tensors),
        "sparse": ({"w": torch.ones(2).to_sparse()}, tensors),
        "damaged": (b"damaged", "refused, because it is damaged, or has more than tensors"),
    }
    files = [pickled / name for name in saved]
    for file, (data, reason) in zip(files, saved.values(), strict=True):
        if isinstance(data, bytes):
            file.write_bytes(data)
        else:
            torch.save(data, file, _use_new_zipfile_serialization=file.name != "legacy")
        if reason == code:
            with file.open("rb") as opened:
                pickle.load(opened) if file.name == "bare" else torch.load(opened, weights_only=False)
            marker.unlink()  # an unprotected reader runs it
    done = subprocess.run([sys.executable, "-c", EACH, *files], capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for error, file, (_, reason) in zip(errors, files, saved.values(), strict=True):
        assert error.startswith(f"error: {file}") and reason in error
    with pytest.raises(CaiError) as refused:
        main(["checkpoint", str(pickled), "--output", str(output)])
    assert str(refused.value) == f"{files[0]}: {code}"
    assert not marker.exists() and not output.exists() and not [*pickled.glob("*.safetensors")]


@pytest.mark.parametrize(
    "weights, message",
    [
        (None, "has no pytorch_model.bin$"),
        ({"w": "../pytorch_model.bin"}, r"index\.json: '\.\./pytorch_model\.bin' is not the name of a file of weights"),
        ({"w": "pytorch_model-1.bin"}, r"no file .*pytorch_model-1\.bin"),
        ([], r"index\.json: expected a JSON object with `weight_map`"),
    ],
)
def test_folders_without_pickles_are_refused(weights: Any, message: str, checkpoint: Path, tmp_path: Path) -> None:
    folder = without_weights(checkpoint, tmp_path / "folder")
    if weights is not None:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(CaiError, match=message):
        main(["checkpoint", str(folder), "--output", str(tmp_path / "safe")])


def test_a_checkpoint_with_safetensors_is_used_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="has safetensors already: use it as it is"):
        main(["checkpoint", "splade-tiny", "--output", str(tmp_path)])


@pytest.mark.slow
def test_pickles_of_a_hub_are_downloaded_by_this_command_only(hub: Hub, pickled: Path, tmp_path: Path) -> None:
    (pickled / "training_args.bin").write_bytes(b"never read")
    hub.add_folder("org/model", pickled)
    with pytest.raises(CaiError, match=r"has no .*\. Convert it with `cai-pyserini convert check"):
        require_safetensors(load_checkpoint("org/model"))
    assert not list(tmp_path.rglob("hub/**/*.bin"))
    main(["checkpoint", "org/model", "--output", str(tmp_path / "safe")])
    assert [path.name for path in tmp_path.rglob("hub/**/*.bin")] == ["pytorch_model.bin"]
    require_safetensors(tmp_path / "safe")
    assert_same_weights(pickled, tmp_path / "safe")
