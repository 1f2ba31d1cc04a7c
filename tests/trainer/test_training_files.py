"""Training files: mined with qrels and runs, from MS MARCO's files, and scored by a teacher."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from cai_pyserini.cli.train import main
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.trainer.examples import count
from cai_pyserini.trainer.settings import MsmarcoSettings, ScoreSettings
from cai_pyserini.trainer.training_files import msmarco, score
from tests.conftest import corpus_of, json_lines


def mine(collection: Path, output: Path, *more: object) -> list[dict[str, Any]]:
    flags = ("mine", "--collection", collection, "--split", "test", "--output", output, *more)
    main([str(flag) for flag in flags])
    return json_lines(output)


def test_mining_takes_negatives_from_every_run_but_no_relevant_one(tiny: Path, tmp_path: Path) -> None:
    topics = {query["text"]: query["_id"] for query in json_lines(tiny / "queries.jsonl")}
    qrels = [line.split("\t") for line in (tiny / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    relevant = {(query, document) for query, document, grade in qrels if int(grade) > 0}
    documents = {d["_id"]: " ".join((d["title"], d["text"])) for d in json_lines(tiny / "corpus.jsonl")}
    ids = {text: id for id, text in documents.items()}
    runs = []
    for name, ranking in (("a.trec", sorted(documents)), ("b.trec", sorted(documents, reverse=True))):
        hits = [f"{query} Q0 {d} {i} {100 - i} x" for query in topics.values() for i, d in enumerate(ranking, 1)]
        (tmp_path / name).write_text("\n".join(hits) + "\n")
        runs.append(tmp_path / name)
    lines = mine(tiny, tmp_path / "out.jsonl", "--trec", *runs, "--depth", 3, "--negatives", 99)
    assert len(lines) == len(relevant)
    reachable = {*sorted(documents)[:3], *sorted(documents)[-3:]}
    for line in lines:
        query = topics[line["query"]]
        assert (query, ids[line["positive"]]) in relevant
        found = {ids[text] for text in line["negatives"]}
        assert found == {d for d in reachable if (query, d) not in relevant and d != query}


def test_a_query_without_negatives_is_left_out(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training refuses a line without negatives, so nothing may write one."""
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 9 x\nq1 Q0 d12 2 8 x\n")
    output = tmp_path / "out.jsonl"
    lines = mine(tiny, output, "--trec", tmp_path / "run.trec")
    assert {line["query"] for line in lines} == {json_lines(tiny / "queries.jsonl")[0]["text"]}
    assert count(output, margins=False, negatives=1) == len(lines)
    assert f"{len(lines)} pairs of 1 queries; 5 left out, without a negative\n" in capsys.readouterr().out
    (tmp_path / "other.trec").write_text("someone Q0 d1 1 9 x\n")
    with pytest.raises(CaiError, match="no query of split 'test' has both a relevant document and another one"):
        mine(tiny, output, "--trec", tmp_path / "other.trec")
    with pytest.raises(CaiError, match=r"no file .*no\.trec"):
        mine(tiny, output, "--trec", tmp_path / "no.trec")


def test_copies_and_other_passages_of_relevant_documents_are_no_negatives(tmp_path: Path) -> None:
    text = "Recurrent infections of the bladder are treated with nitrofurantoin for a week"
    texts = {"a#0": text, "a#1": "other things", "b#0": text.upper(), "b#1": "more things", "c#0": "something else"}
    corpus_of(tmp_path, texts, {"q": "infections"}, test={"q": {"a#0": 1}})
    (tmp_path / "run.trec").write_text("".join(f"q Q0 {id} {n} {9 - n} x\n" for n, id in enumerate(texts, 1)))
    (line,) = mine(tmp_path, tmp_path / "out.jsonl", "--trec", tmp_path / "run.trec")
    assert {text.strip() for text in line["negatives"]} == {"more things", "something else"}
    assert line["ids"][0] == "a" and {*line["ids"][1:]} == {"b", "c"}  # never in-batch negatives of the query


@pytest.fixture
def marco(tmp_path: Path) -> Path:
    """Files in the formats that sentence-transformers distributes, with a collection."""
    texts, queries = ({str(i): f"{name} {i}" for i in range(n)} for name, n in (("passage", 9), ("query", 3)))
    corpus_of(tmp_path / "marco", texts, queries, train={id: {id: 1} for id in queries})
    with gzip.open(tmp_path / "hard.jsonl.gz", "wt") as file:
        for query in range(3):
            negatives = {"bm25": [3, 4], "dense": [4, 5, query]}
            file.write(json.dumps({"qid": query, "pos": [query], "neg": negatives}) + "\n")
    ids, scores = [["0", "3", "4", "5"], ["1", "3"]], [[9, 1, 2, 3], [5, 7.5]]
    Dataset.from_dict({"query_id": ["0", "1"], "corpus_id": ids, "score": scores}).to_parquet(tmp_path / "s.parquet")
    return tmp_path


