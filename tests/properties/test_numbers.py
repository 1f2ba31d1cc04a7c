"""IDF weights, quantization and fusion of any numbers: bounds of what they give, and orders that do not matter."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.runs.fuse import fuse_runs
from cai_pyserini.runs.fusions import FUSIONS
from cai_pyserini.runs.trec import Hits, run_of, scores_by_query
from cai_pyserini.vectors.quantization import Quantizer, loss_stats, prune
from cai_pyserini.vectors.queries import MAX_WEIGHT, as_terms, quantize_queries

HALF = 0.5 + 1e-3  # of a step; float32 products are a little off
bits = st.integers(1, 16)
ranges = st.floats(1e-6, 1e6)
shapes = st.tuples(st.integers(1, 6), st.integers(1, 8))


def matrices(largest: float) -> st.SearchStrategy[csr_matrix]:
    """Weights (documents, vocabulary) from 0 to `largest`, float32, many of them 0."""
    values = st.just(0.0) | st.floats(0, largest, width=32)
    return arrays.arrays(np.float32, shapes, elements=values).map(csr_matrix)


@given(matrices(1.0) | matrices(2.0**100), bits, ranges)
def test_impacts_are_half_a_step_from_their_weights(shares: csr_matrix, bits: int, range: float) -> None:
    weights = shares * np.float32(range)
    assume(np.isfinite(weights.data).all())
    quantizer = Quantizer.of(bits, range)
    impacts = quantizer.impacts(weights)
    assert impacts.shape == weights.shape and impacts.dtype == np.int32
    assert (impacts.data >= 1).all() and (impacts.data <= 2**bits - 1).all()
    expected = np.minimum(weights.toarray().astype(np.float64), range) * quantizer.scale
    assert (np.abs(impacts.toarray() - expected) <= HALF + 1e-6 * 2**bits).all()
    assert all(0 <= value <= 1 for value in loss_stats(quantizer.loss(weights, impacts)).values())


@given(matrices(1e4), bits, ranges, st.randoms())
def test_an_impact_does_not_depend_on_the_other_documents(weights: csr_matrix, bits: int, range: float, draw) -> None:
    config = EncoderConfig(name="x", checkpoint="x", keep_terms=draw.randint(1, 8), keep_mass=draw.uniform(0.01, 1))
    quantizer = Quantizer.of(bits, range)
    order = draw.sample([*map(int, np.arange(weights.shape[0]))], draw.randint(1, weights.shape[0]))
    of_all = prune(quantizer.impacts(weights), config)[order]
    assert (of_all != prune(quantizer.impacts(weights[order]), config)).nnz == 0


@given(matrices(512.0), st.integers(1, 100_000))
def test_query_weights_are_positive_integers_of_java(weights: csr_matrix, query_scale: int) -> None:
    terms = [f"t{i}" for i in np.arange(weights.shape[1])]
    for row, query in zip(weights.toarray(), as_terms(quantize_queries(weights, query_scale), terms), strict=True):
        assert all(1 <= weight <= MAX_WEIGHT for weight in query.values())
        missing = [weight for term, weight in zip(terms, row, strict=True) if term not in query]
        assert max(missing, default=0) * query_scale <= HALF


names = st.sampled_from([*"abcdefgh"])
runs = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3"]),
    st.dictionaries(names, st.floats(-(2.0**100), 2.0**100, width=32), min_size=1),
    min_size=1,
)


def ranked(run: dict[str, dict[str, float]]) -> dict[str, Hits]:
    return {query: sorted(hits.items(), key=lambda hit: (-hit[1], hit[0])) for query, hits in run.items()}


@pytest.mark.parametrize("method", FUSIONS)
@given(st.lists(runs, min_size=2, max_size=3), st.integers(1, 8), st.randoms())
def test_fused_scores_are_finite_and_do_not_depend_on_the_order_of_queries(
    method: str, made: list[dict[str, dict[str, float]]], depth: int, draw
) -> None:
    def fused(mixed: Callable[[list], list]) -> dict[str, dict[str, float]]:
        frames = [run_of(dict(mixed([*ranked(run).items()]))) for run in made]
        return scores_by_query(fuse_runs(frames, method, depth))

    found = fused(list)
    assert all(math.isfinite(score) for hits in found.values() for score in hits.values())
    assert found.keys() == {query for run in made for query in run}
    for query, hits in found.items():
        best = [dict(ranked(run)[query][:depth]) for run in made if query in run]
        assert hits.keys() == {document for of_run in best for document in of_run}
    assert fused(lambda items: draw.sample(items, len(items))) == found
