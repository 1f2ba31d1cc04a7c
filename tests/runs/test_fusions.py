"""Every way to fuse runs: an example worked by hand, and what holds for all of them."""

import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.runs.fuse import fuse_rankings, fuse_runs
from cai_pyserini.runs.fusions import FUSIONS
from cai_pyserini.runs.trec import Ranking, read_run, run_of, scores_by_query, write_run

Scores = dict[str, dict[str, float]]
ALL = pytest.mark.parametrize("method", FUSIONS)

FIRST = {"q1": [("a", 3.0), ("b", 2.0), ("c", 1.0)], "q2": [("a", 5.0)]}
SECOND = {"q1": [("d", 2.0), ("b", 4.0)], "q3": [("z", 1.0)]}
THIRD = {"q1": [("b", 0.5), ("a", 2.5)], "q3": [("z", 2.0), ("y", 1.0)]}

Z = math.sqrt(3 / 2)

# The fusions of FIRST and SECOND, best first. A new entry of FUSIONS needs one here.
EXAMPLES: dict[str, Scores] = {
    "sum": {"q1": {"b": 2 + 4, "a": 3, "d": 2, "c": 1}, "q2": {"a": 5}, "q3": {"z": 1}},
    "minmax": {"q1": {"b": 1 / 2 + 1, "a": 1, "c": 0, "d": 0}, "q2": {"a": 1}, "q3": {"z": 1}},  # of a single hit 1
    "rrf": {
        "q1": {"b": 1 / 62 + 1 / 61, "a": 1 / 61, "d": 1 / 62, "c": 1 / 63},
        "q2": {"a": 1 / 61},
        "q3": {"z": 1 / 61},
    },
    # q1 has mean 2 and deviation sqrt(2/3), 3 and 1; a single hit has 0
    "zscore": {"q1": {"b": 0 + 1, "a": Z - 1, "c": -Z - 1, "d": -Z - 1}, "q2": {"a": 0}, "q3": {"z": 0}},
    # 0 unless both runs have the document
    "product": {"q1": {"b": 2 * 4, "a": 0, "c": 0, "d": 0}, "q2": {"a": 0}, "q3": {"z": 0}},
}
THREE = {"q1": {"b": 2 + 4 + 0.5, "a": 3 + 2.5, "d": 2, "c": 1}, "q2": {"a": 5}, "q3": {"z": 1 + 2, "y": 1}}  # sum


SUMS = [name for name, fusion in FUSIONS.items() if fusion.is_sum]


def random_run(seed: int, hits: int = 40) -> dict[str, list[tuple[str, float]]]:
    draw = random.Random(seed)
    scores = {
        f"q{query}": sorted((round(draw.uniform(-3, 30), 6) for _ in range(hits)), reverse=True) for query in range(6)
    }
    documents = [f"d{i}" for i in range(80)]
    return {query: list(zip(draw.sample(documents, hits), found, strict=True)) for query, found in scores.items()}


def assert_fused(method: str, runs: list, expected: Scores, **settings: Any) -> None:
    found = scores_by_query(fuse_runs([run_of(run) for run in runs], method, **settings))
    assert {query: list(hits) for query, hits in found.items()} == {q: list(hits) for q, hits in expected.items()}
    for query, hits in found.items():
        assert hits == pytest.approx(expected[query], rel=1e-12)


@ALL
def test_worked_examples(method: str) -> None:
    assert_fused(method, [FIRST, SECOND], EXAMPLES[method])
    if method == "sum":
        assert_fused(method, [FIRST, SECOND, THIRD], THREE)


@pytest.mark.parametrize("method", SUMS)
def test_weights(method: str) -> None:
    """A run with the weight 2 counts as often as if it was given twice."""
    runs = [run_of(random_run(seed)) for seed in range(3)]
    copies = [[*run] for run in runs]
    weighted = scores_by_query(fuse_runs(runs, method, weights=[2, 1, 3]))
    repeated = scores_by_query(fuse_runs([runs[i] for i in (0, 0, 1, 2, 2, 2)], method))
    assert weighted == {query: pytest.approx(hits) for query, hits in repeated.items()}
    assert [*fuse_runs(runs, method, weights=[1, 1, 1])] == [*fuse_runs(runs, method)]
    assert [[*run] for run in runs] == copies


@pytest.mark.parametrize(
    "method, settings, q1, q2, q3",
    [
        # The best two of each run count, and are what min-max is of.
        ("sum", {"depth": 2}, {"b": 6, "a": 3, "d": 2}, {"a": 5}, {"z": 1}),
        ("minmax", {"depth": 2}, {"a": 1, "b": 1, "d": 0}, {"a": 1}, {"z": 1}),
        ("rrf", {"depth": 1}, {"a": 1 / 61, "b": 1 / 61}, {"a": 1 / 61}, {"z": 1 / 61}),
        ("product", {"depth": 1}, {"a": 0, "b": 0}, {"a": 0}, {"z": 0}),
        ("sum", {"hits": 1}, {"b": 6}, {"a": 5}, {"z": 1}),
    ],
)
def test_depth_and_hits(method: str, settings: dict[str, int], q1: dict, q2: dict, q3: dict) -> None:
    assert_fused(method, [FIRST, SECOND], {"q1": q1, "q2": q2, "q3": q3}, **settings)


