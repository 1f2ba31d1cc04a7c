"""Training files: of labelled pairs and runs, of MS MARCO's files, of pseudo queries."""

import gzip
import json
import random
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from cai_pyserini.cli import CaiError
from cai_pyserini.config import load_encoder, load_index_config
from cai_pyserini.trainer import corpus, mine, msmarco, pseudo
from cai_pyserini.trainer.data import Collator, examples
from tests.conftest import json_lines


def test_examples_take_the_negatives_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    line = {"query": "q", "positive": "p", "negatives": ["a", "b", "c"], "margins": [1, 2.5, 3]}
    with gzip.open(path, "wt") as file:
        file.write(
            json.dumps(line) + "\n\n" + json.dumps({"query": "r", "positive": "p", "negative": "d", "margin": 4})
        )
    found = [(e["query"], e["negatives"], e["margins"]) for e in examples(str(path), True, 1)]
    assert found == [("q", ["a"], [1.0]), ("q", ["b"], [2.5]), ("q", ["c"], [3.0]), ("r", ["d"], [4.0])]
    with pytest.raises(CaiError, match=r"data.jsonl.gz:3: 1 negatives, fewer than the 2"):
        list(examples(str(path), True, 2))
    assert [(e["query"], e["negatives"]) for e in examples(str(path), False, 0)] == [("q", []), ("r", [])]


