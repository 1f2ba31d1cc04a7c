"""What is in a run folder, whenever an update is killed, and whatever people have put there."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from cai_pyserini.cli.run import main as beir
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import write_text
from cai_pyserini.core.lock import locked
from cai_pyserini.engine.open import open_systems
from cai_pyserini.experiments import versions
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.plan import plan
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import BM25
from cai_pyserini.experiments.update import update
from tests.experiments.conftest import on_collection

pytestmark = pytest.mark.slow
OLD, NEW = "# tiny, encoder", "the next run"
USER_FILES = [
    "notes.txt",
    "runs/mine.trec",
    "runs/splade.trec",
    "words/mine",
    "indexes/mine/part/notes.txt",
    "indexes/notes.txt",
]
CHANGES = ["link", "mkdir", "rename", "replace", "rmdir", "symlink", "unlink"]


@pytest.fixture
def only_bm25(run_folder: Path, broken: Path, tmp_path: Path) -> Path:
    """A finished run, and nothing else."""
    copy = on_collection(run_folder, broken, tmp_path / "copy", ["bm25"])
    run = RunFolder(copy)
    for step in plan(run, run.systems):
        for path in artifact.artifact_files(step.output):
            (target := tmp_path / "tiny" / path.relative_to(copy)).parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    for path in (run.results_file, run.report, run.page):
        path.rename(tmp_path / "tiny" / path.name)
    return tmp_path / "tiny"


def updated(run: Path, keep: int = 1, meanwhile: Callable[[], object] = lambda: None) -> None:
    """What an update does, without the steps."""
    with versions.updating(run) as opened:
        folder = versions.begin(opened)
        results = opened.results_file.read_text()
        meanwhile()
        write_text(folder / "report.md", NEW)
        write_text(folder / "report.html", NEW)
        write_text(folder / "results.json", results)
        versions.swap(run)
        versions.prune(run, keep)


def put(run: Path, *names: str) -> None:
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)


def state(run: Path) -> str:
    """Which run is in place. Fails if it is not whole."""
    opened = RunFolder(run)
    assert opened.results.searches and artifact.require(index_of(BM25, opened).output, "index")
    return opened.report.read_text()[: len(OLD)]


def contents(run: Path) -> dict[Path, bytes]:
    files = (path for path in run.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {path.relative_to(run): path.read_bytes() for path in files}


def test_the_next_run_takes_the_place_of_the_old_one(run: Path) -> None:
    """The faults: a file of the old run is lost or changed; one of the new is missing, or has the name of the old."""
    old = contents(run)
    reader = RunFolder(run)
    updated(run)
    first, second = (run / "versions" / name for name in "12")
    now = {path: data for path, data in old.items() if path.parts[0] not in ("runs", "evaluations")}
    now |= dict.fromkeys(map(Path, ("report.md", "report.html")), NEW.encode())
    assert contents(first) == old and contents(second) == now | {
        Path(".made-from"): contents(second)[Path(".made-from")]
    }
    assert {path: (run / path).read_bytes() for path in now} == now and not (run / "runs" / "bm25.trec").is_symlink()
    assert RunFolder(first).report.read_text().startswith(OLD) and state(run) == NEW
    assert artifact.require(index_of(BM25, reader).output, "index")
    links = {path for path in run.rglob("*") if path.is_symlink()}
    assert run / "indexes" / "bm25" in links and all(path.exists() for path in links)
    updated(run)
    assert (run / "indexes" / "bm25").resolve() == run / "versions" / "3" / "indexes" / "bm25"
    assert not first.exists() and versions.earlier(run) == [second]


@pytest.mark.parametrize("begun", [False, True], ids=["first update", "second update"])
def test_killed_at_any_moment_one_run_is_whole_and_the_next_update_ends_it(
    begun: bool, only_bm25: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults: a moment without a run, or with files of two; a file of somebody is gone; what is left to do is
    not done."""
    shutil.rmtree(index := index_of(BM25, RunFolder(only_bm25)).output)  # has too many files to be killed after each
    artifact.make(index, artifact.recipe("index", {}, kind="impact"), lambda folder: put(folder, "part"))
    if begun:
        updated(only_bm25)
        shutil.copy(only_bm25 / "versions" / "1" / "report.md", RunFolder(only_bm25).report)
    put(only_bm25, *USER_FILES, "indexes/bm25/inside.txt")
    seen, moment = set(), 0
    while True:
        run = Path(shutil.copytree(only_bm25, only_bm25.with_name(f"run{moment}"), symlinks=True))
        with monkeypatch.context() as patch:
            ended = _update_until_killed(run, moment, patch)
        seen.add(state(run))
        for name in USER_FILES:
            assert (run / name).read_text() == name, moment
        assert [path.read_text() for path in run.rglob("inside.txt")] == ["indexes/bm25/inside.txt"], moment
        updated(run)
        assert state(run) == NEW and not list(run.rglob("*.partial")), moment
        assert all((run / name).read_text() == name for name in USER_FILES) and len([*run.rglob("inside.txt")]) == 1
        links = [path for path in run.rglob("*") if path.is_symlink()]
        assert {"bm25", "results.json", "report.md"} <= {path.name for path in links}
        assert all(path.exists() for path in links), moment
        shutil.rmtree(run)
        moment += 1
        if ended:
            break
    assert seen == {OLD, NEW} and moment > 20


