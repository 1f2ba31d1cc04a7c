"""Rescored runs: by hand, and against deeper searches, which give the same scores."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.cli.run import main as beir
from cai_pyserini.core import artifact
from cai_pyserini.lucene import rescore as rescoring
from cai_pyserini.lucene.rescore import rescore, rescore_runs, text_scorer, vector_scores
from cai_pyserini.lucene.retrieve import open_searcher
from cai_pyserini.runs.trec import read_run, run_of, scores_by_query, write_run
from cai_pyserini.vectors.queries import Encoded
from cai_pyserini.vectors.shards import Shard
from tests.conftest import stored_vectors

OWN = {"q1": [("a", 3.0), ("b", 2.0), ("c", 1.0)], "q2": [("a", 5.0)]}
OTHER = {"q1": [("c", 9.0), ("d", 8.0), ("a", 7.0)], "q3": [("e", 1.0)]}
THIRD = {"q1": [("f", 1.0)], "q2": [("a", 1.0), ("b", 0.5), ("c", 0.25)]}


def test_the_best_documents_of_all_runs_get_scores() -> None:
    def score(candidates: rescoring.Candidates) -> rescoring.Scores:
        # c is in the own run, though beyond the depth
        assert candidates == {"q1": ["d", "f"], "q2": ["b"], "q3": ["e"]}
        return {"q1": {"d": 2.5, "f": -1.0}, "q2": {"b": -1.0}, "q3": {"e": 0.0}}

    run = scores_by_query(rescore_runs(run_of(OWN), [run_of(OTHER), run_of(THIRD)], 2, score))
    expected = {"a": 3.0, "d": 2.5, "b": 2.0, "c": 1.0, "f": -1.0}
    assert run == {"q1": expected, "q2": {"a": 5.0, "b": -1.0}, "q3": {"e": 0.0}}
    assert list(run["q1"]) == list(expected)


def test_a_rescored_run_is_made_again_only_where_a_run_or_the_depth_changes(tmp_path: Path) -> None:
    own, other, output = (tmp_path / f"{name}.trec" for name in ("own", "other", "rescored"))
    write_run(run_of(OWN), own, "own")
    write_run(run_of(OTHER), other, "other")

    def digest(depth: int = 2) -> str:
        def zeros(candidates: rescoring.Candidates) -> rescoring.Scores:
            return {query: dict.fromkeys(ids, 0.0) for query, ids in candidates.items()}

        return artifact.require(rescore(own, [other], zeros, output, depth, "tag"), "beir").digest

    first = digest()
    assert output.read_text().splitlines()[0] == "q1 Q0 a 1 3 tag"
    assert digest() == first
    assert len({first, digest(depth=1)}) == 2
    write_run(run_of({"q1": [("z", 1.0)]}), other, "other")
    assert digest() != first and "z" in output.read_text()


def test_a_document_whose_vector_is_zero_stays_out_of_a_rescored_run(tmp_path: Path) -> None:
    """Else its product, 0, would put it before d, whose score is below 0."""
    rows = np.array([[1, 0], [0, 0], [-1, 1]], np.float32)
    vectors = stored_vectors(tmp_path, rows, ids=[["a", "b", "d"]], kind="dense")
    queries: Any = SimpleNamespace(topics={"q1": "x"}, encoded=Encoded(np.array([[2, 0]], np.float32), 0.0))
    others = run_of({"q1": [("b", 3.0), ("d", 2.0)]})
    run = rescore_runs(run_of({"q1": [("a", 2.0)]}), [others], 2, rescoring.dense_scorer(vectors.folder, queries))
    assert scores_by_query(run) == {"q1": {"a": 2.0, "d": -2.0}}


@pytest.mark.parametrize("pairs", [1, 2, 8192])
@pytest.mark.parametrize("dense", [True, False])
def test_vector_scores(dense: bool, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescoring, "PAIRS", pairs)
    kind = np.array if dense else csr_matrix
    shards = [Shard(["a", "b"], kind([[1, 0, 2], [0, 3, 0]])), Shard(["c"], kind([[4, 0, 0]]))]
    queries = kind([[1.0, 10.0, 100.0], [0.5, 0.0, 0.0]])
    found = vector_scores({"q2": ["a", "c", "b"], "q1": ["b"]}, ["q1", "q2"], queries, shards)
    assert found == {"q2": {"a": 0.5, "b": 0.0, "c": 2.0}, "q1": {"b": 30.0}}


@pytest.mark.slow
def test_bm25_scores_of_chosen_documents_are_those_of_the_search(run_folder: Path) -> None:
    index = run_folder / "indexes" / "bm25"
    query = "what lowers high blood pressure?"
    for k1, b in ((0.9, 0.4), (2.0, 0.9)):
        searcher = open_searcher(index, k1, b)
        found = dict(searcher.search(query, 12))
        searcher.close()
        assert set(found) == {"d2", "d5", "d9", "d10"}
        scores = text_scorer(index, {"q3": query}, k1, b)({"q3": ["d10", "d4", "d9"]})
        assert scores == {"q3": {"d10": found["d10"], "d4": 0.0, "d9": found["d9"]}}


@pytest.mark.slow
def test_exact_hybrids_are_those_of_runs_that_lack_nothing(tiny: Path, run_folder: Path, tmp_path: Path) -> None:
    """With 3 hits a run lacks documents; the exact hybrid's first ones are those of complete runs all the same.

    Not a product with dense scores: it takes the lowest score from them, and complete runs have lower ones.
    """
    names = ["hybrid-splade-idf-product-exact", "hybrid-splade-doc-exact", "hybrid-splade-idf-dense-exact"]
    names += ["fused-joint-splade-idf-dense-exact", "fused-joint-splade-doc-idf-splade-idf-exact"]
    zero_filled = [name.removesuffix("-exact") for name in names]
    config = tmp_path / "few.yaml"
    for hits, compared in ((3, names), (12, zero_filled)):
        config.write_text(f"source: {tiny}\nhits: {hits}\n")
        output = Path(shutil.copytree(run_folder, tmp_path / str(hits)))
        models = ["--dense", "minilm", "--device", "cpu"]
        beir([str(config), "--output", str(output), *models, "--systems", *compared])
    for exact, filled in zip(names, zero_filled, strict=True):
        few = scores_by_query(read_run(tmp_path / "3" / "runs" / f"{exact}.trec"))
        all_ = scores_by_query(read_run(tmp_path / "12" / "runs" / f"{filled}.trec"))
        assert max(map(len, few.values())) == 3
        for query, hits in few.items():
            assert hits == pytest.approx({id: all_[query][id] for id in hits}, abs=1e-4), (exact, query)
