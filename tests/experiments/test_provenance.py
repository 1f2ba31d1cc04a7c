"""results.json answers how a run was made."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from cai_pyserini.experiments import provenance
from cai_pyserini.experiments.run_folder import RunFolder


@pytest.mark.slow
def test_results_say_how_they_were_made(run_folder: Path) -> None:
    results = RunFolder(run_folder).results
    assert {"python", "java", "lucene", "numpy", "ir-measures", "torch"} < results.versions.keys()
    assert results.versions["scipy"] == version("scipy")
    assert {"command", "changed_code", "vectors_from_cache", "device", "memory_gb"} < results.provenance.keys()
    assert results.settings["precision"] != "auto"


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
