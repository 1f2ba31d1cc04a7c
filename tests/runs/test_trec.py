"""TREC runs: what is written, what is read, and the line that an error names."""

import math
import random
import re
from pathlib import Path

import ir_measures
import numpy as np
import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.runs import trec
from cai_pyserini.runs.measures import measure, measure_run


def read(path: Path) -> list[tuple[str, str, float]]:
    return list(trec.read_run(path))


@pytest.fixture
def written(tmp_path: Path):
    """Write a run, and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "run.trec"
        path.write_text(text, encoding="utf-8")
        return path

    return write


HITS = {"q2": [("d1", 1.5), ("d2", -0.25)], "none": [], "q1": [("d1", 3.0)]}


def test_the_format(tmp_path: Path) -> None:
    trec.write_run(trec.run_of(HITS), tmp_path / "sub" / "run", "bm25")
    lines = (tmp_path / "sub" / "run").read_text().splitlines()
    assert lines == ["q1 Q0 d1 1 3.0 bm25", "q2 Q0 d1 1 1.5 bm25", "q2 Q0 d2 2 -0.25 bm25"]
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["run"]
    trec.write_run(trec.run_of({"q": [("β", 21.3456), ("b", 21.345598), ("c", 1e-6)]}), tmp_path / "run", "t")
    assert (tmp_path / "run").read_text() == "q Q0 β 1 21.3456 t\nq Q0 b 2 21.345598 t\nq Q0 c 3 1e-06 t\n"


def scored(seed: int) -> dict[str, list[tuple[str, float]]]:
    """Hits that are not in the order of their ids, with various kinds of scores."""
    draw = random.Random(seed)
    documents = [f"d{i}" for i in draw.sample(range(10, 90), 60)]
    close = 0.1 + 0.2
    scores = {
        "small": [draw.random() * 1e-7 for _ in documents],
        "smallest": [i * 5e-324 for i in range(len(documents))],
        "close": [close := math.nextafter(close, 1) for _ in documents],
        "float32": [float(np.float32(draw.random() * 30)) for _ in documents],
        "sums": [draw.random() * 30 + draw.gauss(0, 1) / 3 for _ in documents],
        "large": [draw.random() * 1e30 for _ in documents],
        "apart": draw.sample(range(1000), len(documents)),
        "equal": [draw.choice([-1.5, 0.0, 21.345598]) for _ in documents],
    }
    return {query: list(zip(documents, values, strict=True)) for query, values in scores.items()}


@pytest.mark.parametrize("seed", range(3))
def test_a_run_round_trips_and_other_tools_measure_the_same(tmp_path: Path, seed: int) -> None:
    """Other tools order ties, including ties in single precision, by id, in either direction."""
    hits = scored(seed)
    run = trec.run_of(hits)
    trec.write_run(run, tmp_path / "run", "t")
    assert read(tmp_path / "run") == [*run]
    found = trec.scores_by_query(run)
    assert {query: list(documents) for query, documents in found.items()} == {
        query: [id for id, _ in sorted(ranking, key=lambda hit: -hit[1])] for query, ranking in sorted(hits.items())
    }
    for query, ranking in hits.items():  # the last of n ties is lowered by n steps
        assert found[query] == pytest.approx(dict(ranking), rel=60 * 2**-23, abs=60 * 2**-126)
    assert found["apart"] == dict(hits["apart"]) and found["equal"] == dict(hits["equal"])
    written: dict[str, dict[str, float]] = {}
    for query, _, document, rank, score, _ in map(str.split, (tmp_path / "run").read_text().splitlines()):
        written.setdefault(query, {})[document] = float(score)
        assert int(rank) == len(written[query])
    assert all((np.diff(np.float32([*ranking.values()])) < 0).all() for ranking in written.values())
    qrels = {query: {f"d{i}": i % 3 for i in range(10, 90, 7)} for query in hits}
    names = ["nDCG@10", "AP", "RR@10", "P@5"]
    measured = measure_run(qrels, tmp_path / "run", names)
    assert measured == measure(qrels, run, names)
    for metric in ir_measures.iter_calc(map(ir_measures.parse_measure, names), qrels, written):
        assert metric.value == measured[str(metric.measure)][metric.query_id]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1e39])
def test_scores_that_are_not_finite_are_not_written(tmp_path: Path, score: float) -> None:
    with pytest.raises(
        CaiError, match=rf"run: the score of document 'b' for query 'q2' is {re.escape(str(score))}, which"
    ):
        trec.write_run(trec.run_of({"q1": [("a", 1.0)], "q2": [("a", 1.0), ("b", score)]}), tmp_path / "run", "t")
    assert not list(tmp_path.iterdir())


def test_hits_of_other_tools_are_ordered_as_by_trec_eval(written) -> None:
    """Scores are compared in single precision, and ties are ordered by descending id."""
    path = written(
        "q2 Q0 a 1 7 x\nq1 Q0 c 1 1.0 x\nq1 Q0 b 2 2.0 x\nq1 Q0 a 3 2.0 x\nq10 Q0 a 1 1 x\nq1 Q0 d 4 10.0 x\n"
        "q3 Q0 b5 1 16777217 x\nq3 Q0 b6 2 16777216 x\nq4 Q0 a 1 2e39 x\nq4 Q0 b 1 1e39 x\n"
    )
    assert read(path) == [
        ("q1", "d", 10), ("q1", "b", 2), ("q1", "a", 2), ("q1", "c", 1), ("q10", "a", 1), ("q2", "a", 7),
        ("q3", "b6", 16777216), ("q3", "b5", 16777216), ("q4", "b", 1e39), ("q4", "a", 1e39),
    ]  # fmt: skip


def test_ranks_and_the_best_hits() -> None:
    run = trec.run_of({"q1": [("a", 1), ("b", 3), ("c", 2)], "q2": [("a", 1)]})
    assert run.ranks.tolist() == [1, 2, 3, 1]
    best = trec.top(run, 2)
    assert list(best) == [("q1", "b", 3), ("q1", "c", 2), ("q2", "a", 1)]
    assert best.ranks.tolist() == [1, 2, 1]  # "a" of q1 is removed, but still among the ids


def test_hits_with_the_id_of_their_query_can_be_removed() -> None:
    run = trec.run_of({"d1": [("d1", 3), ("d2", 2)], "d2": [("d1", 1)]})
    assert list(trec.without_query(run)) == [("d1", "d2", 2), ("d2", "d1", 1)]


@pytest.mark.parametrize("id", ["007", "NA", "1e5", "True", '"q', "#1"])
def test_ids_are_strings(written, id: str) -> None:
    assert read(written(f"{id} Q0 {id} 1 1.0 x\n")) == [(id, id, 1.0)]


@pytest.mark.parametrize(
    "text", ["q1\tQ0\td1\t1\t2.5\tx\nq1  Q0  d2  2  1e-3  x\r\n", "\ufeffq1 Q0 d1 1 2.5 x\n\nq1 Q0 d2 2 0.001 x"]
)
def test_runs_of_other_tools_are_read(written, text: str) -> None:
    assert read(written(text)) == [("q1", "d1", 2.5), ("q1", "d2", 0.001)]


SOUND = "q1 Q0 d1 1 2.5 x\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (SOUND + "q1 Q0 d2 2 1.5\n" + SOUND, r"run\.trec:2: expected `query Q0 document rank score tag`"),
        (SOUND + "q1 Q0 d2 2 high x\n", r"run\.trec:2: expected"),
        (SOUND + "q1 Q0 d2 2 nan x\n", r"run\.trec:2: expected"),
        (SOUND + "q1 d2 1.5\n", r"run\.trec:2: expected"),
        (SOUND + "q1 Q0 d2 2 1.5 my tag\n", r"run\.trec:2: expected"),
        ("q1 Q0 a document 1 1.5 x\n" + SOUND, r"run\.trec:1: expected"),
        ("q1 Q0 a document 1 1.5 x\n" * 2, r"run\.trec:1: expected"),
        (SOUND + "\n" + "q1 Q0 d2 2 high x\n", r"run\.trec:3: expected"),
        (SOUND + "q2 Q0 d1 1 1 x\n" + "q1 Q0 d1 2 1.5 x\n", r"run\.trec: document 'd1' is listed twice for query 'q1'"),
        (SOUND + "q1 Q0 d2 2 1_0 x\n", r"run\.trec:2: expected"),
        ("", r"run\.trec: not a TREC run \(it is empty\)"),
    ],
)
def test_a_broken_run_is_named(written, text: str, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        trec.read_run(written(text))


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"no run .*absent\.trec"):
        trec.read_run(tmp_path / "absent.trec")
    for read in (trec.read_run, trec.run_digest):
        with pytest.raises(CaiError, match="is a folder, not a run"):
            read(tmp_path)
    (tmp_path / "run.trec").write_bytes("q1 Q0 é 1 2.5 x\n".encode("latin-1"))
    with pytest.raises(CaiError, match=r"run\.trec: not a TREC run"):
        trec.read_run(tmp_path / "run.trec")
