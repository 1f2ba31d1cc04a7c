"""What rose and fell between two runs, and why."""

import json
import shutil
from pathlib import Path

import pytest

from cai_pyserini.analysis.changes import overlap
from cai_pyserini.cli.analyse import main
from cai_pyserini.cli.run import main as beir


def test_average_overlap_worked_example() -> None:
    # The top 1, 2 and 3 share 0, 2 and 2 documents.
    assert overlap([["a", "b", "c"], ["b", "a", "d"]], 3) == pytest.approx((0 + 1 + 2 / 3) / 3)
    assert overlap([["a"], ["a"]], 10) == 1 and overlap([["a"], []], 10) == 0 and overlap([[], []], 10) == 1


@pytest.mark.slow
def test_new_gone_and_changed_documents(
    tiny: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = Path(shutil.copytree(tiny, tmp_path / "tiny"))
    queries = (changed / "queries.jsonl").read_text()
    (changed / "queries.jsonl").write_text(queries.replace("bladder infection", "quux"))  # finds nothing
    lines = (changed / "corpus.jsonl").read_text().splitlines()
    lines = [line.replace("higher blood pressure", "low pressure") for line in lines if '"d5"' not in line]
    lines.append('{"_id": "d13", "title": "", "text": "Exercise lowers high blood pressure."}')
    (changed / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    now = tmp_path / "now"
    beir([str(changed), "--output", str(now), "--systems", "bm25"])
    capsys.readouterr()
    arguments = [str(now), "--before", str(run_folder), "--output", str(tmp_path / "out")]
    main(["changes", *arguments, "--system", "bm25"])
    printed = capsys.readouterr().out
    assert "mean nDCG@10: " in printed and "the queries have changed in between" in printed
    data = json.loads((tmp_path / "out" / "changes.json").read_text())
    gone, first = ({each["query"]: each for each in data["queries"]}[query] for query in ("q2", "q3"))
    assert gone["overlap"] == 0 and gone["documents"][0][2] == "–"
    assert first["gain"] < 0 and first["overlap"] < 0.5
    why = {id: (before, now, reason) for id, before, now, reason in first["documents"]}
    assert why["d13"] == ("–", "1", "new in the collection")
    assert why["d5"][1:] == ("–", "gone from the collection")
    assert why["d10"][2].startswith("another text, ") and "blood -" in why["d10"][2]
    assert all(data["overlaps"][query] <= 1 for query in data["overlaps"])
