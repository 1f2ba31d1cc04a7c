"""Uploads to a stand-in of a hub, by huggingface_hub itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from cai_pyserini.core.errors import CaiError
from cai_pyserini.ship.__main__ import main
from cai_pyserini.ship.hub import file_url
from tests.conftest import Command
from tests.ship.conftest import TOKEN

pytestmark = pytest.mark.slow


Upload = Callable[..., None]


@pytest.fixture
def upload(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upload:
    """Upload an encoder, from this process, which has read the variables of the environment long ago."""

    def run(*more: str, token: str = TOKEN, **changes: object) -> None:
        values = {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": hub.lfs} | changes
        for name, value in values.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", token)
        output = ["--output", str(tmp_path / "tiny"), "--push", "me/tiny"]
        main(["encoder", "splade-tiny", "--license", "apache-2.0", *output, *more])

    return run


def test_an_index_is_uploaded(hub: Any, run_folder: Path, tmp_path: Path, command: Command) -> None:
    index = run_folder / "indexes" / "splade-idf"
    arguments = ["index", index, "--output", tmp_path / "shipped", "--push", "me/indexes"]
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    done = command("cai_pyserini.ship", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{hub.url}/datasets/me/indexes/commit/{'0' * 40}"
    (created,) = hub.repositories
    assert (created["organization"], created["name"], created["type"]) == ("me", "indexes", "dataset")
    assert created["visibility"] == "private"
    local = {path.name: path.read_bytes() for path in (tmp_path / "shipped").iterdir() if path.name != "manifest.json"}
    assert hub.files == {("datasets/me/indexes", name): data for name, data in local.items()} and len(local) == 3
    (entry,) = json.loads(next(data for name, data in local.items() if name.endswith(".json")))
    assert entry["urls"] == [f"{hub.url}/datasets/me/indexes/resolve/main/{entry['filename']}"]


@pytest.mark.parametrize("lfs", [True, False])
def test_an_encoder_is_uploaded(lfs: bool, hub: Any, tmp_path: Path, upload: Upload) -> None:
    """With large files by LFS, and with the client's default, which asks the hub first."""
    hub.lfs = lfs
    upload("--public")
    (created,) = hub.repositories
    assert created["name"] == "tiny" and created.get("visibility") == "public"
    folder = tmp_path / "tiny"
    local = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del local["manifest.json"]
    assert hub.files == {("models/me/tiny", name): data for name, data in local.items()}
    assert "model.safetensors" in local
    assert "hf download me/tiny --local-dir tiny" in local["README.md"].decode()
    assert set(hub.cards) == {local["README.md"].decode()}


def test_a_refused_upload_can_be_tried_again(hub: Any, tmp_path: Path, upload: Upload) -> None:
    with pytest.raises(CaiError, match=r"could not be uploaded to me/tiny at http://127\.0\.0\.1.*401.*hf auth login"):
        upload(token="wrong")
    assert not hub.files
    written = (tmp_path / "tiny" / "model.safetensors").stat().st_mtime_ns
    upload()
    assert len(hub.files) > 3
    assert (tmp_path / "tiny" / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("changes", [{"HF_HUB_OFFLINE": True}, {"ENDPOINT": "http://127.0.0.1:9"}])
def test_a_hub_that_cannot_be_reached(changes: dict[str, object], upload: Upload) -> None:
    with pytest.raises(CaiError, match="could not be uploaded"):
        upload(**changes)


def test_an_id_that_no_repository_can_have() -> None:
    with pytest.raises(CaiError, match="'a/b/c' cannot be the id of a repository"):
        file_url("a/b/c", "file", "dataset")
