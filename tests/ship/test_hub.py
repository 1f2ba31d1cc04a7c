"""Uploads to a stand-in of a hub, by huggingface_hub itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.ship.hub import file_url
from tests.conftest import Command
from tests.ship.conftest import TOKEN

pytestmark = pytest.mark.slow


def environment(hub: Any, token: str = TOKEN) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": str(int(hub.lfs))}


def upload(folder: Path) -> list[str]:
    """What uploads an encoder that is written to `folder`/tiny."""
    return ["encoder", "splade-tiny", "--license", "apache-2.0", "--output", str(folder / "tiny"), "--push", "me/tiny"]


def test_an_index_is_uploaded(hub: Any, run_folder: Path, tmp_path: Path, command: Command) -> None:
    index = run_folder / "indexes" / "splade-idf"
    arguments = ["index", index, "--output", tmp_path / "shipped", "--push", "me/indexes"]
    done = command("cai_pyserini.ship", *arguments, **environment(hub))
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
def test_an_encoder_is_uploaded(lfs: bool, hub: Any, tmp_path: Path, command: Command) -> None:
    """With large files by LFS, and with the client's default, which asks the hub first."""
    hub.lfs = lfs
    done = command("cai_pyserini.ship", *upload(tmp_path), "--public", **environment(hub))
    assert done.returncode == 0, done.stderr
    (created,) = hub.repositories
    assert created["name"] == "tiny" and created.get("visibility") == "public"
    folder = tmp_path / "tiny"
    local = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del local["manifest.json"]
    assert hub.files == {("models/me/tiny", name): data for name, data in local.items()}
    assert "model.safetensors" in local
    assert "hf download me/tiny --local-dir tiny" in local["README.md"].decode()
    assert set(hub.cards) == {local["README.md"].decode()}


def test_a_refused_upload_can_be_tried_again(hub: Any, tmp_path: Path, command: Command) -> None:
    done = command("cai_pyserini.ship", *upload(tmp_path), **environment(hub, "wrong"))
    assert done.returncode == 1 and "could not be uploaded to me/tiny at http://127.0.0.1" in done.stderr
    assert "401" in done.stderr and "hf auth login" in done.stderr and not hub.files
    written = (tmp_path / "tiny" / "model.safetensors").stat().st_mtime_ns
    done = command("cai_pyserini.ship", *upload(tmp_path), **environment(hub))
    assert done.returncode == 0 and len(hub.files) > 3
    assert (tmp_path / "tiny" / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("changes", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_a_hub_that_cannot_be_reached(hub: Any, changes: dict[str, str], tmp_path: Path, command: Command) -> None:
    done = command("cai_pyserini.ship", *upload(tmp_path), **environment(hub) | changes)
    assert done.returncode == 1 and "error: " in done.stderr and "could not be uploaded" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_id_that_no_repository_can_have() -> None:
    with pytest.raises(CaiError, match="'a/b/c' cannot be the id of a repository"):
        file_url("a/b/c", "file", "dataset")