def test_a_product_does_not_turn_negative_scores_around() -> None:
    """Of equal dense scores below 0, the better BM25 has to win; two of them are not good; 0 is not -0."""
    dense = {"q": [("best", 0.5), ("good", -0.1), ("bad", -0.1), ("worst", -0.3)], "positive": [("a", 0.5), ("b", 0.2)]}
    bm25 = {"q": [("good", 20.0), ("bad", 10.0), ("best", 5.0)], "positive": [("b", 4.0), ("a", 3.0)]}
    expected = {
        "positive": {"a": 1.5, "b": 0.8},
        "q": {"best": (0.5 + 0.3) * 5, "good": (0.3 - 0.1) * 20, "bad": (0.3 - 0.1) * 10, "worst": 0},
    }
    assert_fused("product", [dense, bm25], expected)
    fused = fuse_runs([run_of({"q": [("a", -1.0)]}), run_of({"q": [("b", 2.0)]})], "product")
    assert list(map(str, fused.scores)) == ["0.0", "0.0"]


def test_equal_scores_are_0_in_zscore() -> None:
    """Exactly, although the mean of three times 0.1 is not 0.1 in floating point, and beyond the depth too."""
    equal, other = [("a", 0.1), ("b", 0.1), ("c", 0.1), ("d", 0.0)], [("d", 3.0), ("c", 2.0), ("b", 1.0), ("a", 0.0)]
    found = scores_by_query(fuse_runs([run_of({"q": equal}), run_of({"q": other})], "zscore", depth=3))
    z = math.sqrt(1.5)
    assert found == {"q": pytest.approx({"d": z, "c": 0, "b": -z, "a": -2 * z}, rel=1e-12)}
    assert set(scores_by_query(fuse_runs([run_of({"q": equal})] * 2, "zscore", depth=3))["q"].values()) == {0.0}


@pytest.mark.parametrize("hits", [40, 80])  # of 80 documents; with 80, each run has all of them
@pytest.mark.parametrize("depth", [1, 15, 100])
def test_z_scores_are_those_of_the_formula(hits: int, depth: int) -> None:
    runs, weights = [random_run(seed, hits) for seed in range(3)], [2.0, 1.0, 0.5]
    expected: Scores = {}
    for query in runs[0]:
        for document in {document for run in runs for document, _ in run[query][:depth]}:
            total = 0.0
            for run, weight in zip(runs, weights, strict=True):
                best = [score for _, score in run[query][:depth]]
                score = dict(run[query]).get(document, run[query][-1][1])
                if depth > 1:
                    total += weight * (score - statistics.fmean(best)) / statistics.pstdev(best)
            expected.setdefault(query, {})[document] = total
    found = scores_by_query(fuse_runs([run_of(run) for run in runs], "zscore", depth, weights=weights))
    assert found == {query: pytest.approx(scores, rel=1e-9) for query, scores in expected.items()}


@ALL
def test_ties_are_by_document(method: str, tmp_path: Path) -> None:
    """Those of a run keep their order; files, in which there are none, give the same fusion."""
    run = run_of({"q": [("c", 1), ("a", 1), ("b", 1), ("d", 0), ("e", 0)]})
    other = run_of({"q": [("e", 1), ("b", 1), ("c", 0)]})
    fused = fuse_runs([run, run], method)
    assert list(scores_by_query(fused)["q"])[:3] == (["c", "a", "b"] if method == "rrf" else ["a", "b", "c"])
    assert list(scores_by_query(fuse_runs([run, run], method, depth=1))["q"]) == ["c"]
    paths = [tmp_path / "run", tmp_path / "other"]
    for each, path in zip((run, other), paths, strict=True):
        write_run(each, path, "t")
    assert [*fuse_runs(list(map(read_run, paths)), method)] == [*fuse_runs([run, other], method)]


@ALL
@pytest.mark.parametrize("depth", [5, 100])
def test_the_rankings_of_one_query_are_fused_as_those_of_many(method: str, depth: int) -> None:
    """To the last bit: a search in a run's system has the scores of the run, also with ties and without hits."""
    ties = {"q0": [("b", 1.0), ("a", 1.0), ("d1", 0.5)], "q1": [], "q2": [("d2", -1.0)]}
    several = [random_run(1), random_run(2), {id: ties.get(id, []) for id in random_run(1)}]
    weights = [2.0, 0.3, 1.0] if FUSIONS[method].is_sum else None
    fused = scores_by_query(fuse_runs([run_of(run) for run in several], method, depth, weights=weights))
    for query, expected in fused.items():
        rankings = [Ranking.of(run[query]) for run in several]
        found = fuse_rankings(rankings, method, depth, weights)
        assert [*found.ranking] == [*expected.items()]
        assert {id: score for id, (score, _) in found.shares.items()} == {
            id: pytest.approx(score, abs=1e-6) for id, score in expected.items()
        }
