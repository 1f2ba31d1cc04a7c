"""Paired significance tests over queries."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy.stats import ttest_rel

from cai_pyserini.evaluate.measures import mean


class Comparison(NamedTuple):
    """A system against a baseline: the mean difference, and the Holm-corrected p of the paired t-test."""

    difference: float
    p: float


def compare(baseline: dict[str, float], systems: dict[str, dict[str, float]]) -> dict[str, Comparison]:
    """Compare each system's values with a baseline's, query by query (two-sided paired t-test, Holm 1979)."""
    return compare_pairs({name: (baseline, values) for name, values in systems.items()})


def compare_pairs(pairs: Mapping[str, tuple[dict[str, float], dict[str, float]]]) -> dict[str, Comparison]:
    """As `compare`, where every system has a baseline of its own, the first of its pair."""
    corrected = holm([_p(baseline, values) for baseline, values in pairs.values()])
    return {
        name: Comparison(mean(values) - mean(baseline), p)
        for (name, (baseline, values)), p in zip(pairs.items(), corrected, strict=True)
    }


def _p(baseline: dict[str, float], values: dict[str, float]) -> float:
    """The p of the paired t-test."""
    queries = list(baseline)
    differences = [values[query] - baseline[query] for query in queries]
    if len(queries) > 1 and any(abs(d - differences[0]) > 1e-12 for d in differences):
        return float(ttest_rel([values[q] for q in queries], [baseline[q] for q in queries]).pvalue)
    return float(len(queries) == 1 or not any(differences))  # no variance to test: 1 if nothing differs, else 0


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values for multiple comparisons (Holm 1979)."""
    order = sorted(range(len(pvalues)), key=lambda i: pvalues[i])
    corrected = [0.0] * len(pvalues)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, pvalues[i] * (len(pvalues) - rank)))
        corrected[i] = largest
    return corrected
