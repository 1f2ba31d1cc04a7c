"""Comparisons by the book: paired t-tests, and Holm's correction worked by hand."""

import math
import random
from collections.abc import Callable

import pytest
from scipy.stats import t as student

from cai_pyserini.runs.significance import MIN_QUERIES, Comparison, all_pairs, better_than, compare, holm, p_text


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
    assert better_than(some, all_pairs(some)) == {"base": [], "c": [], "a": ["base"]}


def test_queries_are_paired_by_id() -> None:
    draw = random.Random(1)
    baseline, system = ({f"q{i}": draw.random() for i in range(30)} for _ in range(2))
    shuffled = dict(reversed(system.items()))
    assert compare(baseline, {"s": shuffled}) == compare(baseline, {"s": system})


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
