"""Artifacts: what is unfinished, out of date or broken is never used."""

import json
import shutil
from pathlib import Path

import pytest

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError

OLD, NEW = {"stage": "idf", "bits": 8}, {"stage": "idf", "bits": 10}
FORMS = pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])


def make(
    path: Path, recipe: artifact.Recipe, content: str, folder: bool = True, fail: type[BaseException] | None = None
) -> Path:
    """Make an artifact that holds `content`, or fail after writing it."""

    def write(partial: Path) -> artifact.Stats:
        (partial / "data" if folder else partial).write_text(content)
        if fail:
            raise fail
        return {"length": len(content)}

    return artifact.make(path, recipe, write, folder=folder)


def content(path: Path) -> str:
    return (path / "data" if path.is_dir() else path).read_text()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@FORMS
def test_a_made_artifact_is_up_to_date(tmp_path: Path, folder: bool) -> None:
    path = make(tmp_path / "a", NEW, "data", folder)
    assert artifact.is_up_to_date(path, dict(reversed(NEW.items())))
    assert not artifact.is_up_to_date(path, OLD)
    manifest = artifact.require(path, "idf")
    assert (manifest.recipe, manifest.stats["length"], manifest.format) == (NEW, 4, artifact.FORMAT)
    assert manifest.stats["seconds"] >= 0
    assert manifest.versions.keys() >= {"cai_pyserini", "torch"}
    assert names(tmp_path) == (["a"] if folder else ["a", "a.manifest.json"])


@FORMS
def test_what_is_up_to_date_is_not_made_again(tmp_path: Path, folder: bool) -> None:
    make(tmp_path / "a", NEW, "first", folder)
    assert content(make(tmp_path / "a", NEW, "second", folder)) == "first"


def test_a_package_that_is_not_installed_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "PACKAGES", ("torch", "no-such-package-here"))
    assert artifact.require(make(tmp_path / "a", NEW, "data"), "idf").versions.keys() == {"cai_pyserini", "torch"}


@FORMS
@pytest.mark.parametrize("fail", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, folder: bool, fail: type[BaseException]) -> None:
    with pytest.raises(fail):
        make(tmp_path / "a", NEW, "half", folder, fail)
    assert names(tmp_path) == []


@FORMS
def test_the_old_artifact_survives_a_failed_rebuild(tmp_path: Path, folder: bool) -> None:
    path = make(tmp_path / "a", OLD, "old", folder)
    with pytest.raises(KeyboardInterrupt):
        make(path, NEW, "half", folder, KeyboardInterrupt)
    assert artifact.is_up_to_date(path, OLD)
    assert content(path) == "old"
    assert names(tmp_path) == (["a"] if folder else ["a", "a.manifest.json"])


@FORMS
def test_a_new_artifact_replaces_the_old_one(tmp_path: Path, folder: bool) -> None:
    make(tmp_path / "a", OLD, "old", folder)
    path = make(tmp_path / "a", NEW, "new", folder)
    assert content(path) == "new"
    assert (artifact.is_up_to_date(path, OLD), artifact.is_up_to_date(path, NEW)) == (False, True)


@FORMS
def test_what_a_killed_process_left_is_discarded(tmp_path: Path, folder: bool) -> None:
    partial = tmp_path / ".a.partial"
    if folder:
        partial.mkdir()
        (partial / "junk").touch()
    else:
        partial.write_text("junk")
    path = make(tmp_path / "a", NEW, "new", folder)
    assert content(path) == "new"
    assert not partial.exists()
    assert not (path / "junk").exists()


@FORMS
def test_an_artifact_without_a_manifest_is_unfinished(tmp_path: Path, folder: bool) -> None:
    path = make(tmp_path / "a", NEW, "new", folder)
    artifact.manifest_path(path).unlink()
    assert not artifact.is_up_to_date(path, NEW)
    with pytest.raises(CaiError, match=r"a is missing or unfinished: make it with `python -m cai_pyserini\.idf`"):
        artifact.require(path, "idf")


def test_a_manifest_without_its_file_does_not_count(tmp_path: Path) -> None:
    path = make(tmp_path / "a", NEW, "new", folder=False)
    path.unlink()
    assert not artifact.is_up_to_date(path, NEW)
    assert artifact.read_manifest(path) is None


def test_a_file_whose_manifest_could_not_be_written_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a", OLD, "old", folder=False)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(artifact, "write_text", fail)
        with pytest.raises(OSError, match="no space left"):
            make(path, NEW, "new", folder=False)
    assert content(path) == "new"
    assert not artifact.is_up_to_date(path, OLD)
    assert not artifact.is_up_to_date(path, NEW)


@FORMS
@pytest.mark.parametrize(
    "text, reason",
    [
        ("", ":1: not a manifest (Expecting value)"),
        ('{"recipe": {"stage": "idf"', ":1: not a manifest (Expecting ',' delimiter)"),
        ("[]", ": not a manifest (recipe or digest is missing)"),
        ("{}", ": not a manifest (recipe or digest is missing)"),
        (json.dumps({"recipe": {}, "digest": "", "format": artifact.FORMAT}), ": not a manifest (it has been changed)"),
    ],
)
def test_a_broken_manifest_is_named(tmp_path: Path, folder: bool, text: str, reason: str) -> None:
    path = make(tmp_path / "a", NEW, "new", folder)
    manifest = artifact.manifest_path(path)
    manifest.write_text(text)
    for read in (lambda: artifact.is_up_to_date(path, NEW), lambda: artifact.require(path, "idf")):
        with pytest.raises(CaiError) as error:
            read()
        assert str(error.value) == f"{manifest}{reason}; delete {path} and make it again"


