"""Measures by hand, and against plain ir_measures."""

import json
import math
import random
import re
from pathlib import Path
from shutil import which

import ir_measures
import pytest

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.runs.measures import EXAMPLES, MEASURES, evaluate, mean, measure, measure_run, parse_measures
from cai_pyserini.runs.trec import read_run, run_of, scores_by_query

QRELS = {"q1": {"a": 3, "b": 1, "c": 0, "d": 2}, "q2": {"a": 1, "e": 1}, "absent": {"a": 1}, "007": {"NA": 1}}
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
    values = measure(QRELS, read_run(run))
    # The gain is the grade, the discount log2(rank + 1).
    q1 = (1 + 3 / math.log2(4)) / (3 + 2 / math.log2(3) + 1 / math.log2(4))
    q2 = (1 / math.log2(5)) / (1 + 1 / math.log2(3))
    assert values["nDCG@10"] == pytest.approx({"q1": q1, "q2": q2, "absent": 0, "007": 1})
    assert values["R@100"] == pytest.approx({"q1": 2 / 3, "q2": 1 / 2, "absent": 0, "007": 1})
    assert values["RR@10"] == pytest.approx({"q1": 1, "q2": 1 / 4, "absent": 0, "007": 1})
    assert mean(values["nDCG@10"]) == pytest.approx((q1 + q2 + 1) / 4)


def with_ties() -> dict[str, dict[str, float]]:
    """A run of which no query has its ranks 10 and 11, nor 100 and 101, apart: few scores, many documents."""
    draw = random.Random(0)
    documents = [f"d{i}" for i in range(150)]
    scores = {
        "three": lambda: draw.choice([1.0, 2.0, 3.0]),
        "equal": lambda: 1.0,
        "equal in single precision": lambda: 16_777_216 + draw.random(),
        "steps": lambda: draw.randrange(40) / 10,
        "negative": lambda: -float(draw.randrange(4)),
        "apart": draw.random,
    }
    return {query.replace(" ", "-"): {document: score() for document in documents} for query, score in scores.items()}


def test_ties_of_other_tools_are_in_the_order_of_trec_eval_in_all_measures(tmp_path: Path) -> None:
    """By falling id, scores in single precision. RR@10 of ir_measures has them by rising id, in double precision."""
    run, draw = with_ties(), random.Random(100)
    qrels = {query: {f"d{i}": draw.choice([0, 1, 1, 2]) for i in range(0, 150, 3)} for query in run}
    lines = [f"{query} Q0 {id} 1 {score} x\n" for query, hits in run.items() for id, score in hits.items()]
    (tmp_path / "run").write_text("".join(lines))
    names = [*MEASURES, "nDCG@3", "AP", "P@10", "P@1", "Success@1", "R@5", "Success@7", "RR", "RR@1", "RR@100"]
    found = measure_run(qrels, tmp_path / "run", names)
    by_trec_eval = [ir_measures.parse_measure(name) for name in names if not name.startswith("RR@")]
    for metric in ir_measures.iter_calc(by_trec_eval, qrels, run):
        assert found[str(metric.measure)][metric.query_id] == metric.value
    for query, value in found["RR"].items():
        assert [found[f"RR@{cutoff}"][query] for cutoff in (1, 10)] == [
            value if value >= 1 / cutoff else 0.0 for cutoff in (1, 10)
        ]
    assert found["RR@1"] == found["P@1"] == found["Success@1"]


@pytest.mark.parametrize("name", ["nDCG@", "cleverness", "nDCG@10 +", "1", "nDCG@10\0"])
def test_an_unknown_measure_is_named(run: Path, name: str) -> None:
    with pytest.raises(CaiError, match=f"^cannot compute {re.escape(name)} .*nDCG"):
        measure(QRELS, read_run(run), [name])


