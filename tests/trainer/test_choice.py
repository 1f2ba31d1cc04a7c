"""Adapted encoders replace the old ones only with evidence for every served system."""

import json
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.core import artifact
from cai_pyserini.trainer.adaptation_data import AdaptationData
from cai_pyserini.trainer.choice import Candidate, Decision, balance, decide
from tests.trainer.conftest import adaptation_data

SYSTEMS = ["fusion", "joint"]
SOURCES = np.repeat(np.arange(100), 3)  # of three queries each
NONE, SOME, ALL = Candidate(0.0, 0.0), Candidate(0.4, 0.0), Candidate(0.8, 0.5)
EVERY = (NONE, SOME, ALL, Candidate(0.0, 0.5))


def values(gains: dict[Candidate, float | list[float]], noise: float = 0.02) -> dict[Candidate, np.ndarray]:
    """Values (systems, queries) with these mean gains, of all systems or of each."""
    draw = np.random.default_rng(1)
    return {
        each: 0.5 + np.reshape(gains.get(each, 0.0), (-1, 1)) + draw.normal(0, noise, (len(SYSTEMS), len(SOURCES)))
        for each in EVERY
    }


def choose(found: dict[Candidate, np.ndarray], sources: np.ndarray = SOURCES) -> Decision:
    return decide(found, sources, SYSTEMS)


@pytest.mark.parametrize("gains", [{}, {SOME: 0.004, ALL: 0.004}, {ALL: 0.01}])
def test_noise_goes_to_the_encoders_as_they_were(gains: dict) -> None:
    """The fault: any gain was enough."""
    found = values(gains, 0.1)
    assert max(found, key=lambda each: found[each].mean()) != NONE
    decision = choose(found)
    assert decision.chosen == NONE
    assert decision.reason.startswith("not adapted: the encoders are used as before, since no candidate")
    evidence = "300 pseudo queries from 100 documents without the queries' words; gains in nDCG@10: fusion"
    assert evidence in decision.reason


def test_one_system_that_does_not_gain_is_enough_to_decline() -> None:
    """The mean over systems is large, and the fusion loses."""
    assert choose(values({ALL: [-0.01, 0.1]})).chosen == NONE


def test_a_gain_in_every_system_is_taken() -> None:
    decision = choose(values({ALL: 0.05}))
    assert decision.chosen == ALL
    assert decision.reason.startswith(
        "adapted: weight 0.8 of the trained SPLADE and weight 0.5 of the projection (300 pseudo queries "
    )
    assert "fusion +0.0517 ± 0.0016, joint +0.05" in decision.reason
    assert [(gains["splade"], gains["projection"]) for gains in decision.gains] == [(0.4, 0), (0, 0.5), (0.8, 0.5)]
    assert decision.gains[-1]["joint"] == pytest.approx(0.05, abs=0.005)


def test_the_smallest_change_that_is_not_significantly_worse_wins() -> None:
    assert choose(values({SOME: 0.0500, ALL: 0.0501})).chosen == SOME
    assert choose(values({SOME: 0.0500, ALL: 0.0700})).chosen == ALL


def test_queries_of_one_source_count_once() -> None:
    """A gain in 10 of 100 sources is no evidence, even if each of the 10 has 30 queries."""
    few = np.repeat(np.arange(100), [30] * 10 + [1] * 90)
    draw = np.random.default_rng(1)
    gained = np.where(few < 10, 0.05, draw.normal(0, 0.05, len(few)))
    found = {NONE: np.zeros((2, len(few))), ALL: np.broadcast_to(gained, (2, len(few)))}
    assert found[ALL].mean() > 0.03
    assert choose(found, few).chosen == NONE


def test_without_a_candidate_that_changes_nothing_the_smallest_one_is_the_measure() -> None:
    """As with --weight, where the queries decide only about the projection."""
    found = values({Candidate(0.4, 0.0): 0.2, ALL: 0.2})
    decision = choose({SOME: found[SOME], ALL: found[ALL]})
    assert decision.chosen == SOME
    assert decision.reason.startswith("no projection: the dense encoder is used as before")


@pytest.mark.slow
def test_weights_of_the_fusion_are_chosen_once(with_dense: AdaptationData, tmp_path: Path) -> None:
    output = tmp_path / "weights.json"
    weights = json.loads(balance(with_dense, output).read_text())
    assert list(weights) == ["bm25", "splade", "dense"]
    assert weights["bm25"] in (0.5, 1, 2) and (weights["splade"], weights["dense"]) == (1, 2)
    (decision,) = artifact.require(output, "adapt: balance").stats["decision"]
    assert decision.startswith(f"BM25 + SPLADE + dense have the weights {weights['bm25']:g} : 1 : 2 (")
    before = output.stat().st_mtime_ns
    balance(with_dense, output)
    assert output.stat().st_mtime_ns == before


def test_without_queries_the_default_weights_remain(short: Path, tmp_path: Path) -> None:
    data, output = adaptation_data(short, tmp_path / "vectors", dense=True), tmp_path / "weights.json"
    assert json.loads(balance(data, output).read_text()) == {"bm25": 2, "splade": 1, "dense": 2}
    (decision,) = artifact.require(output, "adapt: balance").stats["decision"]
    assert decision.endswith(" : 1 : 2 (too few documents yield queries to judge by)")
