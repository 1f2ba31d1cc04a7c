"""Completed runs: by hand, and against deeper searches, which give the same scores."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.complete import complete, vector_scores
from cai_pyserini.search import Searcher
from cai_pyserini.trec import read_run
from cai_pyserini.vectors import Shard
from tests.conftest import Command


def frame(*rows: tuple[str, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "score"])


def test_union_of_the_first_documents_and_no_score_is_missing() -> None:
    own = frame(("q1", "a", 3.0), ("q1", "b", 2.0), ("q1", "c", 1.0), ("q2", "a", 5.0))
    other = frame(("q1", "c", 9.0), ("q1", "d", 8.0), ("q1", "a", 7.0), ("q3", "e", 1.0))
    asked = {}

    def score(wanted: dict) -> dict:
        asked.update(wanted)
        return {"q1": {"d": 2.5}, "q3": {"e": 0.0}}

    run = complete(own, other, 2, score)
    assert asked == {"q1": ["d"], "q3": ["e"]}  # c is in the own run, though beyond the depth
    assert run == {"q1": [("a", 3.0), ("d", 2.5), ("b", 2.0), ("c", 1.0)], "q2": [("a", 5.0)], "q3": [("e", 0.0)]}


def test_vector_scores() -> None:
    shards = [Shard(["a", "b"], csr_matrix([[1, 0, 2], [0, 3, 0]])), Shard(["c"], csr_matrix([[4, 0, 0]]))]
    queries = csr_matrix([[1.0, 10.0, 100.0], [0.5, 0.0, 0.0]])
    found = vector_scores({"q2": ["a", "c", "b"], "q1": ["b"]}, ["q1", "q2"], queries, shards)
    assert found == {"q2": {"a": 0.5, "b": 0.0, "c": 2.0}, "q1": {"b": 30.0}}


def test_bm25_scores_of_given_documents_are_those_of_the_search(line: Path) -> None:
    searcher = Searcher(line / "indexes" / "bm25")
    query = "what lowers high blood pressure?"
    found = dict(searcher.search(query, 12))
    assert set(found) == {"d2", "d5", "d9", "d10"}
    assert searcher.scores(query, ["d10", "d4", "d9"]) == {"d10": found["d10"], "d4": 0.0, "d9": found["d9"]}
    searcher.close()


def test_exact_hybrids_are_those_of_runs_that_lack_nothing(
    tiny: Path, line: Path, command: Command, tmp_path: Path
) -> None:
    """With 3 hits a run lacks documents; the exact hybrid's first ones are those of complete runs all the same."""
    systems = ["splade-idf", "splade-doc", "dense"]
    names = [f"hybrid-{name}{fusion}-exact" for name in systems for fusion in ("", "-product")]
    zero_filled = [name.removesuffix("-exact") for name in names]
    config = tmp_path / "few.yaml"
    for hits, compared in ((3, names), (12, zero_filled)):
        config.write_text(f"source: {tiny}\nhits: {hits}\n")
        output = Path(shutil.copytree(line, tmp_path / str(hits)))
        done = command(
            "cai_pyserini.beir", config, "--output", output, "--dense", "minilm", "--systems", *compared, "--device=cpu"
        )
        assert done.returncode == 0, done.stderr
    for exact, filled in zip(names, zero_filled, strict=True):
        few = read_run(tmp_path / "3" / "runs" / f"{exact}.trec")
        all_ = read_run(tmp_path / "12" / "runs" / f"{filled}.trec").set_index(["query_id", "doc_id"]).score
        assert len(few) and few.groupby("query_id").size().max() == 3
        for hit in few.itertuples():
            assert hit.score == pytest.approx(all_[hit.query_id, hit.doc_id], abs=1e-4), (exact, hit)
