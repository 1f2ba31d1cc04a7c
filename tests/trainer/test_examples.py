"""Training data: texts of corpora, training files, and batches of their examples."""

import gzip
import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cai_pyserini.core.errors import CaiError
from cai_pyserini.trainer.corpus import texts
from cai_pyserini.trainer.examples import Collator, count, examples, in_epoch


def test_every_epoch_has_every_line_once_with_its_next_negatives(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    line = {"query": "q", "positive": "p", "negatives": ["a", "b", "c"], "margins": [1, 2.5, 3]}
    with gzip.open(path, "wt") as file:
        file.write(
            json.dumps(line) + "\n\n" + json.dumps({"query": "r", "positive": "p", "negatives": ["d"], "margins": [4]})
        )
    lines = list(examples(path, True, 1))
    epochs = [[in_epoch(line, 0, epoch, 1) for line in lines] for epoch in range(4)]
    assert [[(e["query"], e["negatives"], e["margins"]) for e in epoch] for epoch in epochs] == [
        [("q", [negative], [margin]), ("r", ["d"], [4.0])]
        for negative, margin in (("a", 1.0), ("b", 2.5), ("c", 3.0), ("a", 1.0))
    ]
    assert [in_epoch(lines[0], 0, epoch, 2)["negatives"] for epoch in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert count(path, True, 1) == 2
    with pytest.raises(CaiError, match=r"data.jsonl.gz:3: 1 negatives, fewer than the 2 that an example needs"):
        list(examples(path, True, 2))
    assert [in_epoch(e, 0, 5, 0)["negatives"] for e in examples(path, False, 0)] == [[], []]


def test_collator_sorts_by_length_and_says_where_each_text_is(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    rows = [
        {"query": "a", "positive": "fever " * 40, "negatives": ["short"], "margins": [1.0], "ids": [1, 2]},
        {"query": "b c", "positive": "two words", "negatives": ["fever " * 9], "margins": [2.0], "ids": [3, 1]},
        {"query": "d", "positive": "short", "negatives": ["e"], "margins": [3.0], "ids": [5, 6]},
    ]
    batch = Collator(tokenizer, 256, 32, 4)(rows)
    chunks = batch["documents"]["chunks"]
    read = [t for chunk in chunks for t in tokenizer.batch_decode(chunk["input_ids"], skip_special_tokens=True)]
    expected = [("fever " * 30).strip(), "two words", "short", "short", ("fever " * 9).strip(), "e"]
    assert [read[i] for i in batch["documents"]["positions"]] == expected
    assert [tuple(chunk["input_ids"].shape) for chunk in chunks] == [(4, 32), (2, 32)]
    assert int(chunks[1]["attention_mask"].sum()) == 3 + 3
    assert batch["margins"].tolist() == [[1.0], [2.0], [3.0]]
    assert batch["document_ids"][..., 0].tolist() == [[1, 2], [3, 1], [5, 6]]
    hashes = batch["document_ids"][..., 1]
    assert hashes[0, 1] == hashes[2, 0] and len(hashes.unique()) == 5


def test_ids_go_with_the_texts_that_they_name(tmp_path: Path) -> None:
    path, line = tmp_path / "x.jsonl", {"query": "q", "positive": "p", "negatives": ["a", "b", "c"]}
    path.write_text(json.dumps(line | {"ids": ["1", "2", "3", "4"]}) + "\n" + json.dumps(line) + "\n")
    named, plain = examples(path, False, 2)
    ids = dict(zip(["p", "a", "b", "c"], named["ids"], strict=True))
    chosen = in_epoch(named, 0, 1, 2)
    assert chosen["ids"] == [ids[text] for text in (chosen["positive"], *chosen["negatives"])]
    assert len({*named["ids"], *plain["ids"]}) == 8 and next(examples(path, False, 0))["ids"] == [ids["p"]]
    path.write_text(json.dumps(line | {"ids": ["1"]}) + "\n")
    with pytest.raises(CaiError, match=r"x\.jsonl:1: 1 ids; give one for the positive and one for each negative"):
        count(path, False, 1)


def test_corpora_are_collections_text_files_and_jsonl_files(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\n\nfour\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"title": "T", "text": "five six seven"}\n{"title": null, "text": "eight"}\n')
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl.gz")]
    assert list(texts(files)) == ["one two three", "four", "T five six seven", "eight"]
    assert list(texts(files, min_words=3)) == ["one two three", "T five six seven"]
    assert len(list(texts([str(tiny)]))) == 12
    with pytest.raises(CaiError, match="no text of at least 5 words in"):
        list(texts(files, min_words=5))


@pytest.mark.parametrize(
    "name, line, message",
    [
        ("c.txt", None, r"no file .*/c.txt"),
        ("d.jsonl", '{"title": "y"}', r"d.jsonl:2: expected an object with text as strings"),
        ("e.jsonl", '{"title": 7, "text": "x"}', r"e.jsonl:2: title and text must be strings"),
    ],
)
def test_a_broken_corpus_is_named(tmp_path: Path, name: str, line: str | None, message: str) -> None:
    if line:
        (tmp_path / name).write_text(f'{{"text": "x"}}\n{line}\n')
    with pytest.raises(CaiError, match=message):
        list(texts([str(tmp_path / name)]))


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"query": "a", "positive": "b", "negatives": ["c"]}', "triples.jsonl:1: 1 negatives but 0 margins"),
        ('{"query": "a", "positive": "b", "margins": []}', "triples.jsonl:1: 0 negatives, fewer than the 1"),
        ('{"query": "a", "positive": 3}', "triples.jsonl:1: expected an object with query, positive as strings"),
        ('{"query": "a", "positive": "b", "negatives": ["c"], "margins": ["4"]}', "must be a list of finite numbers"),
        ('{"query": "a", "positive": "b", "negatives": ["c"], "margins": [NaN]}', "must be a list of finite numbers"),
        ("{", "triples.jsonl:1: not JSON"),
        ("", "triples.jsonl has no line"),
    ],
)
def test_a_broken_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "triples.jsonl").write_text(line + "\n")
    with pytest.raises(CaiError) as caught:
        count(tmp_path / "triples.jsonl", margins=True, negatives=1)
    assert message in str(caught.value)
