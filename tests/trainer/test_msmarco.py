"""Training files from MS MARCO's files."""

import gzip
import json
from pathlib import Path

import pytest
from datasets import Dataset

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.trainer.msmarco import write_training_file
from cai_pyserini.trainer.settings import MsmarcoSettings
from tests.conftest import json_lines


@pytest.fixture
def marco(tmp_path: Path) -> Path:
    """Files in the formats that sentence-transformers distributes, with a collection."""
    (tmp_path / "marco" / "qrels").mkdir(parents=True)
    with (tmp_path / "marco" / "corpus.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": str(i), "title": "passage", "text": f"{i}"}) + "\n" for i in range(9))
    with (tmp_path / "marco" / "queries.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": str(i), "text": f"query {i}"}) + "\n" for i in range(3))
    (tmp_path / "marco" / "qrels" / "train.tsv").write_text("q\td\ts\n" + "".join(f"{i}\t{i}\t1\n" for i in range(3)))
    with gzip.open(tmp_path / "hard.jsonl.gz", "wt") as file:
        for query in range(3):
            negatives = {"bm25": [3, 4], "dense": [4, 5, query]}
            file.write(json.dumps({"qid": query, "pos": [query], "neg": negatives}) + "\n")
    scores = {
        "query_id": ["0", "1"],
        "corpus_id": [["0", "3", "4", "5"], ["1", "3"]],
        "score": [[9, 1, 2, 3], [5, 7.5]],
    }
    Dataset.from_dict(scores).to_parquet(tmp_path / "scores.parquet")
    return tmp_path


def settings(folder: Path, **changes: object) -> MsmarcoSettings:
    files = {"hard_negatives": folder / "hard.jsonl.gz", "scores": [folder / "scores.parquet"]}
    values = {"collection": str(folder / "marco"), "output": folder / "out.jsonl"} | files | changes
    return build(MsmarcoSettings, values, "")


def test_msmarco_files_become_margins(marco: Path) -> None:
    lines = {line["query"]: line for line in json_lines(write_training_file(settings(marco)))}
    assert set(lines) == {"query 0", "query 1"}  # the teacher has not scored query 2
    margins = dict(zip(lines["query 0"]["negatives"], lines["query 0"]["margins"], strict=True))
    assert margins == {"passage 3": 8, "passage 4": 7, "passage 5": 6}
    assert (lines["query 1"]["negatives"], lines["query 1"]["margins"]) == (["passage 3"], [-2.5])


def test_msmarco_scores_can_be_rows_of_jsonl(marco: Path) -> None:
    rows = [("0", "0", 9.0), ("0", "4", 2.0)]
    (marco / "rows.jsonl").write_text(
        "".join(json.dumps({"query_id": q, "corpus_id": d, "score": s}) + "\n" for q, d, s in rows)
    )
    lines = json_lines(write_training_file(settings(marco, scores=[marco / "rows.jsonl"])))
    assert [(line["query"], line["negatives"], line["margins"]) for line in lines] == [
        ("query 0", ["passage 4"], [7.0])
    ]


@pytest.mark.parametrize("row", [{"score": None}, {"corpus_id": ["0", "4"], "score": [9.0]}, {"score": [9.0]}])
def test_scores_that_are_missing_are_refused(marco: Path, row: dict[str, object]) -> None:
    (marco / "rows.jsonl").write_text(json.dumps({"query_id": "0", "corpus_id": "0"} | row) + "\n")
    with pytest.raises(CaiError, match=r"rows\.jsonl: query '0' has not one number as score for each passage"):
        write_training_file(settings(marco, scores=[marco / "rows.jsonl"]))


def test_pickled_scores_are_refused(marco: Path) -> None:
    (marco / "scores.pkl.gz").write_bytes(b"")
    with pytest.raises(CaiError, match=r"scores.pkl.gz: scores must be Parquet or JSONL"):
        write_training_file(settings(marco, scores=[marco / "scores.pkl.gz"]))


def test_a_broken_line_of_hard_negatives_is_named(marco: Path) -> None:
    (marco / "hard.jsonl").write_text('{"qid": 0, "pos": ["0"], "neg": {"bm25": ["3"]}}\n{"qid": 1}\n')
    with pytest.raises(CaiError, match=r'hard\.jsonl:2: expected \{"qid"'):
        write_training_file(settings(marco, hard_negatives=marco / "hard.jsonl"))
