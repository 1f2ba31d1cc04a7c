"""Checkpoints: where they are found, and what their digests depend on."""

import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache on an offline machine."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_hub_id_is_a_checkpoint(hub: Path) -> None:
    assert load_encoder("org/model") == EncoderConfig(name="model", checkpoint="org/model")
    for spec in ("org/model", "splade-tinny", "no such model!", "a/b/c"):
        message = (
            rf"^no encoder '{re.escape(spec)}': it is not in encoders/ \(.*splade-tiny.*\), not a local folder, and "
            r"could not be downloaded from the hub \(.+\)$"
        )
        with pytest.raises(CaiError, match=message):
            checkpoint_folder(load_encoder(spec))


@pytest.mark.parametrize("form", ["{}/absent", "./absent"])
def test_a_missing_checkpoint_folder_is_not_looked_for_on_the_hub(hub: Path, form: str) -> None:
    with pytest.raises(CaiError, match=r"no checkpoint folder .*absent"):
        checkpoint_folder(load_encoder(form.format(hub)))


def test_a_downloaded_model_is_found_offline(hub: Path, checkpoint: Path) -> None:
    repository = hub / "models--org--name"
    for branch, commit in (("main", "0" * 40), ("refs/pr/1", "1" * 40)):
        shutil.copytree(checkpoint, repository / "snapshots" / commit)
        reference = repository / "refs" / branch
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)
    config = load_encoder("org/name")
    assert checkpoint_folder(config) == repository / "snapshots" / ("0" * 40)
    assert checkpoint_folder(config.replace(revision="refs/pr/1")) == repository / "snapshots" / ("1" * 40)
    assert checkpoint_digest(checkpoint_folder(config)) == checkpoint_digest(checkpoint)


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


def test_an_error_of_the_hub_without_a_message_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CaiError, match=r"could not be downloaded from the hub \(ConnectionError\)$"):
        checkpoint_folder(EncoderConfig(name="model", checkpoint="org/model"))
