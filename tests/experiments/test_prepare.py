"""The run folders, systems and collections that settings ask for."""

import json
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.experiments.prepare import Preparation
from cai_pyserini.experiments.settings import RunSettings


@pytest.mark.parametrize(
    "words, changes, passages",
    [
        (150, {}, None),
        (500, {}, 100),
        (500, {"passages": 0}, 0),
        (500, {"passages": 50}, 50),
    ],
)
def test_long_documents_are_searched_in_passages(
    words: int, changes: dict[str, Any], passages: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless somebody has said otherwise."""
    line = json.dumps({"_id": "d1", "text": "word " * words}) + "\n"
    (tmp_path / "corpus.jsonl").write_text(line)
    settings = RunSettings(collections=[str(tmp_path)], systems=["joint"], output=tmp_path / "run", **changes)
    run = Preparation(settings).prepare(str(tmp_path)).run
    assert run.experiment.collection.passages == passages
    warned = "encoders would not read 62% of the words, so passages of 100 words are searched" in caplog.text
    assert warned == (passages == 100)
