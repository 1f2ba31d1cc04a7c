"""Run folders that can be opened again, and those that cannot."""

import json
import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import locked
from cai_pyserini.experiments.run_folder import RunFolder

AGAIN = r"run `cai-pyserini run` again"


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the JSON in a file in place."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.fixture
def copy(run_folder: Path, tmp_path: Path) -> Path:
    """A copy of the run to break."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


RUN_COMMANDS = {
    "search": ["RUN", "text"],
    "serve": ["RUN"],
    "update": ["RUN"],
    "judge": ["serve", "RUN", "--database", "OUT", "--systems", "bm25"],
    "analyse": ["cost", "RUN", "--output", "OUT"],
}
ARTIFACT_COMMANDS = {
    "ship": ["index", "RUN", "--output", "OUT"],
    "export": ["ciff", "--impacts", "RUN", "--output", "OUT"],
}


def fill_in(arguments: list[str], run: Path, folder: Path) -> list[str]:
    return [word.replace("RUN", str(run)).replace("OUT", str(folder / "out")) for word in arguments]


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_a_folder_without_a_finished_run_is_named_with_what_to_do(command: str, tmp_path: Path) -> None:
    """The fault: a missing folder, or a run that is not finished, is an index that is missing or unfinished."""
    run, beir = RunFolder(tmp_path / "run"), r"`cai-pyserini run`"
    arguments = fill_in(RUN_COMMANDS[command], run.root, tmp_path)
    main = import_module(f"cai_pyserini.cli.{command}").main
    with pytest.raises(CaiError, match=rf"^no folder \S*/run: {beir} makes a run$"):
        main(arguments)
    run.root.mkdir()
    with pytest.raises(CaiError, match=rf"/run has no finished run: make one with {beir}$"):
        main(arguments)
    assert not run.lock.exists()
    run.lock.touch()
    unfinished = "/run is a run that has not finished: "
    with pytest.raises(CaiError, match=rf"{unfinished}start {beir} again with the same arguments, which continues$"):
        main(arguments)
    busy = rf"{unfinished}it is being written by process {os.getpid()} on .*: wait until it has ended$"
    with locked(run.lock, run.root, {}), pytest.raises(CaiError, match=busy):
        main(arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ARTIFACT_COMMANDS)
def test_a_run_folder_in_place_of_a_part_is_told_the_part(command: str, run_folder: Path, tmp_path: Path) -> None:
    arguments = fill_in(ARTIFACT_COMMANDS[command], run_folder, tmp_path)
    part = "impacts" if command == "export" else "indexes"
    with pytest.raises(CaiError, match=rf" has no manifest: .*, or name one that is in it, such as .*/{part}/"):
        import_module(f"cai_pyserini.cli.{command}").main(arguments)


@pytest.mark.slow
def test_a_run_of_another_version_is_refused(copy: Path) -> None:
    edit(copy / "collection.json.manifest.json", lambda manifest: manifest.update(format=1))
    with pytest.raises(CaiError, match=f"was run by another version of cai_pyserini: {AGAIN}"):
        RunFolder(copy).collection  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize(
    "remove", [("settings",), ("split",), ("settings", "encoder"), ("settings", "collection", "source")]
)
def test_results_without_settings_are_refused(remove: tuple[str, ...], copy: Path) -> None:
    def change(data: Any) -> None:
        *outer, key = remove
        for name in outer:
            data = data[name]
        del data[key]

    edit(copy / "results.json", change)
    with pytest.raises(
        CaiError,
        match=rf"results\.json (is broken or of another version|does not have the settings of the run): {AGAIN}",
    ):
        RunFolder(copy).collection  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_collection_that_has_changed_is_refused(name: str, copy: Path, broken: Path) -> None:
    edit(copy / "results.json", lambda data: data["settings"]["collection"].update(source=str(broken)))
    assert RunFolder(copy).collection.name == "tiny"
    lines = {"corpus.jsonl": '{"_id": "d", "text": "x"}', "queries.jsonl": '{"_id": "q", "text": "x"}'}
    with (broken / name).open("a") as file:
        file.write(lines.get(name, "q1\td3\t1") + "\n")
    with pytest.raises(CaiError, match=f"broken has changed since the run in .*: {AGAIN}"):
        RunFolder(copy).collection  # noqa: B018
