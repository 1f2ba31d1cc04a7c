"""Paths in object stores: on an S3 server, and in memory."""

import errno
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import s3fs

from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import EncoderConfig, encoder_yaml, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.store import StorePath, as_path
from cai_pyserini.indexes.cached import download

RECIPE = {"stage": "encode"}


def write(folder: Path) -> artifact.Stats:
    (folder / "a.txt").write_text("fünf\n" * 5, encoding="utf-8")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").touch()
    return {"lines": 5}


@pytest.fixture
def root() -> StorePath:
    return StorePath("memory://bucket")


@pytest.mark.parametrize("text", ["s3://bucket/a", "gs://b", "memory://x/y", "adl+x://a"])
def test_urls_are_store_paths(text: str) -> None:
    path = as_path(text)
    assert isinstance(path, StorePath) and str(path) == text
    assert str(path / "b" / "c.npz") == f"{text}/b/c.npz"
    assert pickle.loads(pickle.dumps(path)) == path == as_path(text + "/") == as_path(path) == path.absolute()


@pytest.mark.parametrize("text", ["a", "/a/b", "a/b:/c", "file:///a", "://a", "s3:/a"])
def test_other_strings_are_local_paths(text: str) -> None:
    assert as_path(text) == Path(text) and not isinstance(as_path(text), StorePath)
    assert as_path("s3://bucket/a") / "/b" == Path("/b")


