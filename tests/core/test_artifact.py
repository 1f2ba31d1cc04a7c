"""Artifacts: unfinished, outdated or broken ones are never used."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cai_pyserini.core import artifact, files
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import atomic_write, remove
from cai_pyserini.core.lock import HOST
from cai_pyserini.vectors.queries import Queries

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


def test_nan_is_null_in_a_manifest(tmp_path: Path) -> None:
    """JSON has no NaN, and only Python's parser accepts it."""

    def write(path: Path) -> artifact.Stats:
        path.write_text("x")
        return {"recall": float("nan"), "of": {"each": [float("inf"), 0.5]}}

    artifact.make(tmp_path / "file", NEW, write, folder=False)
    stats = artifact.require(tmp_path / "file", "idf").stats
    assert stats["recall"] is None and stats["of"] == {"each": [None, 0.5]}


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
def test_a_failure_keeps_the_previous_artifact(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "a"
    for fail in (ValueError, KeyboardInterrupt):
        with pytest.raises(fail):
            make(path, NEW, "half", folder, fail)
        assert names(tmp_path) == []
    for _ in range(2):  # the second call does nothing
        make(path, OLD, "old", folder)
    there = ["a"] if folder else ["a", "a.manifest.json"]
    with pytest.raises(KeyboardInterrupt):
        make(path, NEW, "half", folder, KeyboardInterrupt)
    assert artifact.is_up_to_date(path, OLD) and (content(path), names(tmp_path)) == ("old", there)
    make(path, NEW, "new", folder)
    assert artifact.is_up_to_date(path, NEW) and not artifact.is_up_to_date(path, OLD)
    assert content(make(path, NEW, "newer", folder)) == "new"


# A program that makes the artifact sys.argv[1], but stops half way: it prints a line and sleeps.
STOPS = """
import sys, time
from pathlib import Path
from cai_pyserini.core import artifact, files

def write(partial):
    file = partial if "file" in sys.argv else partial / "half"
    with files.atomic_write(file) as path:
        path.write_text("half")
        print("half", flush=True)
        time.sleep(60)

form = {"folder": {}, "file": {"folder": False}, "in place": {"resumable": True}}[sys.argv[2]]
artifact.make(Path(sys.argv[1]), {"stage": "idf", "bits": 9}, write, **form)
"""


@contextmanager
def half_way(path: Path, form: str) -> Iterator[subprocess.Popen]:
    """A process that is making an artifact."""
    with subprocess.Popen([sys.executable, "-c", STOPS, path, form], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "half\n"
        yield process
        process.kill()


@pytest.mark.parametrize("form", ["folder", "file", "in place"])
def test_a_second_process_cannot_write_until_the_first_is_killed(tmp_path: Path, form: str) -> None:
    path, folder, resumable = tmp_path / "a", form != "file", form == "in place"
    make(path, OLD, "old", folder)
    with half_way(path, form) as process:
        during = sorted(tmp_path.rglob("*"))
        for in_place in {resumable, folder}:  # writing in place and writing aside exclude each other
            message = rf"a is being written by process {process.pid} on \S+, since 20.*: wait until it has ended, or"
            with pytest.raises(CaiError, match=message):
                artifact.make(path, NEW, lambda place: pytest.fail("it writes"), folder=folder, resumable=in_place)
        assert sorted(tmp_path.rglob("*")) == during
        assert artifact.is_up_to_date(path, OLD) != resumable
        process.kill()
        process.wait()
        (tmp_path / ".ab.elsewhere-1-01234567.partial").touch()  # of another machine, which may be at work
        (tmp_path / f".a.b.{HOST}-{process.pid}-01234567.partial").touch()
        make(path, NEW, "new", folder)
    assert content(path) == "new"
    others = [".ab.elsewhere-1-01234567.partial", f".a.b.{HOST}-{process.pid}-01234567.partial"]
    assert names(tmp_path) == sorted([*others, "a", *["a.manifest.json"] * (not folder)])
    assert not folder or names(path) == ["data", "manifest.json"]


def test_only_processes_with_the_same_recipe_share_an_artifact(tmp_path: Path) -> None:
    def outer(path: Path) -> artifact.Stats:
        artifact.make(path, NEW, lambda path: step(path, 2), resumable=True, shared=True)
        for recipe, shared in ((NEW, False), (OLD, True)):
            with pytest.raises(CaiError, match="a is being written by process"):
                artifact.make(path, recipe, lambda path: pytest.fail("it writes"), resumable=True, shared=shared)
        assert artifact.make(path, NEW, lambda path: step(path, 2), resumable=True, shared=True) == path
        return {"files": "of another process"}

    path = artifact.make(tmp_path / "a", NEW, outer, resumable=True, shared=True)
    assert artifact.require(path, "idf").stats["files"] == 2
    assert names(path) == ["0", "1", "manifest.json"]


# A program that makes 20 artifacts in sys.argv[1], each by four processes at once, which do a part each.
SHARE = """
import os, sys
from pathlib import Path
from cai_pyserini.core import artifact

for job in range(20):
    read, write = os.pipe()
    children = []
    for part in range(4):
        children.append(os.fork())
        if not children[-1]:
            os.close(write)
            os.read(read, 1)  # until all are there

            def make(path):
                (path / str(part)).write_text("")
                return {} if all((path / str(other)).exists() for other in range(4)) else None

            artifact.make(Path(sys.argv[1], str(job)), {"stage": "encode"}, make, resumable=True, shared=True)
            os._exit(0)
    os.close(read)
    os.close(write)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
"""


def test_several_processes_share_an_artifact(tmp_path: Path) -> None:
    """The faults: one is refused, as another has not written yet with whom it shares, or is still alone; a part that
    another had written passes for a file of others; two that end at once delete what the other writes."""
    subprocess.run([sys.executable, "-c", SHARE, tmp_path], check=True)
    for job in range(20):
        assert artifact.require(tmp_path / str(job), "encode").files == dict.fromkeys("0123", 0)
        assert names(tmp_path / str(job)) == [*"0123", "manifest.json"]


# A program that makes the file sys.argv[1], and is killed at its sys.argv[2]-th rename.
DIES = """
import os, signal, sys
from pathlib import Path
from cai_pyserini.core import artifact, files

left = int(sys.argv[2])

def count(event, arguments):
    global left
    left -= event == "os.rename"
    if event == "os.rename" and not left:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
recipe = {"stage": "idf", "bits": 9}
folder = len(sys.argv) > 3
write = lambda partial: (partial / "data" if folder else partial).write_text("new") and {}
artifact.make(Path(sys.argv[1]), recipe, write, folder=folder)
"""


@pytest.mark.parametrize("rename", [1, 2, 3])
def test_a_file_is_made_again_after_a_kill_and_an_interruption(tmp_path: Path, rename: int) -> None:
    """Without a lock and a manifest, it would be taken for the file of another tool."""
    path = make(tmp_path / "a", OLD, "old", folder=False)
    killed = subprocess.run([sys.executable, "-c", DIES, path, str(rename)])
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(KeyboardInterrupt):
        make(path, NEW, "half", False, KeyboardInterrupt)
    if path.exists() and rename > 1:
        with pytest.raises(CaiError, match=r"a (is unfinished|has no manifest): make it again with `[^`]*`$"):
            artifact.require_if_ours(path)
    assert content(make(path, NEW, "new", folder=False)) == "new"
    assert names(tmp_path) == ["a", "a.manifest.json"]


def test_the_lock_of_a_killed_process_does_not_make_a_foreign_file_ours(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with half_way(path, "file") as process:
        process.kill()
        process.wait()
        path.write_text("theirs")
        with pytest.raises(CaiError, match="a is a file that this command has not made"):
            make(path, NEW, "new", folder=False)
    assert content(path) == "theirs"


@pytest.mark.parametrize("form", ["folder", "file", "in place"])
@pytest.mark.parametrize("there", [True, False])
def test_an_output_link_is_followed(tmp_path: Path, form: str, there: bool) -> None:
    """Otherwise there is an error after all the work, or the link is replaced."""
    (tmp_path / "disk").mkdir()
    (link := tmp_path / "a").symlink_to("disk/b")
    options = {"folder": form != "file", "resumable": form == "in place"}

    def write(place: Path) -> artifact.Stats:
        (place / "data" if options["folder"] else place).write_text("text")
        return {}

    for recipe in [OLD, NEW] if there else [NEW]:
        artifact.make(link, recipe, write, **options)
        assert artifact.is_up_to_date(link, recipe) and artifact.is_up_to_date(tmp_path / "disk" / "b", recipe)
        assert artifact.require(link, "idf").digest == artifact.digest(recipe)
    assert names(tmp_path) == ["a", "disk"] and link.is_symlink() and content(link) == "text"
    with atomic_write(link / "data" if options["folder"] else link) as partial:
        partial.write_text("by another tool")
    assert names(tmp_path) == ["a", "disk"] and content(link) == "by another tool"
    if form == "file":  # as if it had been moved to another disk
        make(tmp_path / "c", NEW, "new", False).rename(tmp_path / "disk" / "d")
        (tmp_path / "c").symlink_to("disk/d")
        assert artifact.is_up_to_date(tmp_path / "c", NEW)


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for write in (lambda: files.write_text(pipe, "text"), lambda: make(pipe, NEW, "text", folder=False)):
        with pytest.raises(CaiError, match="pipe is neither a file nor a folder: choose another output"):
            write()
    assert pipe.is_fifo()


@FORMS
@pytest.mark.parametrize("damage", ["missing", "shorter", "empty"])
def test_a_damaged_artifact_is_refused_and_made_again(tmp_path: Path, folder: bool, damage: str) -> None:
    path = make(tmp_path / "a", NEW, "data", folder)
    file = path / "data" if folder else path
    if damage == "missing":
        file.unlink()
    else:
        file.write_text("dat" * (damage == "shorter"))
    reason = {"missing": "is missing", "shorter": "has 3 bytes, not 4", "empty": "has 0 bytes, not 4"}[damage]
    message = rf"a is damaged \({file.name} {reason}\): make it again with `cai-pyserini stage idf`"
    with pytest.raises(CaiError, match=message if folder or damage != "missing" else "a is missing"):
        artifact.require(path, "idf")
    assert artifact.read_manifest(path) is None
    assert content(make(path, NEW, "data", folder)) == "data"
    artifact.require(path, "idf")


@FORMS
def test_outputs_of_other_tools_are_distinguished_from_broken_artifacts(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "a"
    assert artifact.require_if_ours(path) is None
    make(path, NEW, "data", folder)
    manifest = artifact.require_if_ours(path)
    assert manifest and manifest == artifact.require_if_ours(path, "idf")
    (path / "data" if folder else path).write_text("dat")
    kept = r"or delete .*manifest\.json if it was changed on purpose"
    for read in (artifact.require_if_ours, *[artifact.file_digest] * (not folder)):
        with pytest.raises(CaiError, match=rf"a is damaged .*: make it again with `cai-pyserini stage idf`, {kept}"):
            read(path)
    artifact.manifest_path(path).unlink()
    assert artifact.require_if_ours(path, "idf") is None
    if folder:
        (path / artifact.UNFINISHED).touch()
        with pytest.raises(CaiError, match="a is unfinished: run the command that makes it again"):
            artifact.require_if_ours(path, "idf")


@FORMS
def test_a_complete_artifact_survives_a_power_cut(
    tmp_path: Path, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def log(event: str, path: Path) -> None:
        events.append(f"{event} {re.sub(rf'[.]{HOST}.*', '', str(path.relative_to(tmp_path)))}")

    def synced(descriptor: int) -> None:
        log("sync", Path(f"/proc/self/fd/{descriptor}").resolve())
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        log("rename to", target)
        return (rename if folder else replace)(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(Path, "replace", renamed)
    make(tmp_path / "a", NEW, "data", folder)
    if folder:
        whole = events.index("rename to a")
        assert {"sync .a/data", "sync .a/manifest.json", "sync .a"} & {*events[:whole]} >= {"sync .a"}
        assert events[whole + 1 :] == ["sync ."]
    else:
        assert events.index("sync .a") < events.index("rename to a")
        complete = [event for event in events if event.startswith("rename")][-1]
        assert (complete, events[-1]) == ("rename to a.manifest.json", "sync .")


@FORMS
@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", ":1: not a manifest (Expecting value)"),
        (b'{"recipe": {"stage": "idf"', ":1: not a manifest (Expecting ',' delimiter)"),
        (b"[]", ": not a manifest (recipe or digest is missing)"),
        (b'{"recipe": {}, "digest": "", "format": %d}' % artifact.FORMAT, ": not a manifest (it has been changed)"),
        (b"\xff{}", ": not a manifest (invalid start byte)"),
    ],
)
def test_a_broken_manifest_is_named(tmp_path: Path, folder: bool, data: bytes, reason: str) -> None:
    path = make(tmp_path / "a", NEW, "new", folder)
    manifest = artifact.manifest_path(path)
    manifest.write_bytes(data)
    for read in (lambda: artifact.is_up_to_date(path, NEW), lambda: artifact.require(path, "idf")):
        with pytest.raises(CaiError) as error:
            read()
        assert str(error.value) == f"{manifest}{reason}; delete {path} and make it again"


@FORMS
def test_an_artifact_of_another_stage_or_version_is_refused(tmp_path: Path, folder: bool) -> None:
    path = make(tmp_path / "a", NEW, "old", folder)
    with pytest.raises(CaiError, match="a was made by stage 'idf', not by 'encode'"):
        artifact.require(path, "encode")
    manifest = artifact.manifest_path(path)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 1, "length": 3}))
    message = r"a was made by another version of cai_pyserini: make it again with `cai-pyserini stage idf`"
    with pytest.raises(CaiError, match=message):
        artifact.require(path, "idf")
    assert content(make(path, NEW, "new", folder)) == "new"
    artifact.manifest_path(path).unlink()
    assert not artifact.is_up_to_date(path, NEW)
    with pytest.raises(CaiError, match=r"a has no manifest: name a finished output of `cai-pyserini stage idf`"):
        artifact.require(path, "idf")


def test_an_artifact_without_recorded_files_is_not_replaced(tmp_path: Path) -> None:
    path = make(tmp_path / "a", NEW, "old")
    data = json.loads(artifact.manifest_path(path).read_text())
    del data["format"], data["files"]
    artifact.manifest_path(path).write_text(json.dumps(data))
    with pytest.raises(CaiError, match="a has files that this command has not made"):
        make(path, NEW, "new")


@pytest.mark.parametrize("text", ["{}", "[]", '{"version": 3, "files": []}'])
def test_another_tool_may_have_its_own_manifest_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert artifact.require_if_ours(tmp_path) is None


def test_the_manifest_is_deleted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a", NEW, "new")

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(path)
    assert content(path) == "new"
    assert not artifact.is_up_to_date(path, NEW)


def step(folder: Path, total: int) -> artifact.Stats | None:
    """Write the first missing one of `total` files, like a process that is stopped after each file."""
    missing = [i for i in range(total) if not (folder / str(i)).exists()]
    (folder / str(missing[0])).touch()
    return {"files": total} if len(missing) == 1 else None


def test_a_resumable_artifact_is_complete_once_all_parts_exist(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for done in ([".unfinished", "0"], [".unfinished", "0", "1"], ["0", "1", "2", "manifest.json"]):
        if "2" in done:
            (path / "2.elsewhere-1-01234567.partial").touch()  # left by another machine
        artifact.make(path, NEW, lambda folder: step(folder, 3), resumable=True)
        assert names(path) == done
        assert artifact.is_up_to_date(path, NEW) == ("manifest.json" in done)
    assert artifact.require(path, "idf").stats["files"] == 3
    artifact.make(path, NEW, lambda folder: pytest.fail("it is up to date"), resumable=True)


def test_digests_are_equal_exactly_for_equal_values() -> None:
    """The order of topics counts, because rows of query vectors follow it; the order of settings does not."""
    assert artifact.digest({"a": 1, "b": [1, 2]}) == artifact.digest({"b": [1, 2], "a": 1})
    topics = {"q1": "fever", "q2": "cough"}
    turned = dict(reversed(topics.items()))
    assert Queries(topics).identity != Queries(turned).identity == Queries(dict(turned)).identity
    recipes = [{"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": [2, 1]}, {"a": [1, 2]}, {"b": 1}]
    assert len({artifact.digest(recipe) for recipe in recipes}) == len(recipes)


def test_concurrent_writers_of_a_file_do_not_collide(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []
    with atomic_write(path) as first:
        first.write_text("half of")
        with atomic_write(path) as second:
            second.write_text("whole")
        assert (path.read_text(), first.read_text()) == ("whole", "half of")
        first.write_text("last")
    assert (path.read_text(), names(tmp_path)) == ("last", ["f"])


# Where an artifact may be written.


@pytest.mark.parametrize(
    "there, place, folder, message",
    [
        ("mine/thesis.txt", "mine", True, "mine has files that this command has not made: choose another output, or"),
        ("mine", "mine", False, "mine is a file that this command has not made: choose another output, or"),
        ("mine", "mine", True, "mine is a file: choose a folder for the output"),
        ("mine/thesis.txt", "mine", False, "mine is a folder: choose a file for the output"),
        ("mine", "mine/b/c", True, r"mine/b/c cannot be written: .*/mine is a file; choose another output"),
        ("thesis.txt", "", True, ". has files that this command has not made"),
    ],
)
def test_foreign_files_and_folders_are_not_replaced(
    tmp_path: Path, there: str, place: str, folder: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(there).parent.mkdir(exist_ok=True)
    Path(there).write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CaiError, match=message):
        make(Path(place), NEW, "new", folder)
    assert sorted(tmp_path.rglob("*")) == before and Path(there).read_text() == "years of work"


def test_an_empty_or_marked_folder_may_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    assert content(make(tmp_path / "empty", NEW, "new")) == "new"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").touch()
    artifact.require_writable(tmp_path / "run", marker="results.json")
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(CaiError, match=r"\. is the current folder or that of a disk, which cannot be replaced"):
        make(Path(), OLD, "new")
    artifact.make(Path(), OLD, lambda folder: step(folder, 1), resumable=True)
    assert names(tmp_path / "empty") == ["0", "manifest.json"]


def test_foreign_files_added_meanwhile_are_not_deleted(tmp_path: Path) -> None:
    path = make(tmp_path / "a", OLD, "old")

    def write(partial: Path) -> None:
        (path / "notes.txt").write_text("mine")

    with pytest.raises(CaiError, match=r"a has files that this command has not made \(notes.txt\)"):
        artifact.make(path, NEW, write)
    assert names(path) == ["data", "manifest.json", "notes.txt"] and names(tmp_path) == ["a"]
