"""Do two systems differ beyond the queries and the seeds that they were measured with?

With d[s, q] the difference for seed s of S and query q of Q, both drawn from many:

    d[s, q] = mu + seed_s + query_q + e[s, q]

The variance of their mean follows from the mean squares of seeds, queries and residuals, its degrees of freedom from
Satterthwaite's approximation:

    (MS_seed + MS_query - MS_e) / (S Q)

This is Clark's quasi-F (1973, "The language-as-fixed-effect fallacy"), and what REML gives for crossed random effects.
If an estimated variance component, (MS_seed - MS_e) / Q or (MS_query - MS_e) / S, is below 0, it counts as 0: then the
numerator is the other mean square.

A paired t-test of values averaged over seeds takes these seeds for all that there are: it can find a difference in 20%
of the cases where there is none (three seeds, 300 queries: tests/runs/test_seeds.py), and the more, the more queries.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import stdtr, stdtrit

from cai_pyserini.runs.significance import ALPHA, MIN_QUERIES, TIE, Comparison

MIN_SEEDS = 3  # with two, p < 0.05 would come without a difference in up to 12% of the cases, with three in up to 8%

type BySeed = Sequence[Mapping[str, float]]  # for each seed: query -> value


def over_seeds(a: BySeed, b: BySeed) -> Comparison:
    """System b minus system a, with the uncorrected p and the 95% confidence interval of the crossed model.

    Both have their seeds in the same order; a system that nothing trains has one, and its values repeat. Where seeds do
    not change the differences, this is the paired t-test over queries. There is neither p nor interval below
    MIN_QUERIES queries, from 2 to MIN_SEEDS - 1 seeds, and if all differences are equal; if these are 0, p is 1.
    """
    queries = [*a[0]]
    first, second = (np.array([[values[query] for query in queries] for values in system]) for system in (a, b))
    differences = second - first
    if np.ptp(differences, axis=0).max() <= TIE:
        differences = differences[:1]
    mean, (seeds, count) = float(differences.mean()), differences.shape
    if count < MIN_QUERIES or 1 < seeds < MIN_SEEDS:
        return Comparison(mean)
    if np.ptp(differences) <= TIE:
        return Comparison(mean, p=1.0 if abs(mean) <= TIE else None)
    variance, freedom = _variance_of_mean(differences)
    error = np.sqrt(variance)
    margin = error * stdtrit(freedom, 1 - ALPHA / 2)
    p = 2 * stdtr(freedom, -abs(mean) / error)
    return Comparison(mean, (float(mean - margin), float(mean + margin)), p=float(p))


def _variance_of_mean(differences: np.ndarray) -> tuple[float, float]:
    """The variance of the mean of differences (seeds, queries), and its degrees of freedom."""
    (seeds, queries), mean = differences.shape, differences.mean()
    by_seed, by_query = differences.mean(1, keepdims=True), differences.mean(0)
    residuals = differences - by_seed - by_query + mean
    effects = (queries * np.square(by_seed - mean), seeds * np.square(by_query - mean), np.square(residuals))
    freedoms = np.array([seeds - 1, queries - 1, (seeds - 1) * (queries - 1)]).clip(min=1)  # of one seed, 0 / 1 is 0
    of_seeds, of_queries, of_residuals = means = np.array([each.sum() for each in effects]) / freedoms
    numerator = max(of_seeds + of_queries - of_residuals, of_seeds, of_queries)
    return numerator / differences.size, numerator**2 / (means**2 / freedoms).sum()
