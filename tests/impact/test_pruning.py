"""Static pruning: what remains of a document is its largest impacts, as they were."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.impact.__main__ import main
from cai_pyserini.impact.bm25 import Bm25
from cai_pyserini.impact.impacts import open_impacts, write_impacts
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder
from cai_pyserini.models.tokenizer import WORD, Tokenizer
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import json_lines, stored_vectors
from tests.impact.support import counted

FILE = "00000.jsonl"
IDS = [f"d{number}" for number in range(50)]


@pytest.fixture
def config(checkpoint: Path) -> EncoderConfig:
    return EncoderConfig(name="test", checkpoint=str(checkpoint), range=10.0)


@pytest.fixture
def vectors(checkpoint: Path, tmp_path: Path) -> Vectors:
    """50 documents of up to 200 random terms each."""
    draw = np.random.default_rng(0)
    rows = np.zeros((50, len(Tokenizer(checkpoint))), np.float32)
    rows[:, :200] = draw.exponential(2, (50, 200)) * (draw.random((50, 200)) < 0.7)
    return stored_vectors(tmp_path / "vectors", csr_matrix(rows), ids=[IDS], checkpoint=checkpoint_digest(checkpoint))


@pytest.mark.parametrize("settings", [{"keep_terms": 20}, {"keep_mass": 0.6}, {"keep_mass": 0.6, "keep_terms": 20}])
def test_nothing_else_changes(settings: dict[str, float], vectors: Vectors, config: EncoderConfig, tmp_path: Path):
    whole = write_impacts(vectors, config, tmp_path / "whole")
    pruned = write_impacts(vectors, config.replace(**settings), tmp_path / "pruned")
    again = write_impacts(vectors, load_encoder(str(pruned)), tmp_path / "again")
    assert (again / FILE).read_text() == (pruned / FILE).read_text()
    kept = 0
    for before, after in zip(json_lines(whole / FILE), json_lines(pruned / FILE), strict=True):
        vector, left = before["vector"], after["vector"]
        assert before["id"] == after["id"] and left.items() <= vector.items()
        assert list(left.values()) == [impact for term, impact in vector.items() if term in left]
        assert max(impact for term, impact in vector.items() if term not in left) <= min(left.values())
        assert len(left) <= settings.get("keep_terms", 200)
        if "keep_terms" not in settings:
            assert sum(left.values()) >= 0.6 * sum(vector.values()) > sum(left.values()) - min(left.values())
        kept += len(left)
    stats, of_whole = artifact.require(pruned, "impact").stats, artifact.require(whole, "impact").stats
    assert stats["nonzeros"] == kept < of_whole["nonzeros"]
    assert (stats["document_scale"], stats["loss"]) == (of_whole["document_scale"], of_whole["loss"])


def test_the_words_of_joint_impacts_stay(vectors: Vectors, config: EncoderConfig, tmp_path: Path) -> None:
    words = counted(tmp_path / "words", [f"w{n}" for n in range(30)], np.tri(50, 30), ids=[IDS])
    bm25 = Bm25(words, alpha=1.0)
    output = write_impacts(vectors, config.replace(keep_terms=3), tmp_path / "impacts", bm25)
    lines = json_lines(output / FILE)
    numbers = [sum(term.startswith(WORD) for term in line["vector"]) for line in lines]
    assert numbers == [min(n + 1, 30) for n in range(50)]
    assert {len(line["vector"]) - count for line, count in zip(lines, numbers, strict=True)} == {3}
    (again,) = open_impacts(vectors, load_encoder(str(output)), bm25)
    assert np.diff(again.vectors.indptr).tolist() == [len(line["vector"]) for line in lines]


@pytest.mark.parametrize("setting, value", [("keep_terms", 0), ("keep_mass", 0.0), ("keep_mass", 1.1)])
def test_settings_that_leave_nothing_are_refused(setting: str, value: float, config: EncoderConfig) -> None:
    with pytest.raises(CaiError, match=f"{setting}: {value} should be"):
        config.replace(**{setting: value})


def test_command(vectors: Vectors, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ["--vectors", str(vectors.folder), "--output", str(tmp_path / "impacts")]
    main([*paths, "--encoder", "splade-tiny", "--keep-terms", "4", "--keep-mass", "0.99"])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'impacts'}: 4.0 impacts per document, ")
    written = load_encoder(str(tmp_path / "impacts"))
    assert (written.keep_terms, written.keep_mass) == (4, 0.99)
    assert checkpoint_folder(written) == checkpoint_folder(load_encoder("splade-tiny"))
