"""Artifacts: what is unfinished, out of date or broken is never taken for whole."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cai_pyserini import artifact
from cai_pyserini.cli import CaiError

OLD, NEW = {"stage": "idf", "bits": 8}, {"stage": "idf", "bits": 10}
FORMS = pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])


def make(place: Path, recipe: artifact.Recipe, content: str, folder: bool, fail: type[BaseException] | None = None):
    """Make an artifact that holds `content`, or fail with that already written."""
    with artifact.building(place, recipe, folder) as (partial, facts):
        (partial / "data" if folder else partial).write_text(content)
        facts["length"] = len(content)
        if fail:
            raise fail
    return place


def content(place: Path) -> str:
    return (place / "data" if place.is_dir() else place).read_text()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@FORMS
def test_what_was_made_is_fresh(tmp_path: Path, folder: bool) -> None:
    place = make(tmp_path / "a", NEW, "data", folder)
    assert artifact.is_fresh(place, dict(reversed(NEW.items())))
    assert not artifact.is_fresh(place, OLD)
    manifest = artifact.require_manifest(place, "idf")
    assert (manifest["recipe"], manifest["length"]) == (NEW, 4)
    assert manifest["versions"].keys() >= {"cai_pyserini", "pyserini", "torch"}
    assert names(tmp_path) == (["a"] if folder else ["a", "a.manifest.json"])


@FORMS
@pytest.mark.parametrize("fail", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, folder: bool, fail: type[BaseException]) -> None:
    with pytest.raises(fail):
        make(tmp_path / "a", NEW, "half", folder, fail)
    assert names(tmp_path) == []


@FORMS
def test_the_old_one_survives_a_failed_rebuild(tmp_path: Path, folder: bool) -> None:
    place = make(tmp_path / "a", OLD, "old", folder)
    with pytest.raises(KeyboardInterrupt):
        make(place, NEW, "half", folder, KeyboardInterrupt)
    assert artifact.is_fresh(place, OLD)
    assert content(place) == "old"
    assert names(tmp_path) == (["a"] if folder else ["a", "a.manifest.json"])


@FORMS
def test_the_new_one_takes_its_place(tmp_path: Path, folder: bool) -> None:
    make(tmp_path / "a", OLD, "old", folder)
    place = make(tmp_path / "a", NEW, "new", folder)
    assert content(place) == "new"
    assert (artifact.is_fresh(place, OLD), artifact.is_fresh(place, NEW)) == (False, True)


@FORMS
def test_what_a_killed_process_left_is_not_taken_over(tmp_path: Path, folder: bool) -> None:
    partial = tmp_path / ".a.partial"
    if folder:
        partial.mkdir()
        (partial / "junk").touch()
    else:
        partial.write_text("junk")
    place = make(tmp_path / "a", NEW, "new", folder)
    assert content(place) == "new"
    assert not partial.exists()
    assert not (place / "junk").exists()


@FORMS
def test_without_a_manifest_nothing_is_fresh(tmp_path: Path, folder: bool) -> None:
    place = make(tmp_path / "a", NEW, "new", folder)
    artifact.manifest_path(place).unlink()
    assert not artifact.is_fresh(place, NEW)
    with pytest.raises(CaiError, match=r"a is missing or unfinished: make it with `python -m cai_pyserini\.idf`"):
        artifact.require_manifest(place, "idf")


def test_a_manifest_without_its_file_is_none(tmp_path: Path) -> None:
    place = make(tmp_path / "a", NEW, "new", folder=False)
    place.unlink()
    assert not artifact.is_fresh(place, NEW)


def test_a_file_whose_manifest_could_not_be_written_is_not_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make(tmp_path / "a", OLD, "old", folder=False)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(artifact, "write_manifest", fail)
        with pytest.raises(OSError, match="no space left"):
            make(place, NEW, "new", folder=False)
    assert not artifact.is_fresh(place, OLD)
    assert not artifact.is_fresh(place, NEW)


@FORMS
@pytest.mark.parametrize("text", ["", '{"recipe": {"stage": "idf"', "[]", "{}"])
def test_a_corrupted_manifest_is_named(tmp_path: Path, folder: bool, text: str) -> None:
    place = make(tmp_path / "a", NEW, "new", folder)
    manifest = artifact.manifest_path(place)
    manifest.write_text(text)
    for read in (artifact.is_fresh, artifact.require_manifest):
        with pytest.raises(CaiError, match=rf"{manifest}.*not a manifest .*; delete {place} and make it again"):
            read(place, NEW if read is artifact.is_fresh else "idf")  # type: ignore[operator]


def test_an_artifact_of_another_stage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="a was made by stage 'idf', not by 'encode'"):
        artifact.require_manifest(make(tmp_path / "a", NEW, "new", folder=True), "encode")


def test_the_manifest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(tmp_path / "a", NEW, "new", folder=True)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            artifact.remove(place)
    assert content(place) == "new"
    assert not artifact.is_fresh(place, NEW)


@pytest.mark.parametrize("kind", ["folder", "file", "nothing"])
def test_remove(tmp_path: Path, kind: str) -> None:
    if kind != "nothing":
        make(tmp_path / "a", NEW, "new", kind == "folder")
    artifact.remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_digests_tell_recipes_apart() -> None:
    assert artifact.digest({"a": 1, "b": [1, 2]}) == artifact.digest({"b": [1, 2], "a": 1})
    recipes = [{"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": [2, 1]}, {"a": [1, 2]}, {"b": 1}]
    assert len({artifact.digest(recipe) for recipe in recipes}) == len(recipes)


def test_a_file_digest_is_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    assert artifact.file_digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"abcd")
    assert artifact.file_digest(path) != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


FULL_DISK = """
mount -t tmpfs -o size="$1"k tmpfs "$2" || exit 77
place=$2; shift 2
"$@"
code=$?
find "$place" -mindepth 1
exit $code
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[..., tuple[subprocess.CompletedProcess[str], list[str]]]:
    """Run a module that writes to a disk of so many KiB; it is gone with the process. Gives what was on it, too."""
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("a process may not mount here")
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(kilobytes: int, module: str, *arguments: object) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        shell = [unshare, "-rm", "sh", "-c", FULL_DISK, "sh", str(kilobytes), str(disk)]
        python = [sys.executable, "-m", f"cai_pyserini.{module}", *map(str, arguments), "--output", str(disk / "out")]
        done = subprocess.run([*shell, *python], capture_output=True, text=True, check=False, timeout=300)
        if done.returncode == 77:
            pytest.skip("a process may not mount here")
        left = [Path(line).name for line in done.stdout.splitlines() if line.startswith(str(disk))]
        return done, left

    return run


