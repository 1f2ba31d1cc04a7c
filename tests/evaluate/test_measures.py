"""Measures by hand, and comparisons by the book."""

import math
import random
from pathlib import Path

import pytest
from scipy.stats import t as student
from scipy.stats import ttest_rel

from cai_pyserini.evaluate import compare, evaluate, holm, mean
from cai_pyserini.trec import read_run
from tests.conftest import Command

QRELS = {
    "q1": {"a": 3, "b": 1, "c": 0, "d": 2},
    "q2": {"a": 1, "e": 1},
    "absent": {"a": 1},
    "007": {"NA": 1},
}
RUN = """\
q1 Q0 b 1 9 x
q1 Q0 unjudged 2 8 x
q1 Q0 a 3 7 x
q2 Q0 x1 1 20 x
q2 Q0 x2 2 19 x
q2 Q0 x3 3 18 x
q2 Q0 e 4 17 x
007 Q0 NA 1 1 x
unjudged Q0 a 1 1 x
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run.trec").write_text(RUN)
    return tmp_path / "run.trec"


def test_measures_worked_example(run: Path) -> None:
    values = evaluate(QRELS, read_run(run))
    # The gain is the grade, the discount log2(rank + 1).
    q1 = (1 + 3 / math.log2(4)) / (3 + 2 / math.log2(3) + 1 / math.log2(4))
    q2 = (1 / math.log2(5)) / (1 + 1 / math.log2(3))
    assert values["nDCG@10"] == pytest.approx({"q1": q1, "q2": q2, "absent": 0, "007": 1})
    assert values["R@100"] == pytest.approx({"q1": 2 / 3, "q2": 1 / 2, "absent": 0, "007": 1})
    assert values["RR@10"] == pytest.approx({"q1": 1, "q2": 1 / 4, "absent": 0, "007": 1})
    assert mean(values["nDCG@10"]) == pytest.approx((q1 + q2 + 1) / 4)


def test_measures_are_cut(tmp_path: Path) -> None:
    lines = [f"q Q0 d{i} {i} {1000 - i} x\n" for i in range(1, 121)]
    (tmp_path / "run").write_text("".join(lines))
    values = evaluate({"q": {"d11": 1, "d100": 1, "d101": 1}}, read_run(tmp_path / "run"))
    assert values == {"nDCG@10": {"q": 0}, "R@100": {"q": pytest.approx(2 / 3)}, "RR@10": {"q": 0}}


def test_other_measures_can_be_asked_for(run: Path) -> None:
    assert evaluate(QRELS, read_run(run), ["P@2"]) == {"P@2": {"q1": 0.5, "q2": 0, "absent": 0, "007": 0.5}}


@pytest.mark.parametrize(
    "given, corrected",
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.03, 0.01, 0.04], [0.06, 0.03, 0.06]),
        ([0.2, 0.5, 0.9], [0.6, 1.0, 1.0]),
        ([0.01, 0.011], [0.02, 0.02]),
        ([0.5], [0.5]),
        ([], []),
    ],
)
def test_holm_worked_examples(given: list[float], corrected: list[float]) -> None:
    assert holm(given) == pytest.approx(corrected)


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


def test_several_comparisons_are_scipys_corrected() -> None:
    baseline = values(1)
    systems = {name: values(seed, 0.1 * seed) for seed, name in ((2, "b"), (3, "c"), (4, "a"))}
    raw = [float(ttest_rel(list(s.values()), list(baseline.values())).pvalue) for s in systems.values()]
    compared = compare(baseline, systems)
    assert list(compared) == ["b", "c", "a"]
    assert [comparison.p for comparison in compared.values()] == pytest.approx(holm(raw))


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
    assert comparison.difference == 0.5
    assert not comparison.p < 0.05


def test_the_command(tiny: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "base.trec").write_text("q1 Q0 d9 1 2 x\nq1 Q0 d1 2 1 x\n")
    (tmp_path / "good.trec").write_text("q1 Q0 d1 1 2 x\nq2 Q0 d4 1 1 x\n")
    runs = ["--runs", "base.trec", "good.trec", "--measures", "RR@10", "P@1"]
    done = command("cai_pyserini.evaluate", "--collection", tiny, *runs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Five queries: RR 1/2 of q1, against 1 of q1 and of q2. Differences .5, 1, 0, 0, 0: t = 1.5, p = 0.208.
    assert done.stdout.splitlines() == [
        "run            RR@10        P@1",
        "base.trec     0.1000     0.0000",
        "good.trec     0.4000     0.4000",
        "good.trec - base.trec: +0.3000 RR@10, p = 0.2080",
    ]
