"""Checkpoints: where they are found, and what their digests depend on."""

import re
from pathlib import Path

import pytest

from cai_pyserini.cli.encode import main as encode
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from tests.hub import Hub


def test_a_hub_id_is_a_checkpoint(hub: Hub, checkpoint: Path) -> None:
    assert load_encoder("org/model") == EncoderConfig(name="model", checkpoint="org/model")
    hub.add_folder("org/model", checkpoint)
    hub.add("org/model", {"config.json": b"{}"}, revision="refs/pr/1")
    config = load_encoder("org/model")
    assert checkpoint_digest(checkpoint_folder(config)) == checkpoint_digest(checkpoint)
    other = checkpoint_folder(config.replace(revision="refs/pr/1"))
    assert [path.name for path in other.iterdir()] == ["config.json"]


@pytest.mark.parametrize("spec", ["org/none", "splade-tinny", "no such model!", "a/b/c"])
def test_what_is_no_encoder(spec: str, hub: Hub) -> None:
    message = (
        rf"^no encoder '{re.escape(spec)}': it is not in encoders/ \(.*splade-tiny.*\) and not a local folder, and "
        r"localhost:\d+ has no (org/none: correct the name|splade-tinny: correct the name|such names \(.+\)$)"
    )
    with pytest.raises(CaiError, match=message):
        checkpoint_folder(load_encoder(spec))


@pytest.mark.slow
def test_a_model_of_the_hub_encodes_as_its_folder_does(
    hub: Hub, checkpoint: Path, tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cai_pyserini")
    hub.add_folder("naver/splade-v3", checkpoint)
    for encoder, output in (("naver/splade-v3", "a"), (str(checkpoint), "b")):
        encode(["--collection", str(tiny), "--encoder", encoder, "--output", str(tmp_path / output)])
    notes = [message for message in caplog.messages if message.startswith("downloading")]
    assert len(notes) == 1 and notes[0].startswith("downloading naver/splade-v3 from localhost:")
    a, b = (artifact.require(tmp_path / name, "encode") for name in "ab")
    assert (a.digest, a.stats["nonzeros"]) == (b.digest, b.stats["nonzeros"])


@pytest.mark.parametrize("form", ["{}/absent", "./absent"])
def test_a_missing_checkpoint_folder_is_not_looked_for_on_the_hub(hub: Hub, tmp_path: Path, form: str) -> None:
    with pytest.raises(CaiError, match=r"no checkpoint folder .*absent"):
        checkpoint_folder(load_encoder(form.format(tmp_path)))
    assert hub.requests == []


@pytest.mark.parametrize(
    "name, whole, tokenizer",
    [
        ("model.safetensors", True, False),
        ("config.json", True, False),
        ("tokenizer.json", True, True),
        ("vocab.txt", True, True),
        *[(name, False, False) for name in ("README.md", "manifest.json", "log.json", "report.json", "encoder.yaml")],
    ],
)
def test_a_digest_is_of_what_matters(tmp_path: Path, name: str, whole: bool, tokenizer: bool) -> None:
    for file in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt", "README.md", "manifest.json"):
        (tmp_path / file).write_text("1")
    for file in ("log.json", "report.json", "encoder.yaml"):
        (tmp_path / file).write_text("1")
    before = checkpoint_digest(tmp_path), checkpoint_digest(tmp_path, tokenizer_only=True)
    (tmp_path / name).write_text("22")
    after = checkpoint_digest(tmp_path), checkpoint_digest(tmp_path, tokenizer_only=True)
    assert (before[0] != after[0], before[1] != after[1]) == (whole, tokenizer)
