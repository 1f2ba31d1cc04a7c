"""Comparisons recomputed with scipy, statsmodels and by hand."""

import math
import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap, permutation_test, ttest_rel
from scipy.stats import t as student
from statsmodels.stats.multitest import multipletests

from cai_pyserini.core.errors import CaiError
from cai_pyserini.runs.compared import Compared
from cai_pyserini.runs.significance import MIN_QUERIES, Comparison, Significance, compare, holm, p_text, permutations


def values_of(queries: int, systems: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Systems with equal, zero and continuous values, that differ a little."""
    draw = np.random.default_rng(seed)
    easy, noise = draw.random(queries), draw.normal(0, 0.15, (systems, queries))
    values = (easy + noise + np.arange(systems)[:, None] * 0.06).clip(0, 1).round(2)
    return {f"s{number}": {f"q{place}": float(v) for place, v in enumerate(row)} for number, row in enumerate(values)}


@pytest.mark.parametrize("queries", [10, 13, 60])
def test_all_pairs_are_those_of_scipy_and_statsmodels(queries: int) -> None:
    """Up to 13 queries, all 2^n permutations are counted, as scipy does; of more, 10,000 are drawn."""
    systems = values_of(queries, 4)
    significance, pairs = Significance(systems), [*combinations(systems, 2)]
    uncorrected = [significance.compare([pair])[pair] for pair in pairs]
    for (first, second), found in zip(pairs, uncorrected, strict=True):
        a, b = (np.array([*systems[name].values()]) for name in (first, second))
        differences, by_scipy = b - a, ttest_rel(b, a)
        assert found.difference == pytest.approx(b.mean() - a.mean()) and found.effect and found.p
        assert found.p == pytest.approx(by_scipy.pvalue)
        assert found.effect == pytest.approx(differences.mean() / math.sqrt(differences.var(ddof=1)))
        assert found.effect * math.sqrt(queries) == pytest.approx(by_scipy.statistic)
        options: dict[str, Any] = {"n_resamples": 10_000, "vectorized": True, "rng": 1}
        p = permutation_test((differences,), np.mean, permutation_type="samples", **options).pvalue
        error = 1e-12 if queries <= 13 else 6 * math.sqrt(p * (1 - p) / 10_000)  # of two times 10,000
        assert found.p_randomization == pytest.approx(p, rel=1e-9, abs=error)
        interval = bootstrap((differences,), np.mean, method="percentile", **options).confidence_interval
        assert found.interval == pytest.approx(tuple(interval), abs=0.1 * differences.std() / math.sqrt(queries))
    together = significance.all_pairs()
    assert [*together] == pairs
    for name in ("p", "p_randomization"):
        corrected = multipletests([getattr(found, name) for found in uncorrected], method="holm")[1]
        assert [getattr(found, name) for found in together.values()] == pytest.approx(corrected)


def test_holm_is_that_of_statsmodels_and_of_a_worked_example() -> None:
    draw = random.Random(0)
    for count in (1, 2, 5, 40):
        p_values = [draw.random() ** 4 for _ in range(count)] + [0.01] * 2
        assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06]) and holm([]) == []


def test_a_randomization_test_of_few_permutations_counts_the_observed_one() -> None:
    """The faults: p = 0; a corrected p that no system can get below 0.05, because there are too few permutations."""
    systems = {"a": {f"q{n}": 0.0 for n in range(40)}, "b": {f"q{n}": 0.5 + n / 100 for n in range(40)}}
    assert Significance(systems).all_pairs()["a", "b"].p_randomization == 1 / 10_001
    for count in (2, 10, 20, 40):
        assert count * (count - 1) / 2 / (permutations(300, count) + 1) < 0.01
    assert permutations(10, 40) == 1024


def test_intervals_cover_the_mean_95_times_of_100() -> None:
    """Of samples of 100 skewed values whose mean is known."""
    draw = np.random.default_rng(0)
    samples = {f"s{n}": {str(q): v for q, v in enumerate(draw.beta(0.5, 1, 100))} for n in range(1000)}
    covered = [low <= 1 / 3 <= high for low, high in filter(None, Significance(samples).intervals().values())]
    assert 0.93 < np.mean(covered) < 0.97 and len(covered) == 1000


def test_several_comparisons_are_corrected() -> None:
    """Three systems whose t-statistics are 4, 2 and 3 with nine degrees of freedom."""

    def differences(t: float) -> list[float]:  # with mean t / sqrt(10) and standard deviation 1
        return [t / math.sqrt(10) + x * math.sqrt(9 / 10) for x in (-1, 1) * 5]

    baseline = {f"q{i}": i / 20 for i in range(10)}
    systems = {
        name: {query: value + d for (query, value), d in zip(baseline.items(), differences(t), strict=True)}
        for name, t in (("b", 4), ("c", 2), ("a", 3))
    }
    p4, p3, p2 = (2 * student.sf(t, df=9) for t in (4, 3, 2))  # .0031, .0150, .0766
    systems["same"] = baseline
    systems["shifted"] = {query: value + 0.25 for query, value in baseline.items()}
    compared = compare(baseline, systems)
    assert list(compared) == ["b", "c", "a", "same", "shifted"]
    # Holm: the smallest p times 4, the next times 3 and 2, the largest times 1; that of "shifted", which has no p, does
    # not count.
    expected = {"b": 4 * p4, "c": 2 * p2, "a": 3 * p3, "same": 1.0}
    shifted = compared.pop("shifted")
    assert shifted == Comparison(pytest.approx(0.25), pytest.approx((0.25, 0.25)))
    assert {name: comparison.p for name, comparison in compared.items()} == pytest.approx(expected)
    # Of three pairs, p3 times 3 is 0.045, p2 is 0.077, and a and c differ by 1 / sqrt(10) for every query.
    some = {"base": baseline, "c": systems["c"], "a": systems["a"]}
    lettered = Compared.of({name: {"AP": values} for name, values in some.items()})
    assert lettered.better == {"base": "", "c": "", "a": "a"}


def test_queries_are_paired_by_id() -> None:
    draw = random.Random(1)
    baseline, system = ({f"q{i}": draw.random() for i in range(30)} for _ in range(2))
    shuffled = dict(reversed(system.items()))
    assert compare(baseline, {"s": shuffled}) == compare(baseline, {"s": system})
    with pytest.raises(CaiError, match="base and s have values of different queries"):
        Significance({"base": baseline, "s": system | {"q30": 0.5}})


@pytest.mark.parametrize("queries", [1, 2, MIN_QUERIES - 1, MIN_QUERIES])
def test_few_queries_and_equal_differences_have_no_p(queries: int) -> None:
    """Two queries that win by the same are no evidence, and had p = 0."""
    baseline = {f"q{i}": i / 20 for i in range(queries)}

    def p(win: Callable[[int], float]) -> float | None:
        system = {query: value + win(i) for i, (query, value) in enumerate(baseline.items())}
        return compare(baseline, {"s": system})["s"].p

    few = queries < MIN_QUERIES
    assert p(lambda i: 0.25) is None
    assert (p(lambda i: 0.25 + i / 100) is None) == few
    assert p(lambda i: 0) == p(lambda i: 1e-17) == (None if few else 1.0)


@pytest.mark.parametrize(
    "p, text", [(None, "–"), (0.0, "<0.001"), (0.00049, "<0.001"), (0.0005, "0.001"), (1.0, "1.000")]
)
def test_no_p_is_shown_as_0(p: float | None, text: str) -> None:
    assert p_text(p) == text