@pytest.mark.parametrize("kilobytes", [4, 8], ids=["no room for the shard", "no room for the manifest"])
def test_encoding_onto_a_full_disk(small_disk, tiny: Path, kilobytes: int) -> None:
    model = ["--encoder", "splade-tiny", "--device", "cpu", "--precision", "float32"]
    done, left = small_disk(kilobytes, "encode", "--collection", tiny, *model)
    assert done.returncode == 1
    assert "no space left on the device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert set(left) <= {"out", "00000.npz"}  # a shard is taken over by the next run, without a manifest


def test_indexing_onto_a_full_disk(small_disk, tmp_path: Path) -> None:
    (tmp_path / "vectors").mkdir()
    with (tmp_path / "vectors" / "0.jsonl").open("w") as file:
        for i in range(3000):
            vector = {f"term{(i * 7 + j) % 500}": j + 1 for j in range(30)}
            file.write(json.dumps({"id": f"d{i}", "contents": "", "vector": vector}) + "\n")
    done, left = small_disk(64, "index", "impact", "--input", tmp_path / "vectors")
    assert done.returncode == 1
    assert "no space left on the device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert left == []


def test_a_text_index_onto_a_full_disk(small_disk, tiny: Path) -> None:
    done, left = small_disk(4, "index", "bm25", "--collection", tiny)
    assert done.returncode == 1
    assert "no space left on" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert left == []


def test_a_folder_of_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(CaiError, match="mine has files that this command has not made: choose another --output"),
        artifact.building(tmp_path / "mine", {"stage": "test"}),
    ):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "thesis.txt"]
    (tmp_path / "empty").mkdir()
    with artifact.building(tmp_path / "empty", {"stage": "test"}) as (partial, _):
        (partial / "made").touch()
    assert (tmp_path / "empty" / "made").exists()
