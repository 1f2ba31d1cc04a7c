"""The weights of three ways, chosen with real encoders."""

import json
from pathlib import Path

import pytest

from cai_pyserini.adapt.balance import balance
from cai_pyserini.core import artifact
from cai_pyserini.core.config import IndexConfig, load_index_config
from tests.adapt.test_examples import material


@pytest.mark.slow
def test_weights_are_chosen_once(tiny: Path, tmp_path: Path) -> None:
    config, output = load_index_config(str(tiny)), tmp_path / "weights.json"
    made = material(config, tmp_path / "vectors", 0, dense=True)
    weights = json.loads(balance(made, output).read_text())
    assert list(weights) == ["bm25", "splade", "dense"]
    assert weights["bm25"] in (0.5, 1, 2) and (weights["splade"], weights["dense"]) == (1, 2)
    (decision,) = artifact.require(output, "adapt: balance").stats["decision"]
    assert decision.startswith(f"BM25, SPLADE and dense have the weights {weights['bm25']:g} : 1 : 2 in three ways")
    before = output.stat().st_mtime_ns
    balance(material(config, tmp_path / "vectors", 0, dense=True), output)
    assert output.stat().st_mtime_ns == before


def test_without_queries_the_default_remains(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "two words"}\n{"_id": "2", "text": "more words"}\n')
    made = material(IndexConfig(name="short", source=str(tmp_path)), tmp_path / "vectors", 0, dense=True)
    assert json.loads(balance(made, tmp_path / "weights.json").read_text()) == {"bm25": 2, "splade": 1, "dense": 2}
    (decision,) = artifact.require(tmp_path / "weights.json", "adapt: balance").stats["decision"]
    assert decision.endswith("in three ways (no document makes a query that could judge)")
