"""Paired significance tests over queries."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cai_pyserini.runs.measures import mean

# A test without assumptions about the differences (sign test, randomization) gives at least p = 2^(1 - n) for n
# queries: 0.002 for 10 queries, which stays below 0.05 when corrected for up to 25 systems.
MIN_QUERIES = 10
ALPHA = 0.05
TIE = 1e-9  # a smaller difference is a rounding error
NO_P = "–"
NO_P_MEANS = f"{NO_P}: no p below {MIN_QUERIES} queries, nor of differences that are all the same"


class Comparison(NamedTuple):
    """A system against a baseline: the mean difference and the Holm-corrected p-value of the paired t-test.

    `p` is None below MIN_QUERIES queries, and if all differences are equal, so that there is no variance to test; it is
    1 if all differences are 0.
    """

    difference: float
    p: float | None


def compare(baseline: dict[str, float], systems: dict[str, dict[str, float]]) -> dict[str, Comparison]:
    """Compare each system's values with a baseline's, query by query (two-sided paired t-test, Holm 1979)."""
    return compare_pairs({name: (baseline, values) for name, values in systems.items()})


def better_than(systems: Mapping[str, dict[str, float]]) -> dict[str, list[str]]:
    """The systems that each system is significantly better than: p < ALPHA, corrected for all pairs."""
    pairs = {(a, b): (systems[b], systems[a]) for a, b in combinations(systems, 2)}
    better: dict[str, list[str]] = {name: [] for name in systems}
    for (a, b), (difference, p) in compare_pairs(pairs).items():
        if p is not None and p < ALPHA:
            winner, loser = (a, b) if difference > 0 else (b, a)
            better[winner].append(loser)
    return better


def compare_pairs[K](pairs: Mapping[K, tuple[dict[str, float], dict[str, float]]]) -> dict[K, Comparison]:
    """Like `compare`, with a separate baseline for each system, the first of its pair. Systems without a p-value do not
    count in the correction."""
    tested = {name: p for name, pair in pairs.items() if (p := _p(*pair)) is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {
        name: Comparison(mean(values) - mean(baseline), corrected.get(name))
        for name, (baseline, values) in pairs.items()
    }


def _p(baseline: dict[str, float], values: dict[str, float]) -> float | None:
    differences = [values[query] - baseline[query] for query in baseline]
    if len(differences) < MIN_QUERIES:
        return None
    if all(abs(d - differences[0]) <= 1e-12 for d in differences):
        return None if abs(differences[0]) > 1e-12 else 1.0

    from scipy.stats import ttest_1samp  # takes 0.7 seconds, and few comparisons need a test

    return float(ttest_1samp(differences, 0).pvalue)


def wins_and_losses(differences: Sequence[float] | np.ndarray) -> tuple[int, int]:
    """The number of differences above and below 0."""
    values = np.asarray(differences)
    return int((values > TIE).sum()), int((values < -TIE).sum())


def p_text(p: float | None) -> str:
    """A p-value as text, never 0."""
    return NO_P if p is None else f"{p:.3f}" if p >= 0.0005 else "<0.001"


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values for multiple comparisons (Holm 1979)."""
    corrected, order = np.array(pvalues, float), np.argsort(pvalues, kind="stable")
    factors = np.arange(len(corrected), 0, -1)
    corrected[order] = np.maximum.accumulate(np.minimum(corrected[order] * factors, 1))
    return corrected.tolist()
