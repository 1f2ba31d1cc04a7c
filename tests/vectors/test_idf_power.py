"""The choice of the power of IDF, compared with its equation, query by query."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.vectors.idf_power import BEST, Choice, for_bags, for_noise, noise

COMMON = np.array([True, True, False, False, False, False])


def expected(queries: np.ndarray, documents: np.ndarray) -> float:
    shares = []
    for query in queries:
        scores, of_common = documents @ query, documents @ (query * COMMON)
        best = np.argsort(-scores)[:BEST]
        if scores[best].std():
            covariance = np.cov(of_common[best], scores[best], ddof=0)
            shares.append(covariance[0, 1] / covariance[1, 1])
    return float(np.mean(shares))


@pytest.mark.parametrize("sizes", [(40,), (70, 4, 300), (100, 1)])
def test_noise_equals_the_equation(sizes: Sequence[int]) -> None:
    """With a query of which no document has a word. The faults: the best scores are those of a shard; the parts of
    common tokens are those of other documents than the scores; one query is no number for all of them."""
    draw = np.random.default_rng(7)
    queries, documents = draw.exponential(size=(5, 6)), draw.exponential(size=(sum(sizes), 6))
    queries[2] = 0
    shards = [csr_matrix(part) for part in np.split(documents, np.cumsum(sizes)[:-1])]
    found = noise(csr_matrix(queries), shards, COMMON)
    assert found == pytest.approx(expected(queries, documents), abs=1e-4) and 0.1 < found < 0.9


def test_noise_worked_example() -> None:
    """Of two documents, the scores 3 and 1 differ by 2, of which 1.5 are from the common token."""
    documents = [csr_matrix([[2.5, 0, 0.5, 0, 0, 0]]), csr_matrix([[1.0, 0, 0, 0, 0, 9.0]])]
    assert noise(csr_matrix([[1.0, 0, 1.0, 0, 0, 0]]), documents, COMMON) == 0.75


def test_without_scores_that_differ_there_is_no_noise() -> None:
    """The faults: NaN, which is above and below every threshold; a collection of one document ends the run."""
    one = csr_matrix([[1.0, 0, 0, 0, 0, 0]])
    assert noise(one, [one], COMMON) is noise(one[:0], [one], COMMON) is noise(one, [], COMMON) is None


@pytest.mark.parametrize(
    "chosen, power, reason",
    [
        (for_noise(0.0576), 0.5, "cause 5.8% of the variance of the best scores, less than 20%"),
        (for_noise(0.2), 1.0, "cause 20.0% of the variance of the best scores, 20% or more"),
        (for_noise(None), 0.5, "too few or too short"),
        (for_noise(0.55, is_cut=True), 0.5, "does not read most of the text"),
        (for_bags(weighted=False), 1.0, "bags of word pieces"),
        (for_bags(weighted=True), 0.0, "weights of their own"),
    ],
)
def test_the_choice(chosen: Choice, power: float, reason: str) -> None:
    assert chosen.power == power and reason in chosen.reason
