"""Significance computed by hand, and the command."""

import json
from pathlib import Path

import pytest

from cai_pyserini.analysis.compare import Difference, difference
from cai_pyserini.cli.analyse import main

FIRST = {"a": 0.0, "b": 0.0} | dict.fromkeys("cdefghij", 0.25)
SECOND = dict.fromkeys("jihgfedc", 0.25) | {"b": 1.0, "a": 1.0}


def test_difference_worked_example() -> None:
    found = difference(FIRST, SECOND)
    assert (found.queries, found.wins, found.losses, found.ties) == (10, 2, 0, 8)
    assert found.means == pytest.approx((0.2, 0.4)) and found.difference == pytest.approx(0.2)
    # Differences 1, 1 and eight times 0: t = 1.5 with 9 degrees of freedom.
    assert found.p_t_test == pytest.approx(0.1679, abs=5e-5)
    # Ten draws from the differences are all 0 with a chance of 10.7%; at least 5 are 1 with one of 3.3%, at least 6
    # with one of .6%.
    assert found.interval == pytest.approx((0, 0.5))
    back = difference(SECOND, FIRST)
    assert (back.difference, back.wins, back.losses) == (-found.difference, 0, 2)
    assert back.interval == pytest.approx((-0.5, 0))
    assert difference(FIRST, FIRST) == Difference(10, (0.2, 0.2), 0, (0, 0), 1, 0, 0, 10)


@pytest.fixture
def arguments(tmp_path: Path, tiny: Path) -> list[str]:
    (tmp_path / "a.trec").write_text("q1 Q0 d9 1 2 x\nq1 Q0 d1 2 1 x\nq3 Q0 d5 1 1 x\n")
    (tmp_path / "b.trec").write_text("q1 Q0 d1 1 2 x\nq2 Q0 d4 1 1 x\nq3 Q0 d1 1 2 x\nq3 Q0 d10 2 1 x\n")
    runs = [str(tmp_path / name) for name in ("a.trec", "b.trec")]
    return ["compare", "--collection", str(tiny), "--output", str(tmp_path / "out"), "--trec", *runs]


def test_the_command(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*arguments, "--measure", "RR@10"])
    # RR: q1 1/2 and 1, q2 0 and 1, q3 1 and 1/2; the other two 0 and 0.
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"A: {tmp_path}/a.trec, mean RR@10 0.3000", f"B: {tmp_path}/b.trec, mean RR@10 0.5000"]
    assert lines[2:6] == [
        "B - A: +0.2000",
        "p: – (paired t-test)",
        "–: no p below 10 queries, nor of differences that are all the same",
        "of 5 queries, B wins 2, loses 1, ties 2",
    ]
    assert [" ".join(line.split()) for line in lines[9:12]] == [
        "q2: bladder infection 0.0000 1.0000 +1.0000",
        "q1: phytate for the treatment of cancer 0.5000 1.0000 +0.5000",
        "q3: what lowers high blood pressure? 1.0000 0.5000 -0.5000",
    ]
    data = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert data["measure"] == "RR@10" and data["wins"] == 2 and len(data["changes"]) == 5
    assert data["changes"][0] == {"query": "q2", "text": "bladder infection", "a": 0, "b": 1, "difference": 1}
    assert [change["difference"] for change in data["changes"]] == [1, 0.5, 0, 0, -0.5]