def _update_until_killed(run: Path, moment: int, patch: pytest.MonkeyPatch) -> bool:
    """Whether an update ends of which only so many changes of the file system happen, as if its process was killed."""
    left = moment

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return change(*arguments, **options)

        return call

    patch.setattr(os, "getpid", lambda: 1 << 30)  # whose leftovers are deleted
    for name in CHANGES:
        patch.setattr(os, name, counted(getattr(os, name)))
    with suppress(KeyboardInterrupt):
        updated(run)
    return left >= 0


def test_files_of_people_stay_where_they_are(only_bm25: Path) -> None:
    """The faults: what somebody puts into the folder while an update works goes with the old run, and is deleted with
    it; a database that is open is divided."""
    run = only_bm25
    with closing(sqlite3.connect(run / "judgments.sqlite")) as database:
        database.executescript("PRAGMA journal_mode = WAL; CREATE TABLE grade (value)")

        def meanwhile() -> None:
            put(run, *USER_FILES, "indexes/bm25/README.md", "adapted/README.md")
            database.execute("INSERT INTO grade VALUES (1)")
            database.commit()

        for _ in range(3):
            updated(run, 0, meanwhile)
        with closing(sqlite3.connect(run / "judgments.sqlite")) as other:
            assert other.execute("SELECT count(*) FROM grade").fetchone() == (3,)
    for name in (*USER_FILES, "indexes/bm25/README.md", "adapted/README.md"):
        assert (run / name).read_text() == name
    assert not versions.earlier(run) and {path.name for path in (run / "versions").iterdir()} == {"4", "current"}


def test_earlier_runs_are_kept_or_removed_but_not_the_files_of_others(only_bm25: Path) -> None:
    run = only_bm25
    for _ in range(3):
        updated(run, 2)
    assert [path.name for path in versions.earlier(run)] == ["2", "3"]
    put(run, "versions/2/notes.txt")
    with versions.updating(run) as opened:
        unfinished = versions.begin(opened)
    assert [path.name for path in versions.clean(run)] == ["2", "3", "5"] and not unfinished.exists()
    assert contents(run / "versions" / "2") == {Path("notes.txt"): b"versions/2/notes.txt"}
    assert not versions.earlier(run) and state(run) == NEW


def test_an_update_continues_unless_the_run_has_changed(run: Path) -> None:
    """The faults: what a killed update has made is lost, or is used although the run is another one now."""
    with versions.updating(run) as opened:
        put(versions.begin(opened), "made")
    with versions.updating(run) as opened:
        assert (versions.begin(opened) / "made").exists()
    (run / "results.json").write_text((run / "results.json").read_text() + "\n")
    with versions.updating(run) as opened:
        assert not (versions.begin(opened) / "made").exists() and state(run) == OLD


def test_systems_that_are_opened_while_their_version_is_deleted(
    only_bm25: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted(folder: Path, started: bool) -> RunFolder:
        monkeypatch.undo()
        for _ in range(2):
            updated(only_bm25, 0)
        return RunFolder(folder, started=started)

    updated(only_bm25)
    monkeypatch.setattr("cai_pyserini.engine.open.RunFolder", deleted)
    (engine,) = open_systems([only_bm25]).values()
    engine.close()


def test_what_cannot_be_updated_is_refused_before_the_work(
    only_bm25: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch, versions.updating(only_bm25) as opened:
        patch.setattr(os, "symlink", refused)
        with pytest.raises(CaiError, match="its file system has no symbolic links"):
            versions.begin(opened)
    updated(only_bm25)
    copy = Path(shutil.copytree(only_bm25, tmp_path / "followed"))
    with versions.updating(copy) as opened, pytest.raises(CaiError, match="a copy that followed links: move it away"):
        versions.begin(opened)
    assert state(copy) == NEW


def test_one_at_a_time(run: Path, broken: Path) -> None:
    """The faults: two updates make one version; a run changes while `beir` writes it, or is updated."""
    busy = "tiny is being written by process"
    with versions.updating(run):
        with pytest.raises(CaiError, match=busy):
            list(update(run))
        with pytest.raises(CaiError, match=busy):
            beir([str(broken), "--output", str(run), "--systems", "bm25"])
    with locked(RunFolder(run).lock, run, {}), pytest.raises(CaiError, match=busy):
        list(update(run))
