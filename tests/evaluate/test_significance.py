"""Comparisons by the book: paired t-tests, and Holm's correction worked by hand."""

import math
import random

import pytest
from scipy.stats import t as student

from cai_pyserini.evaluate.significance import compare, holm


@pytest.mark.parametrize(
    "pvalues, corrected",
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.03, 0.01, 0.04], [0.06, 0.03, 0.06]),
        ([0.2, 0.5, 0.9], [0.6, 1.0, 1.0]),
        ([0.01, 0.011], [0.02, 0.02]),
        ([0.5], [0.5]),
        ([], []),
    ],
)
def test_holm_worked_examples(pvalues: list[float], corrected: list[float]) -> None:
    assert holm(pvalues) == pytest.approx(corrected)


def values(seed: int, shift: float = 0) -> dict[str, float]:
    draw = random.Random(seed)
    return {f"q{i}": draw.random() + shift for i in range(30)}


def test_one_comparison_is_a_paired_t_test() -> None:
    baseline, system = values(1), values(2, 0.2)
    comparison = compare(baseline, {"s": system})["s"]
    differences = [system[query] - baseline[query] for query in baseline]
    average = sum(differences) / 30
    deviation = math.sqrt(sum((d - average) ** 2 for d in differences) / 29)
    assert comparison.difference == pytest.approx(average)
    assert comparison.p == pytest.approx(2 * student.sf(average / (deviation / math.sqrt(30)), df=29))


def test_several_comparisons_are_corrected() -> None:
    """Three systems whose t-statistics are 4, 2 and 3 with two degrees of freedom, for which the t distribution has a
    closed form: p = 1 - t / sqrt(2 + t^2)."""

    def differences(t: float) -> list[float]:  # with mean t / sqrt(3) and standard deviation 1
        return [t / math.sqrt(3) + x for x in (-1, 0, 1)]

    baseline = {"q1": 0.5, "q2": 0.25, "q3": 0.0}
    systems = {
        name: {query: value + d for (query, value), d in zip(baseline.items(), differences(t), strict=True)}
        for name, t in (("b", 4), ("c", 2), ("a", 3))
    }
    p4, p3, p2 = (1 - t / math.sqrt(2 + t**2) for t in (4, 3, 2))  # .057, .095, .184
    compared = compare(baseline, systems)
    assert list(compared) == ["b", "c", "a"]
    # Holm: the smallest p times 3, the next times 2, the largest times 1; none smaller than the one before it.
    assert (3 * p4 < 2 * p3) and (2 * p3 > p2)
    expected = {"b": 3 * p4, "c": 2 * p3, "a": 2 * p3}
    assert {name: comparison.p for name, comparison in compared.items()} == pytest.approx(expected)


def test_queries_are_paired_by_id() -> None:
    baseline, system = values(1), values(2, 0.2)
    shuffled = dict(reversed(system.items()))
    assert compare(baseline, {"s": shuffled}) == compare(baseline, {"s": system})


@pytest.mark.parametrize("shift, p", [(0, 1.0), (0.25, 0.0)])
def test_without_variance_there_is_nothing_to_test(shift: float, p: float) -> None:
    comparison = compare({"a": 0.25, "b": 0.5}, {"s": {"a": 0.25 + shift, "b": 0.5 + shift}})["s"]
    assert comparison == (shift, p)


def test_one_query_is_no_evidence() -> None:
    comparison = compare({"a": 0.25}, {"s": {"a": 0.75}})["s"]
    assert comparison == (0.5, 1.0)
