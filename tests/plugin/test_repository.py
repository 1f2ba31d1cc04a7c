"""Encoders and indexes on a hub: pushed and pulled through huggingface_hub, from a server on this machine."""

import json
import logging
import shutil
from pathlib import Path

import pytest
from huggingface_hub import DatasetCard

from cai_pyserini.cli.ship import main
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from cai_pyserini.models.idf import idf_digest
from cai_pyserini.plugin import registry
from cai_pyserini.plugin.encoder import ship_encoder
from cai_pyserini.plugin.index import pack
from cai_pyserini.plugin.repository import pull, push
from tests.hub import OTHER, OWNER, Hub
from tests.plugin.test_registry import index, write_entry

__all__ = ["index"]
pytestmark = [
    pytest.mark.usefixtures("cache"),
    pytest.mark.filterwarnings(
        "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
    ),  # of huggingface_hub
]


def shipped(folder: Path, name: str = "x", **files: str) -> Path:
    """A folder as `ship encoder` leaves it."""

    def write(path: Path) -> None:
        for file, text in {"encoder.yaml": "checkpoint: .\n", "README.md": "# x\n", **files}.items():
            (path / file).write_text(text)

    return artifact.make(folder, artifact.recipe("ship", {}, card=[name, *files.items()]), write)


@pytest.fixture
def owner(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_TOKEN", OWNER)
    return hub


@pytest.mark.slow
def test_an_index(
    owner: Hub, run_folder: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second push replaces the first, but not other files; what was pulled before can still be fetched."""
    source = run_folder / "indexes" / "splade-idf"
    key = "datasets", "me/tiny"
    for name in ("first", "second"):
        main(["index", str(source), "--output", str(tmp_path / name), "--name", name])
        main(["push", str(tmp_path / name), "me/tiny", "--private"])
        files = owner.repositories[key]["main"]
        archives = [file for file in files if file.endswith(".tar.gz")]
        assert len(archives) == 1 and name in archives[0]
        owner.add("me/tiny", files | {"LICENSE": b"mine"}, "datasets", name)
        owner.add("me/tiny", files | {"LICENSE": b"mine"}, "datasets")
    assert sorted(files) == sorted(
        [".gitattributes", "LICENSE", "README.md", "SKILL.md", archives[0], archives[0].replace("tar.gz", "json")]
    )
    card = DatasetCard(files["README.md"].decode())
    assert "lucene" in card.data.tags and "ship pull me/tiny" in card.text and "## Scores" in card.text
    capsys.readouterr()
    main(["pull", "me/tiny"])
    folder = Path(capsys.readouterr().out.strip())
    entry = registry.find("second")
    assert folder == cache / "indexes" / f"{entry.folder}.{entry.sha256}"
    assert artifact.require(folder, "index").digest == artifact.require(source, "index").digest
    assert pull("me/tiny", "first").name.startswith(registry.find("first").folder)
    shutil.rmtree(folder)
    main(["get", "second"])
    assert (folder / "manifest.json").is_file()


@pytest.mark.slow
def test_an_encoder(owner: Hub, run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its IDF; one that is given by its name on the hub has none, and a warning."""
    source = run_folder / "indexes" / "splade-idf"
    push(ship_encoder(str(source), tmp_path / "mine", "apache-2.0"), "me/mine")
    assert "manifest.json" not in owner.repositories["models", "me/mine"]["main"]
    expected, config = load_encoder(str(source)), load_encoder(str(pull("me/mine")))
    assert config.name == expected.name and idf_digest(config.idf_folder) == idf_digest(expected.idf_folder)
    assert checkpoint_digest(checkpoint_folder(config)) == checkpoint_digest(checkpoint_folder(expected))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert not warnings
    checkpoint_folder(load_encoder("me/mine"))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings[0].startswith("me/mine has an encoder.yaml, whose settings are not used: ")


def test_shards_of_an_earlier_push_are_deleted(owner: Hub, tmp_path: Path) -> None:
    """They would be loaded beside the new weights. A push of the same again is no new commit."""
    push(shipped(tmp_path / "x", **{"model-1.safetensors": "1", "model-2.safetensors": "2"}), "me/x")
    push(shipped(tmp_path / "x", **{"model.safetensors": "3"}), "me/x")
    assert [*owner.repositories["models", "me/x"]["main"]] == [
        ".gitattributes",
        "README.md",
        "encoder.yaml",
        "model.safetensors",
    ]


def test_pushes_that_are_refused(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shipped(tmp_path / "x")
    with pytest.raises(
        CaiError, match=r"^pushing to me/x needs a token that may write there: log in with `hf auth login`"
    ):
        push(folder, "me/x")
    monkeypatch.setenv("HF_TOKEN", OTHER)
    with pytest.raises(CaiError, match=r"forbids this with your token \(.+\): use one that may write to me/x$"):
        push(folder, "me/x")
    monkeypatch.setenv("HF_TOKEN", OWNER)
    hub.add("me/x", {"kept": b""})
    with pytest.raises(CaiError, match=r"^me/x exists and is public: make it private in its settings"):
        push(folder, "me/x", private=True)
    (tmp_path / "y").mkdir()
    with pytest.raises(CaiError, match=r"y has no manifest"):
        push(tmp_path / "y", "me/x")
    assert hub.repositories == {("models", "me/x"): {"main": {"kept": b""}}}


def test_a_private_index_is_not_shown_to_others(
    hub: Hub, index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry(tmp_path / "shipped", index)
    hub.add_folder("me/x", tmp_path / "shipped", "datasets")
    hub.private.add("me/x")
    with pytest.raises(CaiError, match=r"has no me/x: correct the name, or it is private: log in"):
        pull("me/x")
    monkeypatch.setenv("HF_TOKEN", OWNER)
    assert (pull("me/x") / "data").read_text() == (index / "data").read_text()
    monkeypatch.delenv("HF_TOKEN")
    shutil.rmtree(cache / "indexes")
    with pytest.raises(
        CaiError, match=r"hf://datasets/me/x@[0-9a-f]{40}/x\.y\.tar\.gz: cannot be downloaded \(.+not found"
    ):
        main(["get", "y"])


def test_repositories_of_strangers(hub: Hub, index: Path, cache: Path, tmp_path: Path) -> None:
    """What is refused adds nothing to the registry, and leaves no index behind."""
    folder = tmp_path / "shipped"
    entry = write_entry(folder, index, urls=["https://example.org/x.y.tar.gz"])  # not asked: the hub's file is
    record = json.loads(entry.read_text())[0]
    size = pack([tmp_path / "shipped"], "../y", tmp_path / "outside.tar.gz")
    archive = (tmp_path / "outside.tar.gz").read_bytes()
    sums = {"sha256": artifact.file_digest(tmp_path / "outside.tar.gz"), "size": len(archive), "unpacked_size": size}
    refused = {
        "other bytes": {"entry.json": entry.read_bytes(), "x.y.tar.gz": b"something else"},
        "no archive": {"entry.json": entry.read_bytes()},
        "outside": {"entry.json": json.dumps([record | sums]).encode(), "x.y.tar.gz": archive},
        "two": {"a.json": b"[]", "b.json": b"[]"},
        "none": {"a.json": b"[]"},
        "no entry": {"a.json": b"{"},
    }
    messages = {
        "other bytes": "refused, as it is not the [0-9,]+ bytes with SHA-256",
        "no archive": r"hf://datasets/me/x@[0-9a-f]{40}/x\.y\.tar\.gz: cannot be downloaded",
        "outside": r"refused, as '\.\./y' is no regular file or folder in x\.y",
        "two": "has 2 JSON files, not one with the entry of an index",
        "none": "has 0 entries, not one",
        "no entry": "not a list of registry entries",
    }
    for name, files in refused.items():
        hub.add("me/x", files, "datasets")
        with pytest.raises(CaiError, match=messages[name]):
            pull("me/x")
    assert registry.entries() == {} and not [*(cache / "indexes").iterdir()]
    hub.add("me/model", {"config.json": b"{}"})
    with pytest.raises(
        CaiError, match=r"^me/model has no encoder\.yaml, so nothing to pull: use it as `--encoder me/model`"
    ):
        pull("me/model")
