"""TREC runs: what is written, what is read, and the line that a mistake is in."""

from pathlib import Path

import pytest

from cai_pyserini.cli import CaiError
from cai_pyserini.trec import read_run, write_run


def rows(path: Path) -> list[tuple[str, str, float]]:
    run = read_run(path)
    assert list(run.columns) == ["query_id", "doc_id", "score"]
    return list(run.itertuples(index=False, name=None))


@pytest.fixture
def written(tmp_path: Path):
    """Write a run and give its path."""

    def write(text: str) -> Path:
        path = tmp_path / "run.trec"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_format(tmp_path: Path) -> None:
    write_run({"q2": [("d1", 1.5), ("d2", -0.25)], "none": [], "q1": [("d1", 3)]}, tmp_path / "run", "bm25")
    assert (tmp_path / "run").read_text() == (
        "q2 Q0 d1 1 1.500000 bm25\nq2 Q0 d2 2 -0.250000 bm25\nq1 Q0 d1 1 3.000000 bm25\n"
    )


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    write_run({"q1": [("β", 2.5), ("a", 0.5)], "q2": [("a", 1e-6)]}, tmp_path / "run", "t")
    assert rows(tmp_path / "run") == [("q1", "β", 2.5), ("q1", "a", 0.5), ("q2", "a", 1e-6)]


def test_order_is_by_score_and_then_document_whatever_the_file_says(written) -> None:
    path = written(
        "q1 Q0 c 1 1.0 x\nq2 Q0 a 1 7 x\nq1 Q0 b 2 2.0 x\nq1 Q0 a 3 2.0 x\nq1 Q0 d 4 10.0 x\n"  # ranks are wrong
    )
    assert rows(path) == [("q1", "d", 10), ("q1", "a", 2), ("q1", "b", 2), ("q1", "c", 1), ("q2", "a", 7)]


@pytest.mark.parametrize("id", ["007", "NA", "null", "nan", "None", "1e5", "1.0", "True", '"q', "#1", "-", "1_000"])
def test_ids_are_strings(written, id: str) -> None:
    assert rows(written(f"{id} Q0 {id} 1 1.0 x\n")) == [(id, id, 1.0)]


def test_tabs_and_spaces_separate(written) -> None:
    assert rows(written("q1\tQ0\td1\t1\t2.5\tx\nq1  Q0  d2  2  1.5  x\r\n")) == [("q1", "d1", 2.5), ("q1", "d2", 1.5)]


@pytest.mark.parametrize("score, value", [("1e-3", 0.001), ("-4", -4.0), ("12.5", 12.5)])
def test_scores(written, score: str, value: float) -> None:
    assert rows(written(f"q1 Q0 d1 1 {score} x")) == [("q1", "d1", value)]


SOUND = "q1 Q0 d1 1 2.5 x\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (SOUND + "q1 Q0 d2 2 1.5\n" + SOUND, r"run\.trec:2: expected query Q0 document rank score tag"),
        (SOUND + "q1 Q0 d2 2 high x\n", r"run\.trec:2: expected"),
        (SOUND + "q1 Q0 d2 2 nan x\n", r"run\.trec:2: expected"),
        (SOUND + "q1 d2 1.5\n", r"run\.trec:2: expected"),
        (SOUND + "q1 Q0 d2 2 1.5 my tag\n", r"run\.trec:2: |run\.trec.* line 2"),
        ("q1 Q0 a document 1 1.5 x\n" + SOUND, r"run\.trec:1: |run\.trec.* line 1"),
        ("q1 Q0 a document 1 1.5 x\n" * 2, r"run\.trec:1: |run\.trec.* line 1"),
        (SOUND + "\n" + "q1 Q0 d2 2 high x\n", r"run\.trec:3: expected"),
        (
            SOUND + "q2 Q0 d1 1 1 x\n" + "q1 Q0 d1 2 1.5 x\n",
            r"run\.trec:3: document 'd1' is there twice for query 'q1'",
        ),
        (SOUND + "\n" + SOUND, r"run\.trec:3: document 'd1' is there twice"),
        ("", r"run\.trec: the run is empty"),
        ("\n \n", r"run\.trec: the run is empty"),
    ],
)
def test_a_broken_run_is_named(written, text: str, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        read_run(written(text))


def test_a_run_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_bytes("q1 Q0 é 1 2.5 x\n".encode("latin-1"))
    with pytest.raises(CaiError, match=r"run\.trec: not a TREC run"):
        read_run(tmp_path / "run.trec")