def test_every_measure_is_computed_as_ir_measures_does_or_refused() -> None:
    """A cutoff must not come before `judged_only`, two names may be one measure, and a sum is no mean."""
    draw = random.Random(1)
    documents, graded = [f"d{i}" for i in range(40)], [*range(1, 9)]
    qrels = {str(q): {d: draw.choice([0, 0, 1, 1, 2]) for d in draw.sample(documents, 12)} for q in graded}
    qrels["9"] = {"nowhere": 1}
    run = run_of({str(q): [(d, draw.random()) for d in draw.sample(documents, 30)] for q in (*graded, 77)})
    names = [f"{name}{cutoff}" for name in ir_measures.measures.registry for cutoff in ("", "@10", "@.5")]
    names += ["nDCG(judged_only=True)@3", "nDCG(dcg='exp-log2')@3", "P(rel=2, judged_only=True)@5", "P@True", "P@0"]
    computed, refused = [], []
    for name in names:
        try:
            parse_measures([name])
            computed.append(name)
        except CaiError as error:
            assert str(error).startswith(f"cannot compute {name} with ir_measures; it can compute nDCG@10, ")
            refused.append(name)
    assert parse_measures(EXAMPLES.split(", "))
    assert {"AP", "MAP", "R@10", "IPrec@.5", "Judged", "nDCG(judged_only=True)@3"} <= {*computed}
    assert {"P", "INST", "Accuracy", "NumQ", "NumRet", "ERR", "RBP", "P@.5", "P@True", "P@0", "α_nDCG"} <= {*refused}
    assert ("ERR@10" in computed) == bool(which("perl"))
    found, hits = measure(qrels, run, computed), scores_by_query(run)
    for name in computed:
        parsed = ir_measures.parse_measure(name)
        assert mean(found[name]) == pytest.approx(ir_measures.calc_aggregate([parsed], qrels, hits)[parsed]), name
        assert list(found[name]) == list(qrels)
    assert mean(found["AP"]) == mean(found["MAP"]) > 0


@pytest.mark.skipif(not which("perl"), reason="gdeval is in Perl")
def test_ids_of_queries_need_not_be_numbers(run: Path) -> None:
    """gdeval takes no others."""
    q1 = 1 / 16 + 15 / 16 * 7 / 16 / 3  # a grade g satisfies with the probability (2^g - 1) / 16
    values = measure(QRELS, read_run(run), ["ERR@10"])
    assert values["ERR@10"] == pytest.approx({"q1": q1, "q2": 1 / 64, "absent": 0, "007": 1 / 16}, abs=1e-5)


@pytest.mark.skipif(not which("perl"), reason="gdeval is in Perl")
def test_a_measure_that_does_not_take_the_grades_is_named(run: Path) -> None:
    with pytest.raises(CaiError, match="ERR@10 cannot be computed from these judgments: "):
        measure({"q1": {"a": 5}}, read_run(run), ["ERR@10"])


def test_grades_below_0_are_not_relevant_and_very_large_ones_are_refused(run: Path) -> None:
    """They corrupted the memory of pytrec_eval, or took gigabytes."""
    hits = read_run(run)
    assert measure({"q1": {"a": -2, "b": 2}, "q2": {"e": -1}}, hits) == measure(
        {"q1": {"a": 0, "b": 2}, "q2": {"e": 0}}, hits
    )
    assert measure({"q1": {"a": 10_000, "b": -999_999_999}}, hits)["nDCG@10"]["q1"] == 0.5
    with pytest.raises(CaiError, match="query 'q1', document 'a': the grade 999999999 is too large"):
        measure({"q1": {"a": 999_999_999}}, hits)


def test_the_file_has_every_query(run: Path, tmp_path: Path) -> None:
    output = evaluate(run, QRELS, tmp_path / "sub" / "values.json")
    values = measure(QRELS, read_run(run))
    assert json.loads(output.read_text()) == values
    first = artifact.require(output, "beir")
    assert {name: first.stats[name] for name in MEASURES} == {name: mean(values[name]) for name in MEASURES}
    other = artifact.require(evaluate(run, QRELS | {"q9": {"a": 1}}, output), "beir")
    run.write_text(RUN + "q9 Q0 a 1 1 x\n")
    third = artifact.require(evaluate(run, QRELS, output), "beir")
    assert len({first.digest, other.digest, third.digest}) == 3
