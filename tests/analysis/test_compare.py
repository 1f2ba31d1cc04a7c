"""The command; see tests/runs/test_compared.py."""

import json
import shutil
from pathlib import Path

import pytest

from cai_pyserini.cli.analyse import main
from cai_pyserini.core.errors import CaiError


@pytest.fixture
def arguments(tmp_path: Path, tiny: Path) -> list[str]:
    (tmp_path / "a.trec").write_text("q1 Q0 d9 1 2 x\nq1 Q0 d1 2 1 x\nq3 Q0 d5 1 1 x\n")
    (tmp_path / "b.trec").write_text("q1 Q0 d1 1 2 x\nq2 Q0 d4 1 1 x\nq3 Q0 d1 1 2 x\nq3 Q0 d10 2 1 x\n")
    runs = [str(tmp_path / name) for name in ("a.trec", "b.trec")]
    return ["compare", "--collection", str(tiny), "--output", str(tmp_path / "out"), "--trec", *runs]


def test_the_command(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*arguments, "--measure", "RR@10"])
    # RR: q1 1/2 and 1, q2 0 and 1, q3 1 and 1/2; the other two 0 and 0.
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[2:4] == ["a 0.3000", "b *0.5000"]
    assert "b +0.2000 – – – – 2, 1, 2" in lines
    place = lines.index("queries that changed most first second difference")
    assert lines[place + 2 : place + 5] == [
        "q2: bladder infection 0.0000 1.0000 +1.0000",
        "q1: phytate for the treatment of cancer 0.5000 1.0000 +0.5000",
        "q3: what lowers high blood pressure? 1.0000 0.5000 -0.5000",
    ]
    data = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert data["measures"] == ["RR@10"] and data["baseline"] == "a" and len(data["changes"]) == 5
    first = {"query": "q2", "text": "bladder infection", "first": 0, "second": 1, "difference": 1}
    assert data["changes"][0] == first
    assert [change["difference"] for change in data["changes"]] == [1, 0.5, 0, 0, -0.5]


def test_any_number_of_runs(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    third = shutil.copy(tmp_path / "b.trec", tmp_path / "c.trec")
    main([*arguments, str(third), "--measure", "RR@10", "--format", "latex"])
    printed = capsys.readouterr().out
    assert printed.count(r"\begin{tabular}") == 2 and "changed most" not in printed
    data = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert {first: [*others] for first, others in data["pairs"].items()} == {"a": ["b", "c"], "b": ["c"]}
    with pytest.raises(CaiError, match=r"a\.trec is given twice"):
        main([*arguments[:-1], arguments[-2]])
