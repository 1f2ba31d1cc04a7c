"""Artifacts made, killed, damaged and made by two at once: what is accepted is whole, and what its recipe makes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import write_text
from tests.properties import conftest as conftest  # has the profiles

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "fcntl.flock", "os.truncate"}
KINDS = {"folder": {}, "file": {"folder": False}, "in-place": {"resumable": True, "names": r"part\d"}}

kinds, settings = st.sampled_from(sorted(KINDS)), st.integers(1, 3)


def parts(setting: int) -> dict[str, str]:
    """The files that a setting makes; some are as long as those of another."""
    return {f"part{number}": f"{setting} {'x' * number}" for number in range(setting + 1)}


def writer(setting: int, pause: Callable[[], None] = lambda: None) -> artifact.Write:
    """Write these files, those that are there already only where they are of another setting; half way, pause."""

    def write(place: Path) -> artifact.Stats:
        if not place.is_dir():
            place.write_text(str(parts(setting)))
            pause()
            return {}
        kept = {*artifact.foreign_files(place), *parts(setting)}
        for stale in [path for path in place.glob("part[0-9]") if path.name not in kept]:
            stale.unlink()
        for name, text in parts(setting).items():
            if not (place / name).exists() or (place / name).read_text() != text:
                write_text(place / name, text)
            if name == "part0":
                pause()
        return {}

    return write


def make(path: Path, setting: int, pause: Callable[[], None] = lambda: None) -> None:
    form: dict[str, Any] = KINDS[path.name]
    artifact.make(path, recipe(setting), writer(setting, pause), **form)


def recipe(setting: int) -> artifact.Recipe:
    return {"stage": "test", "setting": setting}


@contextmanager
def forked(function: Callable[[], Any]) -> Iterator[int]:
    """A process of its own that calls a function; it is waited for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        process = os.fork()
    if process == 0:
        code = 1
        try:
            with suppress(KeyboardInterrupt):
                function()
            code = 0
        finally:
            os._exit(code)
    yield process
    os.waitpid(process, 0)


class Artifacts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="artifacts-"))
        self.theirs: dict[Path, str] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def others(self, path: Path) -> bool:
        return any(theirs.is_relative_to(path) for theirs in self.theirs)

    def was_made(self, path: Path, setting: int) -> None:
        assert artifact.require(path, "test").recipe["setting"] == setting
        beside = {each.name for each in self.root.iterdir() if path.name in each.name}
        assert beside <= {path.name, f"{path.name}.manifest.json"}, beside

    @rule(kind=kinds, setting=settings)
    def made(self, kind: str, setting: int) -> None:
        path = self.root / kind
        if artifact.is_up_to_date(path, recipe(setting)):
            return
        try:
            make(path, setting)
        except CaiError as error:
            assert "has files that this command has not made" in str(error) and self.others(path)
            return
        self.was_made(path, setting)

    @rule(kind=kinds, setting=settings, event=st.integers(1, 40), by=st.sampled_from(["kill -9", "Ctrl-C"]))
    def interrupted(self, kind: str, setting: int, event: int, by: str) -> None:
        def dying() -> None:
            left = event

            def count(name: str, arguments: tuple) -> None:
                nonlocal left
                left -= name in EVENTS
                if name in EVENTS and not left:
                    if by == "Ctrl-C":
                        raise KeyboardInterrupt
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            make(self.root / kind, setting)

        with forked(dying):
            pass

    @rule(kind=kinds, first=settings, second=settings)
    def made_by_two_at_once(self, kind: str, first: int, second: int) -> None:
        path = self.root / kind
        begun, go_on = os.pipe(), os.pipe()

        def pause() -> None:
            os.write(begun[1], b"b")
            os.read(go_on[0], 1)

        def slowly() -> None:
            try:
                make(path, first, pause)
            finally:
                os.write(begun[1], b"e")

        with forked(slowly):
            if os.read(begun[0], 1) == b"b":  # else it is up to date, or refused
                if artifact.is_up_to_date(path, recipe(second)):
                    make(path, second)
                else:
                    with pytest.raises(CaiError, match=r"is being written by process|has files that this command has"):
                        make(path, second)
                os.write(go_on[1], b"g")
        for descriptor in (*begun, *go_on):
            os.close(descriptor)
        if not self.others(path):
            assert artifact.is_up_to_date(path, recipe(first))

    @precondition(lambda self: any(self.root.glob("*/")))
    @rule(
        kind=st.sampled_from(["folder", "in-place"]), name=st.sampled_from(["notes.txt", "sub/mine", "partly", "part9"])
    )
    def put_a_file_of_others(self, kind: str, name: str) -> None:
        is_ours = name == "part9" and kind == "in-place" and not (self.root / kind / "manifest.json").exists()
        if (self.root / kind).is_dir() and not is_ours:  # the name of a file that an interrupted attempt may have left
            path = self.root / kind / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(name)
            self.theirs[path] = name

    @rule(kind=kinds, choice=st.integers(0, 5), size=st.integers(0, 3), delete=st.booleans())
    def damage(self, kind: str, choice: int, size: int, delete: bool) -> None:
        path = self.root / kind
        files = sorted({*path.glob("part[0-9]")} - self.theirs.keys()) if path.is_dir() else [path] * path.exists()
        if files and delete:
            files[choice % len(files)].unlink()
        elif files and files[choice % len(files)].stat().st_size > size:
            os.truncate(files[choice % len(files)], size)

    @invariant()
    def what_is_accepted_is_whole(self) -> None:
        for kind in KINDS:
            path = self.root / kind
            if (manifest := artifact.read_manifest(path)) is None:
                continue
            expected = parts(manifest.recipe["setting"])
            if path.is_file():
                assert path.read_text() == str(expected)
            else:
                names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
                own = names - {file.relative_to(path).as_posix() for file in self.theirs if file.is_relative_to(path)}
                assert own - {"manifest.json", artifact.UNFINISHED} == expected.keys() == manifest.files.keys()
                assert {name: (path / name).read_text() for name in expected} == expected

    @invariant()
    def files_of_others_stay(self) -> None:
        assert {path: path.read_text() for path in self.theirs} == self.theirs


@pytest.mark.slow
def test_artifacts() -> None:
    """In a process of its own: it forks, which takes four times as long in one that has imported torch."""
    profile = hypothesis.settings.get_current_profile_name()
    done = subprocess.run([sys.executable, "-m", __name__, profile], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    os.fsync = lambda fd: None
    hypothesis.settings.load_profile(sys.argv[1])
    run_state_machine_as_test(Artifacts)