def from_marco(folder: Path, **changes: object) -> list[dict[str, Any]]:
    files = {"hard_negatives": folder / "hard.jsonl.gz", "scores": [folder / "s.parquet"]}
    values = {"collection": str(folder / "marco"), "output": folder / "out.jsonl"} | files | changes
    return json_lines(msmarco(build(MsmarcoSettings, values, "")))


def test_msmarco_files_become_margins(marco: Path) -> None:
    lines = {line["query"]: line for line in from_marco(marco)}
    assert set(lines) == {"query 0", "query 1"}  # the teacher has not scored query 2
    margins = dict(zip(lines["query 0"]["negatives"], lines["query 0"]["margins"], strict=True))
    assert margins == {" passage 3": 8, " passage 4": 7, " passage 5": 6}
    assert (lines["query 1"]["negatives"], lines["query 1"]["margins"]) == ([" passage 3"], [-2.5])


def test_msmarco_scores_can_be_rows_of_jsonl(marco: Path) -> None:
    rows = [{"query_id": "0", "corpus_id": document, "score": score} for document, score in (("0", 9.0), ("4", 2.0))]
    (marco / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (line,) = from_marco(marco, scores=[marco / "rows.jsonl"])
    assert (line["query"], line["negatives"], line["margins"]) == ("query 0", [" passage 4"], [7.0])


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("s.jsonl", '{"query_id": "0", "corpus_id": "0", "score": null}', "query '0' needs one number as score for"),
        ("s.jsonl", '{"query_id": "0", "corpus_id": "0", "score": "nan"}', "query '0' needs one number as score for"),
        ("s.jsonl", '{"query_id": "0", "corpus_id": ["0", "4"], "score": [9.0]}', "query '0' needs one number"),
        ("s.jsonl", '{"query_id": "0", "corpus_id": "0", "score": [9.0]}', "query '0' needs one number as score"),
        ("s.jsonl", '{"query_id": "0", "score": 1}', "its columns are query_id, score, not query_id, corpus_id and"),
        ("s.pkl.gz", "", "scores must be Parquet or JSONL"),
        ("h.jsonl", '{"qid": 0, "pos": ["0"], "neg": {"bm25": ["3"]}}\n{"qid": 1}', r':2: expected \{"qid"'),
    ],
)
def test_broken_files_of_msmarco_are_refused(marco: Path, name: str, text: str, message: str) -> None:
    (marco / name).write_text(text + "\n" * bool(text))
    changed: dict[str, object] = {"hard_negatives": marco / name} if name == "h.jsonl" else {"scores": [marco / name]}
    with pytest.raises(CaiError, match=rf"{name}:? ?{message}"):
        from_marco(marco, **changed)


def scored(data: Path, cross_encoder: Path, output: Path) -> list[dict[str, Any]]:
    values = {"data": data, "cross_encoder": str(cross_encoder), "output": output, "device": "cpu"}
    return json_lines(score(build(ScoreSettings, values, "")))


def test_margins_are_the_teachers(triples: Path, cross_encoder: Path, tmp_path: Path) -> None:
    lines = scored(triples, cross_encoder, tmp_path / "scored.jsonl")
    model = CrossEncoder(cross_encoder, "cpu", activated=False)
    assert [line["query"] for line in lines] == [line["query"] for line in json_lines(triples)]
    for line in lines[:3]:
        texts = [line["positive"], *line["negatives"]]
        positive, *others = model.score([line["query"]] * 3, texts).tolist()
        assert line["margins"] == pytest.approx([positive - other for other in others], abs=2e-3)  # bfloat16 batches


def test_a_line_without_negatives_is_named_before_anything_is_scored(cross_encoder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    with pytest.raises(CaiError, match=r"no file .*data\.jsonl"):
        scored(data, cross_encoder, tmp_path / "scored.jsonl")
    data.write_text('{"query": "a", "positive": "b", "negatives": ["c"]}\n{"query": "a", "positive": "b"}\n')
    with pytest.raises(CaiError, match=r"data\.jsonl:2: 0 negatives, fewer than the 1 that an example needs"):
        scored(data, cross_encoder, tmp_path / "scored.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]
