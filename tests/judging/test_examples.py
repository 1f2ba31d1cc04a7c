"""Training files from judgments."""

from pathlib import Path

import pytest

from cai_pyserini.cli.judge import RUBRIC, main
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.judging.judged_examples import LabelledQuery, label_queries, write_examples
from cai_pyserini.judging.judgments import Judgments
from cai_pyserini.judging.pool import open_pool
from cai_pyserini.trainer.examples import count
from tests.conftest import json_lines
from tests.judging.conftest import RELEVANT, SYSTEMS


def test_refused_documents_are_negatives_before_those_that_nobody_judged() -> None:
    """The faults: a document that is relevant, partly relevant, or another query's is a negative."""
    pool = {"q1": {"good", "fair", "bad", "worse", "new", "newer"}, "q2": {"new"}}
    qrels = {"q1": {"good": 3, "fair": 1, "bad": 0, "worse": 0, "gone": 2}, "q3": {"good": 3}}
    first, second = label_queries({"q1": "one", "q2": "two"}, pool, qrels, relevant=2, seed=0)
    assert (first.text, first.positives) == ("one", ["good", "gone"])
    assert (set(first.negatives[:2]), set(first.negatives[2:])) == ({"bad", "worse"}, {"new", "newer"})
    assert second == LabelledQuery("two", [], ["new"])


def test_judgments_of_a_query_in_another_case_are_merged() -> None:
    """The fault: a document relevant to a query is a negative of the same query in another case."""
    topics, pool = {"q1": "Heart attack", "q2": "heart  attack"}, {"q1": {*"prbx"}, "q2": {*"pt"}}
    qrels = {"q1": {"p": 3, "r": 0, "t": 0, "b": 0, "f": 1}, "q2": {"t": 2}}
    (found,) = label_queries(topics, pool, qrels, relevant=2, seed=0)
    assert (found.text, found.positives, found.negatives[2:]) == ("Heart attack", [*"pt"], ["x"])
    assert {*found.negatives[:2]} == {*"rb"}


def test_lines_have_stored_texts(tmp_path: Path) -> None:
    """The fault: a negative has the text of a positive, because it is a copy."""

    def text(id: str) -> Stored | None:
        return None if id == "gone" else Stored(id, "", f"text of {id[0]}")

    found = [
        LabelledQuery("one", ["gone", "u", "v"], ["gone", "w", "u2", "x", "y"]),
        LabelledQuery("two", ["u"], ["gone"]),
    ]
    assert write_examples(found, text, 2, tmp_path / "train.jsonl") == (2, 1)
    assert json_lines(tmp_path / "train.jsonl") == [
        {"query": "one", "positive": f"text of {id}", "negatives": ["text of w", "text of x"]} for id in "uv"
    ]
    with pytest.raises(CaiError, match="no query has both"):
        write_examples(found[1:], text, 2, tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.slow
def test_judgments_become_a_training_file(
    judged_run: Path, topics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database, output = tmp_path / "judgments.sqlite", tmp_path / "train.jsonl"
    judgments = Judgments(database, RUBRIC)
    pool = open_pool(judged_run, SYSTEMS, 4, topics)
    judgments.limit_to(pool.topics, pool.text)
    for number, document in enumerate(RELEVANT.values(), 1):
        judgments.add(f"q/{number}", document, "ana", 3)
        judgments.add("q/1", f"d{number}", "ben", None)
    flags = ["--systems", *SYSTEMS, "--topics", str(topics), "--output", str(output)]
    main(["examples", str(judged_run), "--database", str(database), *flags])
    lines = json_lines(output)
    assert capsys.readouterr().out == f"{output}: {len(lines)} examples of {len(lines)} queries\n"
    assert count(output, margins=False, negatives=1) == len(lines) >= 10
    queries = [*RELEVANT][1:]  # skipped documents are no negatives
    assert all(line["query"] in queries and line["positive"] not in line["negatives"] for line in lines)
