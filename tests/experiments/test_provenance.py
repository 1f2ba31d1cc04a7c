"""results.json answers how a run was made, and repeats it."""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.cli.run import main as run
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments import provenance
from cai_pyserini.experiments.settings import RunSettings
from cai_pyserini.experiments.update import update
from cai_pyserini.vectors.cache import VARIABLE


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_run_is_repeated_from_its_results(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Faults: relative paths are those of another folder; a setting is lost; what is no longer there is not missed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/cai-pyserini", "run", broken.name])
    flags = ("--systems", "splade-idf", "--precision", "float32", "--depth", "7", "--remove-query", "never")
    run([broken.name, "--encoder", "splade-tiny", "--output", "first", *flags])
    first = results(Path("first"))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    run([str(tmp_path / "first" / "results.json"), "--output", "second"])
    second = results(Path("second"))
    for key in ("systems", "settings", "made", "versions", "counts", "quantization_loss"):
        times = [
            re.sub(r'"ms_per_query": [\d.]+|"(evaluations|runs)/[^,]*', "", json.dumps(each[key]))
            for each in (first, second)
        ]
        assert times[0] == times[1], key
    made = first["provenance"]
    assert made["command"] == f"cai-pyserini run {broken.name}"
    settings = {"depth": 7, "seed": [42], "threads": 0, "precision": "float32", "collections": [str(broken)]}
    assert settings.items() <= made["settings"].items() and second["provenance"]["settings"] == made["settings"]
    assert not made["vectors_from_cache"] and second["provenance"]["vectors_from_cache"]["vectors/documents"] == 12
    assert {"python", "java", "lucene", "numpy", "ir-measures", "torch"} < first["versions"].keys()
    assert first["versions"]["scipy"] == version("scipy")

    again, _ = provenance.repeated(RunSettings(collections=[str(tmp_path / "first/results.json")], systems=["bm25"]))
    assert (again.systems, again.depth, again.collections) == (["bm25"], 7, [str(broken)])
    with (broken / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "new", "title": "", "text": "a new document"}\n')
    [*update(Path("second"))]
    assert results(Path("second/versions/current"))["provenance"]["settings"]["depth"] == 7

    text = (tmp_path / "first" / "results.json").read_text(encoding="utf-8")
    older = text.replace(f'"scipy": "{version("scipy")}"', '"scipy": "0.9"')
    (tmp_path / "first" / "results.json").write_text(older, encoding="utf-8")
    caplog.clear()
    shutil.rmtree(broken)
    with pytest.raises(CaiError, match=f"was made from {broken}, which is not there"):
        run([str(tmp_path / "first" / "results.json"), "--output", "fourth"])
    assert f"is of other versions: scipy {version('scipy')}, was 0.9" in caplog.text
    with pytest.raises(CaiError, match="repeats one run"):
        run([str(tmp_path / "first" / "results.json"), "hpo"])
    del first["provenance"]
    (tmp_path / "first" / "results.json").write_text(json.dumps(first), encoding="utf-8")
    with pytest.raises(CaiError, match="does not have the settings of its command"):
        run([str(tmp_path / "first" / "results.json")])


def test_the_commit_is_that_of_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults: an installed package has the commit of a repository around it; where git refuses, files are clean."""
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "clone" / "cai_pyserini")
    (clone := tmp_path / "clone").mkdir()
    (clone / "file").write_text("before")

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
        command = ["git", "-C", str(clone), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert provenance._commit() == {}
    git("init", "-q")
    assert provenance._commit() == {}
    git("add", "file")
    git("commit", "-q", "-m", "file")
    assert provenance._commit() == {"commit": git("rev-parse", "HEAD"), "clean": True}
    (clone / "file").write_text("after")
    assert provenance._commit()["clean"] is False
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # as with a clone that is mounted into a container
    assert provenance._commit() == {}
