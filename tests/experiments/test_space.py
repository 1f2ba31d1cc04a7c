"""How much disk a run will take, said before it begins."""

from itertools import islice
from pathlib import Path
from shutil import disk_usage

import pytest

from cai_pyserini.cli.run import main as run_systems
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import load_index_config
from cai_pyserini.experiments import estimate
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.plan import plan
from cai_pyserini.experiments.run_folder import RunFolder
from tests.conftest import corpus_of


@pytest.mark.slow
def test_a_run_takes_about_what_is_said_and_warns_of_a_small_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The faults: a step that writes much is forgotten; the disk fills up in the last of many hours."""
    documents = islice(open_collection(load_index_config("hpo")).documents(), 500)
    corpus_of(tmp_path / "c", {document.id: document.contents for document in documents})
    monkeypatch.setattr(estimate, "ANNOUNCED_BYTES", 0)
    monkeypatch.setattr(estimate, "disk_usage", lambda path: disk_usage(path)._replace(free=1000))
    run_systems(
        [str(tmp_path / "c"), "--output", str(tmp_path / "run"), "--systems", "bm25", "joint", "--device", "cpu"]
    )
    assert "GB of disk will be needed (estimated); 0 GB are free" in capsys.readouterr().err
    assert "may be too small" in caplog.text
    run = RunFolder(tmp_path / "run")
    said = sum(step.bytes() for step in plan(run, [parse_system(name) for name in ("bm25", "joint")]))
    taken = sum(file.stat().st_size for file in run.root.rglob("*") if file.is_file())
    assert taken / 2 < said < taken * 2, (taken, said)
