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

pytestmark = pytest.mark.slow


@pytest.fixture
def upload(hub: Any, tmp_path: Path) -> Callable[..., None]:
    """Upload an encoder."""
    output = ["--output", str(tmp_path / "tiny"), "--push", "me/tiny"]
    return lambda *more: main(["encoder", "splade-tiny", "--license", "apache-2.0", *output, *more])


def local_files(folder: Path) -> dict[str, bytes]:
    """The files that are to be uploaded."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_an_index_is_uploaded(
    java: None, hub: Any, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, output = run_folder / "indexes" / "splade-idf", tmp_path / "shipped"
    main(["index", str(index), "--output", str(output), "--push", "me/indexes"])
    assert capsys.readouterr().out.splitlines()[-1] == f"{hub.url}/datasets/me/indexes/commit/{'0' * 40}"
    (created,) = hub.repositories
    assert (created["organization"], created["name"], created["type"]) == ("me", "indexes", "dataset")
    assert created["visibility"] == "private"
    local = local_files(output)
    assert hub.files == {("datasets/me/indexes", name): data for name, data in local.items()} and len(local) == 3
    (entry,) = json.loads(next(data for name, data in local.items() if name.endswith(".json")))
    assert entry["urls"] == [f"{hub.url}/datasets/me/indexes/resolve/main/{entry['filename']}"]


def test_an_encoder_is_uploaded(hub: Any, tmp_path: Path, upload: Callable[..., None]) -> None:
    upload("--public")
    (created,) = hub.repositories
    assert created["name"] == "tiny" and created.get("visibility") == "public"
    local = local_files(tmp_path / "tiny")
    assert hub.files == {("models/me/tiny", name): data for name, data in local.items()}
    assert "model.safetensors" in local
    assert "hf download me/tiny --local-dir tiny" in local["README.md"].decode()


def test_a_refused_upload_can_be_tried_again(
    hub: Any, tmp_path: Path, upload: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("HF_TOKEN", "wrong")
        with pytest.raises(CaiError, match=r"not be uploaded to me/tiny at http://127\.0\.0\.1.*401.*hf auth login"):
            upload()
    for name, value in (("HF_HUB_OFFLINE", True), ("ENDPOINT", "http://127.0.0.1:9")):
        with monkeypatch.context() as patch, pytest.raises(CaiError, match="could not be uploaded"):
            patch.setattr(constants, name, value)
            upload()
    assert not hub.files
    written = (tmp_path / "tiny" / "model.safetensors").stat().st_mtime_ns
    upload()
    assert len(hub.files) > 3
    assert (tmp_path / "tiny" / "model.safetensors").stat().st_mtime_ns == written


def test_an_id_that_no_repository_can_have() -> None:
    with pytest.raises(CaiError, match="'a/b/c' cannot be the id of a repository"):
        file_url("a/b/c", "file", "dataset")
