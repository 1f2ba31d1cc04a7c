"""Training files from judgments and clicks."""

from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.judge.__main__ import main
from cai_pyserini.judge.examples import Labelled, of_clicks, of_judgments, write_examples
from cai_pyserini.judge.judgments import Judgments
from cai_pyserini.retrieval.lucene import Stored
from cai_pyserini.serve.interleave import Impression
from cai_pyserini.trainer.examples import count
from tests.conftest import json_lines
from tests.judge.conftest import SYSTEMS, WANTED


def test_refused_documents_are_negatives_before_those_that_nobody_judged() -> None:
    """The faults: a relevant document, or one that is a little relevant, is a negative; another query's is."""
    pool = {"q1": {"good", "fair", "bad", "worse", "new", "newer"}, "q2": {"new"}}
    qrels = {"q1": {"good": 3, "fair": 1, "bad": 0, "worse": 0, "gone": 2}, "q3": {"good": 3}}
    first, second = of_judgments({"q1": "one", "q2": "two"}, pool, qrels, relevant=2, seed=0)
    assert (first.text, first.positives) == ("one", ["good", "gone"])
    assert (set(first.negatives[:2]), set(first.negatives[2:])) == ({"bad", "worse"}, {"new", "newer"})
    assert second == Labelled("two", [], ["new"])


def test_what_people_passed_over_is_a_negative() -> None:
    """Up to the hit below the last that was opened; not if somebody else opened it."""

    def impression(query: str | None, shown: str, opened: str) -> Impression:
        return Impression("a", "b", query, dict.fromkeys(shown), set(opened))

    log = [("one", "uvwxyz", "vx"), ("one", "zuvy", "z"), ("two", "uv", ""), (None, "uv", "u"), ("three", "uvw", "u")]
    assert list(of_clicks(impression(*each) for each in log)) == [
        Labelled("one", ["v", "x", "z"], ["u", "w", "y"]),
        Labelled("three", ["u"], ["v"]),
    ]


def test_lines_have_what_is_stored(tmp_path: Path) -> None:
    def text(id: str) -> Stored | None:
        return None if id == "gone" else Stored(id, "", f"text of {id}")

    labelled = [Labelled("one", ["gone", "u", "v"], ["gone", "w", "x", "y"]), Labelled("two", ["u"], ["gone"])]
    assert write_examples(labelled, text, 2, tmp_path / "train.jsonl") == (2, 1)
    assert json_lines(tmp_path / "train.jsonl") == [
        {"query": "one", "positive": f"text of {id}", "negatives": ["text of w", "text of x"]} for id in "uv"
    ]
    with pytest.raises(CaiError, match="no query has both"):
        write_examples(labelled[1:], text, 2, tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.slow
def test_judgments_become_a_training_file(
    judged_run: Path, topics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database, output = tmp_path / "judgments.sqlite", tmp_path / "train.jsonl"
    judgments = Judgments(database, new=True)
    for number, document in enumerate(WANTED.values(), 1):
        judgments.add(f"q/{number}", document, "ana", 3)
    flags = ["--systems", *SYSTEMS, "--topics", str(topics), "--output", str(output)]
    main(["examples", str(judged_run), "--database", str(database), *flags])
    lines = json_lines(output)
    assert capsys.readouterr().out == f"{output}: {len(lines)} examples of {len(lines)} queries\n"
    assert count(output, margins=False, negatives=1) == len(lines) >= 10
    assert all(line["query"] in WANTED and line["positive"] not in line["negatives"] for line in lines)
    with pytest.raises(SystemExit):
        main(["examples", str(judged_run), "--database", str(database), "--output", str(output)])
    assert "give --database with --systems" in capsys.readouterr().err
