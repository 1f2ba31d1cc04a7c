"""The run folders, systems and collections that settings ask for."""

import json
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.experiments.grid import Grid
from cai_pyserini.experiments.settings import RunSettings


@pytest.mark.parametrize(
    "words, changes, passages",
    [
        (300, {}, None),
        (600, {}, 100),
        (600, {"passages": 0}, 0),
        (600, {"passages": 50}, 50),
        (600, {"systems": ["bm25"]}, None),  # which reads everything
        (600, {"systems": ["bm25", "splade"]}, 100),
        (300, {"language": "ja"}, 100),  # whose characters are pieces
    ],
)
def test_long_documents_are_searched_in_passages(
    words: int, changes: dict[str, Any], passages: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless somebody has said otherwise. The fault: words are counted, of which a Japanese text has few."""
    word = "痛風" if changes.pop("language", None) else "word "
    line = json.dumps({"_id": "d1", "text": word * words}) + "\n"
    (tmp_path / "corpus.jsonl").write_text(line)
    settings = RunSettings(collections=[str(tmp_path)], output=tmp_path / "run", **{"systems": ["joint"]} | changes)
    (cell,) = Grid(settings).cells
    run = cell.prepare().run
    assert run.experiment.collection.passages == passages
    warned = "encoders would not read 57% of the text, so passages of 100 words are searched" in caplog.text
    assert warned == (passages == 100)


@pytest.mark.parametrize("measures", [["AP"], ["nDCG@10", "AP"]])
def test_verify_measures_what_is_expected(tiny: Path, tmp_path: Path, measures: list[str]) -> None:
    """The fault: with other measures, there is nothing to verify."""
    settings = RunSettings(collections=[str(tiny)], output=tmp_path, measures=measures, verify=True)
    expected = measures if "nDCG@10" in measures else [*measures, "nDCG@10"]
    (cell,) = Grid(settings).cells
    assert cell.prepare().run.experiment.measures == expected