@pytest.mark.parametrize("store", [pytest.param("bucket", marks=pytest.mark.slow), "root"])
def test_an_artifact_in_a_store(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root: StorePath = request.getfixturevalue(store)
    artifact.make(tmp_path / "same", {"stage": "idf"}, write)
    path = root / "folder" / "artifact"
    assert not path.exists() and list(path.iterdir()) == list(path.glob("*")) == [] and not artifact.read_manifest(path)
    for recipe, before in ((RECIPE, 0), (RECIPE, 1), ({"stage": "idf"}, 1)):
        assert bool(artifact.read_manifest(path)) == before
        assert artifact.make(path, recipe, write) == path
        assert artifact.require(path, recipe["stage"]).stats["lines"] == 5
        assert {str(file.relative_to(path)) for file in path.rglob("*")} == {"a.txt", "sub/b.txt", "manifest.json"}
    manifests = [json.loads((place / "manifest.json").read_text()) for place in (path, tmp_path / "same")]
    assert all(manifest.pop("created") and manifest["stats"].pop("seconds") >= 0 for manifest in manifests)
    assert manifests[0] == manifests[1]
    assert {file.name for file in path.iterdir()} == {"a.txt", "manifest.json"}
    assert list(path.glob("*.txt")) == [path / "a.txt"]
    assert path.is_dir() and not path.is_file() and (path / "a.txt").is_file() and not (path / "a.txt").is_dir()
    assert (path / "a.txt").read_text(encoding="utf-8") == "fünf\n" * 5 and (path / "a.txt").stat().st_size == 30
    with (path / "a.txt").open("rb") as file:
        assert (
            file.seek(-5, 2) == 25 and file.read() == "ünf\n".encode() and file.seek(1) == 1 and file.read(1) == b"\xc3"
        )
    with pytest.raises(FileNotFoundError) as error:
        (path / "missing").read_text()
    assert (error.value.errno, error.value.filename) == (errno.ENOENT, f"{path}/missing")
    (path / "missing").unlink(missing_ok=True)
    artifact.make(path, RECIPE, lambda folder: None)
    assert list(path.rglob("*")) == [path / "manifest.json"]


def test_an_upload_that_is_interrupted_leaves_no_manifest(root: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = StorePath.upload

    def interrupted(path: StorePath, source: Path) -> None:
        if path.name == "b.txt":
            raise KeyboardInterrupt
        upload(path, source)

    path = artifact.make(root / "interrupted", {"stage": "idf"}, write)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StorePath, "upload", interrupted)
        artifact.make(path, RECIPE, write)
    assert not artifact.read_manifest(path)
    artifact.make(path, RECIPE, write)
    assert artifact.require(path, "encode") and not (path / artifact.UNFINISHED).exists()


def test_a_folder_that_is_not_ours_is_refused(root: StorePath) -> None:
    files.write_text(root / "theirs" / "file", "")
    with pytest.raises(CaiError, match="theirs has files that this command has not made"):
        artifact.make(root / "theirs", RECIPE, write)
    with pytest.raises(CaiError, match="file is a file: choose a folder for the output"):
        artifact.make(root / "theirs" / "file", RECIPE, write)


def test_a_download_that_changes_meanwhile_is_refused(
    root: StorePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = artifact.make(root / "changing", RECIPE, write)
    download(path, tmp_path / "whole")
    assert artifact.read_manifest(tmp_path / "whole") == artifact.read_manifest(path)
    assert (tmp_path / "whole" / "sub" / "b.txt").is_file()

    download_file = StorePath.download

    def and_replace(file: StorePath, target: Path) -> None:
        download_file(file, target)
        artifact.make(path, {"stage": "idf"}, write)

    monkeypatch.setattr(StorePath, "download", and_replace)
    with pytest.raises(CaiError, match="changing was changed while it was downloaded"):
        download(path, tmp_path / "mixed")


def test_a_download_stays_inside_its_folder(tmp_path: Path) -> None:
    path = artifact.make(StorePath("memory://bucket/traversal"), RECIPE, write)
    store = fsspec.filesystem("memory").store
    store["/bucket/traversal/../outside"] = store["/bucket/traversal/a.txt"]
    with pytest.raises(CaiError, match=r"traversal/\.\./outside: refused, as it is outside memory://bucket/traversal"):
        download(path, tmp_path / "folder")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    "use",
    [
        lambda path: open(path),  # noqa: PTH123, SIM115
        lambda path: path.open("w"),
        lambda path: path.rename("other"),
        lambda path: path.resolve(),
        lambda path: path.write_text("text"),
        lambda path: Path("folder").rename(path),
    ],
)
def test_unsupported_uses_of_a_store_path_are_refused(use: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CaiError, match="memory://bucket/a is in an object store, which cannot be used here"):
        use(StorePath("memory://bucket/a"))


@pytest.mark.slow
def test_a_missing_bucket_is_named(bucket: StorePath) -> None:
    with pytest.raises(CaiError, match=r"s3://nowhere/a/.unfinished cannot be written \(The specified bucket does not"):
        artifact.make(StorePath("s3://nowhere/a"), RECIPE, write)
    with pytest.raises(CaiError, match="s3://nowhere/a is missing"):
        artifact.require(StorePath("s3://nowhere/a"), "encode")


@pytest.mark.slow
def test_an_unreachable_store_is_named(bucket: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(CaiError, match=f"{bucket}/a cannot be used .Could not connect to the endpoint"):
        (bucket / "a").exists()
    s3fs.S3FileSystem.clear_instance_cache()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaiError, match="gs://bucket/a: Please install gcsfs"):
        StorePath("gs://bucket/a").exists()
    with pytest.raises(CaiError, match="nothing://bucket/a: Protocol not known: nothing"):
        StorePath("nothing://bucket/a").exists()

    def missing(protocol: str, **options: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(CaiError, match=r"s3://bucket/a: Install s3fs to access S3: .*pip install .*\[s3\]"):
        StorePath("s3://bucket/a").exists()


def test_paths_in_an_encoder_yaml(root: StorePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "idf").mkdir()
    for folder in (root / "impacts", tmp_path / "impacts"):
        for idf, kept in ((f"{root}/idf", f"{root}/idf"), ("idf", str(tmp_path / "idf"))):
            text = encoder_yaml(EncoderConfig(name="", checkpoint="pip:x/y", idf=idf), folder)
            files.write_text(folder / "encoder.yaml", text)
            config = load_encoder(str(folder))
            assert config.name == "impacts" and config.idf
            assert config.idf == kept or Path(config.idf).resolve() == Path(kept)