def test_an_artifact_of_another_stage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="a was made by stage 'idf', not by 'encode'"):
        artifact.require(make(tmp_path / "a", NEW, "new"), "encode")


@FORMS
@pytest.mark.parametrize("format", [None, 1, artifact.FORMAT + 1], ids=["before formats", "older", "newer"])
def test_an_artifact_of_another_version_is_refused_and_remade(tmp_path: Path, folder: bool, format: int | None) -> None:
    path = make(tmp_path / "a", NEW, "old", folder)
    manifest = artifact.manifest_path(path)
    data = json.loads(manifest.read_text())
    del data["format"], data["stats"]
    manifest.write_text(json.dumps(data | {"length": 3} | ({"format": format} if format else {})))
    message = r"a was made by another version of cai_pyserini: make it again with `python -m cai_pyserini\.idf`"
    with pytest.raises(CaiError, match=message):
        artifact.require(path, "idf")
    assert not artifact.is_up_to_date(path, NEW)
    make(path, NEW, "new", folder)
    assert content(path) == "new"
    assert artifact.require(path, "idf").recipe == NEW


def test_the_manifest_is_deleted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a", NEW, "new")

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            artifact.remove(path)
    assert content(path) == "new"
    assert not artifact.is_up_to_date(path, NEW)


@pytest.mark.parametrize("kind", ["folder", "file", "nothing"])
def test_remove(tmp_path: Path, kind: str) -> None:
    if kind != "nothing":
        make(tmp_path / "a", NEW, "new", kind == "folder")
    artifact.remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def step(folder: Path, total: int) -> artifact.Stats | None:
    """Write the first missing of `total` files, as a process that is stopped after each one would."""
    missing = [i for i in range(total) if not (folder / str(i)).exists()]
    (folder / str(missing[0])).touch()
    return {"files": total} if len(missing) == 1 else None


def test_a_resumable_artifact_is_complete_once_nothing_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for done in ([".unfinished", "0"], [".unfinished", "0", "1"], ["0", "1", "2", "manifest.json"]):
        artifact.make(path, NEW, lambda folder: step(folder, 3), resumable=True)
        assert names(path) == done
        assert artifact.is_up_to_date(path, NEW) == ("manifest.json" in done)
    assert artifact.require(path, "idf").stats["files"] == 3
    artifact.make(path, NEW, lambda folder: pytest.fail("it is up to date"), resumable=True)


def test_a_resumable_artifact_keeps_its_files_but_not_its_manifest(tmp_path: Path) -> None:
    path = artifact.make(tmp_path / "a", OLD, lambda folder: step(folder, 1), resumable=True)

    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        artifact.make(path, NEW, interrupted, resumable=True)
    assert names(path) == [".unfinished", "0"]
    assert not artifact.is_up_to_date(path, OLD)
    artifact.make(path, NEW, lambda folder: {}, resumable=True)
    assert names(path) == ["0", "manifest.json"]


def test_equal_values_have_equal_digests_and_others_do_not() -> None:
    assert artifact.digest({"a": 1, "b": [1, 2]}) == artifact.digest({"b": [1, 2], "a": 1})
    recipes = [{"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": [2, 1]}, {"a": [1, 2]}, {"b": 1}]
    assert len({artifact.digest(recipe) for recipe in recipes}) == len(recipes)


def test_a_file_digest_is_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    assert artifact.file_digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"abcd")
    assert artifact.file_digest(path) == "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589"


def test_an_atomic_write_replaces_the_file_or_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "f"
    artifact.write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), artifact.atomic_write(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert (path.read_text(), names(path.parent)) == ("old", ["f"])
    artifact.write_text(path, "new")
    assert (path.read_text(), names(path.parent)) == ("new", ["f"])


def test_several_writers_of_a_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with artifact.atomic_write(path, "one") as first:
        first.write_text("half of")
        with artifact.atomic_write(path, "two") as second:
            second.write_text("whole")
        assert (path.read_text(), first.read_text()) == ("whole", "half of")
        first.write_text("last")
    assert (path.read_text(), names(tmp_path)) == ("last", ["f"])


def test_folder_bytes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "sub" / "b").write_bytes(b"4567")
    assert artifact.folder_bytes(tmp_path) == 7


# Where an artifact may be written.


def test_a_folder_of_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(CaiError, match="mine has files that this command has not made: choose another --output"):
        make(tmp_path / "mine", NEW, "new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "thesis.txt"]


def test_an_empty_folder_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert content(make(tmp_path / "empty", NEW, "new")) == "new"


def test_a_marker_makes_a_folder_ours(tmp_path: Path) -> None:
    (tmp_path / "results.json").touch()
    artifact.require_writable(tmp_path, marker="results.json")
    with pytest.raises(CaiError, match="has files that this command has not made"):
        artifact.require_writable(tmp_path, marker="report.md")


def test_a_folder_cannot_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(CaiError, match="a is a file: choose a folder for --output"):
        make(tmp_path / "a", NEW, "new")
    assert (tmp_path / "a").read_text() == "mine"


def test_a_file_cannot_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(CaiError, match="a is a folder: choose a file for --output"):
        make(tmp_path / "a", NEW, "new", folder=False)


def test_a_file_is_not_a_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(CaiError, match=r"a/b/c cannot be written: .*/a is a file; choose another --output"):
        make(tmp_path / "a" / "b" / "c", NEW, "new")


def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaiError, match=r"\. is the current folder, which cannot be replaced"):
        make(Path(), NEW, "new")
    artifact.make(Path(), NEW, lambda folder: step(folder, 1), resumable=True)
    assert names(tmp_path) == ["0", "manifest.json"]
