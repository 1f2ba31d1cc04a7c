"""Significance over seeds and queries, against a model of another library and by simulation."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtr
from scipy.stats import ttest_1samp

from cai_pyserini.runs.seeds import over_seeds
from cai_pyserini.runs.significance import Comparison


def values(table: np.ndarray) -> list[dict[str, float]]:
    """A table (seeds, queries) as values of queries by seed."""
    return [{f"q{number}": value for number, value in enumerate(row)} for row in table.tolist()]


def compared(differences: np.ndarray) -> Comparison:
    """A trained system, which differs so much, against one that is not, whose values repeat."""
    base = np.linspace(0, 1, differences.shape[1])
    return over_seeds(values(base[None]), values(base + differences))


def made(draw: np.random.Generator, seeds: int, queries: int, of_seeds: float, of_queries: float) -> np.ndarray:
    effects = draw.normal(0, of_seeds, (seeds, 1)) + draw.normal(0, of_queries, queries)
    return effects + draw.normal(0, 0.15, (seeds, queries))


def test_equal_to_reml_with_crossed_effects() -> None:
    """The fault: another model than the one that the documentation names."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    table = 0.1 + made(np.random.default_rng(3), 4, 12, 0.3, 0.2)
    rows = [(seed, query, value) for (seed, query), value in np.ndenumerate(table)]
    frame = pd.DataFrame(rows, columns=["seed", "query", "difference"])
    effects = {"seed": "0 + C(seed)", "query": "0 + C(query)"}
    with warnings.catch_warnings(action="ignore"):
        model = MixedLM.from_formula("difference ~ 1", frame, groups=np.ones(len(frame)), vc_formula=effects)
        fitted = model.fit(reml=True)
    query, seed = fitted.vcomp  # in the order of their names
    assert min(query, seed) > 0.01
    # Satterthwaite (1946), from the expected mean squares of these components.
    squares = fitted.scale + 12 * seed, fitted.scale + 4 * query, fitted.scale
    freedom = (squares[0] + squares[1] - squares[2]) ** 2 / sum(
        square**2 / own for square, own in zip(squares, (3, 11, 33), strict=True)
    )
    error = fitted.bse_fe.iloc[0]
    found = compared(table)
    assert found.interval is not None
    assert found.difference == pytest.approx(fitted.fe_params.iloc[0])
    assert found.p == pytest.approx(2 * stdtr(freedom, -abs(found.difference) / error), rel=1e-3)
    low, high = found.interval
    assert 2 * stdtr(freedom, -(high - low) / 2 / error) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize("seeds, of_averages", [(3, 0.20), (5, 0.15)])
def test_without_a_difference_one_in_twenty_is_significant(seeds: int, of_averages: float) -> None:
    """The fault: a t-test of values averaged over seeds, which takes the luck of three seeds for a gain."""
    draw = np.random.default_rng(seeds)
    tables = [made(draw, seeds, 300, 0.02, 0.15) for _ in range(1000)]
    found = [compared(table).p for table in tables]
    assert np.mean([p is not None and p < 0.05 for p in found]) == pytest.approx(0.06, abs=0.025)
    averaged = ttest_1samp(np.array([table.mean(0) for table in tables]), 0, axis=1).pvalue
    assert np.mean(averaged < 0.05) == pytest.approx(of_averages, abs=0.04)


def test_without_variance_of_seeds_it_is_the_test_over_queries() -> None:
    """One seed, and systems that nothing trains; and seeds that vary less than chance lets them."""
    draw = np.random.default_rng(0)
    once = draw.normal(0.05, 0.2, (1, 50))
    expected = ttest_1samp(once[0], 0)
    for table in (once, np.repeat(once, 2, 0), np.repeat(once, 3, 0)):
        assert compared(table).p == pytest.approx(expected.pvalue)
        assert compared(table).interval == pytest.approx(tuple(expected.confidence_interval()))
    balanced = once + (noise := np.array([[1], [0], [-1]]) * draw.normal(0, 0.1, 50)) - noise.mean(1, keepdims=True)
    assert compared(balanced).p == pytest.approx(ttest_1samp(balanced.mean(0), 0).pvalue, rel=0.05)


def test_no_p_for_two_seeds_few_queries_and_equal_differences() -> None:
    """Two seeds have one degree of freedom, whose p of 0.05 comes by chance in 12% of the cases."""
    table = made(np.random.default_rng(0), 3, 12, 0.1, 0.1)
    assert compared(table).p is not None
    for one in (table[:2], table[:, :9], np.full((3, 12), 0.25)):
        assert (compared(one).p, compared(one).interval) == (None, None)
    assert compared(np.zeros((3, 12))).p == 1.0