def test_collator_sorts_by_length_and_says_where_each_text_is(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    rows = [
        {"query": "a", "positive": "fever " * 40, "negatives": ["short"], "margins": [1.0]},
        {"query": "b c", "positive": "two words", "negatives": ["fever " * 9], "margins": [2.0]},
        {"query": "d", "positive": "short", "negatives": ["e"], "margins": [3.0]},
    ]
    batch = Collator(tokenizer, 256, 32, 4)(rows)
    parts = batch["documents"]["parts"]
    texts = [t for p in parts for t in tokenizer.batch_decode(p["input_ids"], skip_special_tokens=True)]
    wanted = [("fever " * 30).strip(), "two words", "short", "short", ("fever " * 9).strip(), "e"]
    assert [texts[i] for i in batch["documents"]["places"]] == wanted
    assert [tuple(part["input_ids"].shape) for part in parts] == [(4, 32), (2, 32)]
    assert int(parts[1]["attention_mask"].sum()) == 3 + 3
    assert batch["margins"].tolist() == [[1.0], [2.0], [3.0]]
    assert batch["names"][0, 1] == batch["names"][2, 0]
    assert len(batch["names"].unique()) == 5


def test_corpora_of_all_kinds(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\n\nfour\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"title": "T", "text": "five six seven"}\n{"text": "eight"}\n')
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl.gz")]
    assert list(corpus.texts(files)) == ["one two three", "four", "T five six seven", "eight"]
    assert list(corpus.texts(files, min_words=3)) == ["one two three", "T five six seven"]
    assert len(list(corpus.texts([str(tiny)]))) == 12
    with pytest.raises(CaiError, match="no text of at least 5 words in"):
        list(corpus.texts(files, min_words=5))
    with pytest.raises(CaiError, match=r"no file .*/c.txt"):
        list(corpus.texts([str(tmp_path / "c.txt")]))
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n{"title": "y"}\n')
    with pytest.raises(CaiError, match=r"d.jsonl:2: expected an object with text as strings"):
        list(corpus.texts([str(tmp_path / "d.jsonl")]))


def test_mining_takes_negatives_from_every_run_but_no_relevant_one(tiny: Path, tmp_path: Path) -> None:
    queries = [json.loads(line) for line in (tiny / "queries.jsonl").open()]
    qrels = [line.split("\t") for line in (tiny / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    relevant = {(q, d) for q, d, grade in qrels if int(grade) > 0}
    documents = {d["_id"]: d for d in json_lines(tiny / "corpus.jsonl")}
    for name, ids in (("a.trec", sorted(documents)), ("b.trec", sorted(documents, reverse=True))):
        hits = [f"{q['_id']} Q0 {d} {i} {100 - i} x" for q in queries for i, d in enumerate(ids, 1)]
        (tmp_path / name).write_text("\n".join(hits) + "\n")
    runs = [str(tmp_path / name) for name in ("a.trec", "b.trec")]
    given = {"collection": str(tiny), "split": "test", "runs": runs}
    mine.mine(mine.Settings(**given, depth=3, negatives=99, output=str(tmp_path / "out.jsonl")))
    lines = json_lines(tmp_path / "out.jsonl")
    assert len(lines) == len(relevant)
    texts = {" ".join((d["title"], d["text"])) if "title" in d else d["text"]: id for id, d in documents.items()}
    reachable = set(sorted(documents)[:3]) | set(sorted(documents)[-3:])
    of = {q["text"]: q["_id"] for q in queries}
    for line in lines:
        query = of[line["query"]]
        assert (query, texts[line["positive"]]) in relevant
        found = {texts[text] for text in line["negatives"]}
        assert found == {d for d in reachable if (query, d) not in relevant and d != query}


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


def marco_settings(folder: Path, **given: object) -> msmarco.Settings:
    scores = [str(folder / "scores.parquet")]
    files = {"hard_negatives": str(folder / "hard.jsonl.gz"), "scores": scores, "output": str(folder / "out.jsonl")}
    return msmarco.Settings(**({"collection": str(folder / "marco")} | files | given))


def test_msmarco_files_become_margins(marco: Path) -> None:
    lines = {line["query"]: line for line in json_lines(msmarco.make(marco_settings(marco)))}
    assert set(lines) == {"query 0", "query 1"}  # the teacher has not scored query 2
    margins = dict(zip(lines["query 0"]["negatives"], lines["query 0"]["margins"], strict=True))
    assert margins == {"passage 3": 8, "passage 4": 7, "passage 5": 6}
    assert (lines["query 1"]["negatives"], lines["query 1"]["margins"]) == (["passage 3"], [-2.5])


def test_msmarco_scores_can_be_rows_of_jsonl(marco: Path) -> None:
    rows = [("0", "0", 9.0), ("0", "4", 2.0)]
    (marco / "rows.jsonl").write_text(
        "".join(json.dumps({"query_id": q, "corpus_id": d, "score": s}) + "\n" for q, d, s in rows)
    )
    lines = json_lines(msmarco.make(marco_settings(marco, scores=[str(marco / "rows.jsonl")])))
    assert [(line["query"], line["negatives"], line["margins"]) for line in lines] == [
        ("query 0", ["passage 4"], [7.0])
    ]


def test_pickled_scores_are_refused(marco: Path) -> None:
    (marco / "scores.pkl.gz").write_bytes(b"")
    with pytest.raises(CaiError, match=r"scores.pkl.gz: scores must be Parquet or JSONL"):
        msmarco.make(marco_settings(marco, scores=[str(marco / "scores.pkl.gz")]))


def test_pseudo_queries_are_titles_and_sentences() -> None:
    titles = ["A title", "", "Other"]
    texts = ["Too short. One sentence of five words. Nor this.", "Another sentence of five words?", ""]
    found = list(pseudo.pseudo_queries(titles, texts, random.Random(0)))
    assert found == [
        (0, "A title"), (0, "One sentence of five words."), (1, "Another sentence of five words?"), (2, "Other")
    ]  # fmt: skip


def test_pseudo_examples_have_their_document_and_others(tiny: Path, tmp_path: Path) -> None:
    config, encoder = load_index_config(str(tiny)), load_encoder("splade-tiny")
    count = pseudo.write_examples(config, encoder, tmp_path / "x.jsonl", 100, 2, random.Random(1), "cpu")
    lines = json_lines(tmp_path / "x.jsonl")
    assert len(lines) == count > 10
    for line in lines:
        assert line["query"] in line["positive"]
        assert len({line["positive"], *line["negatives"]}) == 3
