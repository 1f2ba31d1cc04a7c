"""Where the runs are, whenever an update is killed."""

from pathlib import Path

import pytest

from cai_pyserini.beir.__main__ import main as beir
from cai_pyserini.beir.run_folder import RunFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import write_text
from cai_pyserini.core.lock import locked
from cai_pyserini.update import folders
from cai_pyserini.update.__main__ import main
from cai_pyserini.update.update import update

pytestmark = pytest.mark.slow
OLD, NEW = "# tiny, encoder", "the next run"


def made(run: Path) -> Path:
    """The next run, as it is before the swap."""
    folder = folders.begin(run)
    write_text(folder / "report.md", NEW)
    return folder


def runs(run: Path) -> dict[str, str]:
    """The folders beside a run, itself included, with the beginning of their reports."""
    return {path.name: (path / "report.md").read_text()[: len(OLD)] for path in run.parent.iterdir() if path.is_dir()}


def contents(run: Path) -> dict[Path, bytes]:
    files = (path for path in run.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {path.relative_to(run): path.read_bytes() for path in files}


@pytest.mark.parametrize("exchanges", [True, False], ids=["one step", "two renames"])
def test_runs_change_places(exchanges: bool, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: a file of the old run is lost or changed, or is missing from the new; a marker is left."""
    if not exchanges:
        monkeypatch.setattr(folders, "_exchange", lambda first, second: False)
    old = contents(run)
    with folders.updating(run):
        made(run)
        before = folders.swap(run)
    assert runs(run) == {run.name: NEW, before.name: OLD}
    assert contents(before) == old and contents(run) == old | {Path("report.md"): NEW.encode()}


def test_killed_before_the_swap_it_continues_unless_the_run_has_changed(run: Path) -> None:
    """The faults: what a killed update has made is lost, or is used although the run is another one now."""
    with folders.updating(run):
        next_run = made(run)
    with folders.updating(run):
        assert folders.begin(run) == next_run and runs(run) == {run.name: OLD, next_run.name: NEW}
    (run / "results.json").write_text((run / "results.json").read_text() + "\n")
    with folders.updating(run):
        folders.begin(run)
    assert runs(run) == {run.name: OLD, next_run.name: OLD}


@pytest.mark.parametrize("exchanges", [True, False], ids=["one step", "two renames"])
def test_killed_in_the_swap(exchanges: bool, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: the old run, whose name is still that of the next one, is deleted; nobody finds the next one."""

    def killed(*paths: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), folders.updating(run):
        made(run)
        if exchanges:
            patch.setattr(folders, "_tidy", killed)
        else:
            rename = Path.rename
            patch.setattr(folders, "_exchange", lambda first, second: False)
            patch.setattr(Path, "rename", lambda path, to: killed() if to == run else rename(path, to))
        folders.swap(run)
    with folders.updating(run):
        (before,) = folders.earlier(run)
        assert runs(run) == {run.name: NEW, before.name: OLD}


def test_an_unfinished_run_never_takes_the_place_of_one_that_was_deleted(run: Path) -> None:
    with folders.updating(run):
        made(run)
    run.rename(run.with_name("moved"))
    with pytest.raises(CaiError, match="has no finished run"), folders.updating(run):
        pass


def test_earlier_runs_are_kept_or_removed(run: Path) -> None:
    for day in ("20260101T000000Z", "20260102T000000Z", "20260103T000000Z"):
        run.with_name(f"{run.name}.before-{day}").mkdir()
    run.with_name(f"{run.name}.before-the-merger").mkdir()
    assert [path.name[-3:] for path in folders.prune(run, 2)] == ["00Z"] and len(folders.earlier(run)) == 2
    with folders.updating(run):
        folders.begin(run)
    assert len(folders.clean(run)) == 3
    assert {path.name for path in run.parent.iterdir()} == {run.name, f"{run.name}.before-the-merger"}


def test_settings_beside_clean_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The fault: what --dry-run or --keep would have spared is removed."""
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--clean", "--dry-run"])
    assert "--clean only removes: leave out --dry-run" in capsys.readouterr().err


def test_what_is_not_ours_is_left_alone(run: Path) -> None:
    other = folders.next_of(run)
    other.mkdir()
    for remove in (folders.begin, folders.clean):
        with pytest.raises(CaiError, match=r"\.tiny\.next has files that this command has not made: move them away"):
            remove(run)
    with pytest.raises(CaiError, match="has no finished run"):
        list(update(run.parent))
    assert not (run.parent / ".lock").exists() and other.is_dir()


def test_one_at_a_time(run: Path, broken: Path) -> None:
    """The faults: two updates make one next run; a run changes while `beir` writes it, or is updated."""
    busy = "tiny is being written by process"
    with folders.updating(run):
        with pytest.raises(CaiError, match=busy):
            list(update(run))
        with pytest.raises(CaiError, match=busy):
            beir([str(broken), "--output", str(run), "--systems", "bm25"])
    with locked(RunFolder(run).lock, run, {}), pytest.raises(CaiError, match=busy):
        list(update(run))
