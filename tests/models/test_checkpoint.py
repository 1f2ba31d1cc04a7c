"""Checkpoints: where they are found, and what their digests depend on."""

import re
from pathlib import Path

import pytest
from huggingface_hub import constants

from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from tests.conftest import stage_command
from tests.hub import Hub

encode = stage_command("encode")


def test_a_hub_id_is_a_checkpoint(hub: Hub, checkpoint: Path) -> None:
    assert load_encoder("org/model") == EncoderConfig(name="model", checkpoint="org/model")
    hub.add_folder("org/model", checkpoint)
    hub.add("org/model", {"config.json": b"{}"}, revision="refs/pr/1")
    config = load_encoder("org/model")
    assert checkpoint_digest(checkpoint_folder(config)) == checkpoint_digest(checkpoint)
    other = checkpoint_folder(config.replace(revision="refs/pr/1"))
    assert [path.name for path in other.iterdir()] == ["config.json"]


@pytest.mark.parametrize("spec", ["org/none", "other-model", "no such model!", "a/b/c"])
def test_what_is_no_encoder(spec: str, hub: Hub) -> None:
    message = (
        rf"^no encoder '{re.escape(spec)}': it is not in encoders/ \(.*splade-tiny.*\) and not a local folder, and "
        r"localhost:\d+ has no (org/none: correct the name|other-model: correct the name|such names \(.+\)$)"
    )
    with pytest.raises(CaiError, match=message):
        checkpoint_folder(load_encoder(spec))


def test_a_typo_is_answered_without_the_hub(hub: Hub) -> None:
    with pytest.raises(CaiError, match="no encoder 'splade-tinny'; did you mean splade-tiny"):
        checkpoint_folder(load_encoder("splade-tinny"))


def test_a_wrong_name_is_answered_by_the_names_offline_too(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, value in (("HF_HUB_OFFLINE", True), ("ENDPOINT", "http://localhost:1")):
        with monkeypatch.context() as patch, pytest.raises(CaiError, match=r"^no encoder 'x': .*\(.*splade-tiny"):
            patch.setattr(constants, setting, value)
            checkpoint_folder(load_encoder("x"))


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
