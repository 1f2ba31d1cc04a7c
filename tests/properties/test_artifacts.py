"""Artifacts made, killed and damaged in any order: what is accepted is whole, and what its recipe makes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cai_pyserini.core import artifact
from cai_pyserini.core.files import remove, write_text
from tests.properties import conftest as conftest  # has the profiles

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "fcntl.flock", "os.truncate"}
KINDS = {
    "folder": {},
    "file": {"folder": False},
    "in-place": {"resumable": True, "names": r"part\d"},
    "result": {"resumable": True, "result": "work"},  # as a training
}

kinds, settings = st.sampled_from(sorted(KINDS)), st.integers(1, 3)


def parts(setting: int) -> dict[str, str]:
    """The files that a setting makes; some are as long as those of another."""
    return {f"part{number}": f"{setting} {'x' * number}" for number in range(setting + 1)}


def writer(setting: int, result: str) -> artifact.Write:
    """Write these files, those that are there already only where they are of another setting. With `result`, all go to
    this subfolder."""

    def write(place: Path) -> artifact.Stats:
        if not place.is_dir():
            place.write_text(str(parts(setting)))
            return {}
        if result:
            place = place / result
            remove(place)
            place.mkdir()
        else:
            for stale in [path for path in place.glob("part[0-9]") if path.name not in parts(setting)]:
                stale.unlink()
        for name, text in parts(setting).items():
            if not (place / name).exists() or (place / name).read_text() != text:
                write_text(place / name, text)
        return {}

    return write


def make(path: Path, setting: int) -> None:
    form: dict[str, Any] = KINDS[path.name]
    artifact.make(path, recipe(setting), writer(setting, form.get("result", "")), **form)


def recipe(setting: int) -> artifact.Recipe:
    return {"stage": "test", "setting": setting}


def call_in_fork(function: Callable[[], Any]) -> None:
    """Call a function in a process of its own, and wait for it."""
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
    os.waitpid(process, 0)


class Artifacts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="artifacts-"))

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(kind=kinds, setting=settings)
    def made(self, kind: str, setting: int) -> None:
        path = self.root / kind
        if artifact.is_up_to_date(path, recipe(setting)):
            return
        make(path, setting)
        assert artifact.require(path, "test").recipe["setting"] == setting
        beside = {each.name for each in self.root.iterdir() if path.name in each.name}
        assert beside <= {path.name, f"{path.name}.manifest.json"}, beside

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

        call_in_fork(dying)

    @rule(kind=kinds, choice=st.integers(0, 5), size=st.integers(0, 3), delete=st.booleans())
    def damage(self, kind: str, choice: int, size: int, delete: bool) -> None:
        path = self.root / kind
        files = sorted(path.glob("part[0-9]")) if path.is_dir() else [path] * path.exists()
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
                own = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
                left = {name for name in own if name.startswith("work/")}  # its stage removes it when all is done
                assert own - left - {"manifest.json", artifact.UNFINISHED} == expected.keys() == manifest.files.keys()
                assert {name: (path / name).read_text() for name in expected} == expected


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
