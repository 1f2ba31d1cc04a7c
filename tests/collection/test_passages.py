"""Passages: what each holds, and what of a collection stays that of its documents."""

import json
import logging
from pathlib import Path

import pytest

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.collection.contract import Document
from cai_pyserini.core.errors import CaiError

LONG = "one  two\nthree four five six seven"


@pytest.fixture
def folder(broken: Path) -> Path:
    """The tiny collection, with a long, a fitting and an empty document."""
    records = [("long", "Long", LONG), ("fits", "", "one  two\nthree "), ("empty", "Nothing", " ")]
    with (broken / "corpus.jsonl").open("a") as file:
        file.writelines(json.dumps({"_id": id, "title": title, "text": text}) + "\n" for id, title, text in records)
    return broken


def passages(folder: Path, words: int = 3, overlap: int = 1, fields: tuple[str, ...] = ("title", "text")) -> BeirFolder:
    return BeirFolder(folder, "made", fields).in_passages(words, overlap)


def test_long_documents_are_cut_into_passages_and_others_are_not(folder: Path) -> None:
    assert list(passages(folder).documents())[-5:] == [
        Document("long#0", "Long one two three"),
        Document("long#1", "Long three four five"),
        Document("long#2", "Long five six seven"),
        Document("fits#0", " one  two\nthree "),
        Document("empty#0", "Nothing  "),
    ]


def test_the_last_passage_is_as_long_as_the_others(folder: Path) -> None:
    assert [document.contents for document in passages(folder, 4, 1, ("text",)).documents()][-4:-2] == [
        "one two three four",
        "four five six seven",
    ]
    assert [document.contents for document in passages(folder, 4, 0, ("text",)).documents()][-4:-2] == [
        "one two three four",
        "four five six seven",
    ]


@pytest.mark.parametrize("words, overlap", [(1, 0), (3, 0), (3, 2), (5, 1), (100, 0)])
def test_passages_hold_every_word(folder: Path, words: int, overlap: int) -> None:
    whole = {id: contents.split() for id, contents in BeirFolder(folder, "made", ["text"]).documents()}
    found: dict[str, list[list[str]]] = {}
    for id, contents in passages(folder, words, overlap, ("text",)).documents():
        document, number = id.split("#")
        assert int(number) == len(found.setdefault(document, []))
        found[document].append(contents.split())
    assert found.keys() == whole.keys()
    for id, text in whole.items():
        assert {len(passage) for passage in found[id]} == {min(words, len(text))}
        joined = found[id][0]
        for passage in found[id][1:-1]:
            assert joined[len(joined) - overlap :] == passage[:overlap]
            joined = joined + passage[overlap:]
        missing = len(text) - len(joined)
        assert missing <= words - overlap
        assert joined + found[id][-1][len(found[id][-1]) - missing :] == text


def test_topics_and_qrels_are_of_documents(tiny: Path) -> None:
    collection = passages(tiny)
    assert collection.topics("test") == BeirFolder(tiny, "tiny").topics("test")
    assert collection.qrels("test") == BeirFolder(tiny, "tiny").qrels("test")
    assert (collection.name, collection.fields, collection.size) == ("made", ("title", "text"), None)
    assert collection.place == str(tiny)


def test_the_contents_of_a_document_are_whole(folder: Path) -> None:
    assert passages(folder).contents({"long"}, "a run") == {"long": f"Long {LONG}"}
    with pytest.raises(CaiError, match="a run: document 'long#0' is not in collection made"):
        passages(folder).contents({"long#0"}, "a run")


def test_check_counts_documents_and_passages(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    collection = passages(folder, 3, 1, ("text",))
    with caplog.at_level(logging.WARNING):
        counts = collection.check("test")
        count = len(list(collection.documents()))
    assert counts == {"documents": 15, "queries": 5, "judgments": 8, "passages": count}
    assert count > 15
    (message,) = [record.getMessage() for record in caplog.records]  # once, although both read the collection
    assert message.startswith("2 of 15 documents are empty")


@pytest.mark.parametrize("ask", ["qrels", "check"])
def test_qrels_name_documents(folder: Path, caplog: pytest.LogCaptureFixture, ask: str) -> None:
    with (folder / "qrels" / "test.tsv").open("a") as file:
        file.write("q1\tlong#0\t1\nq1\tlong\t1\n")
    collection = passages(folder)
    getattr(collection, ask)("test")
    assert collection.qrels("test")["q1"].keys() == {"d1", "d2", "long"}
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "document 'long#0', judged for query 'q1', is not in the collection (1 such documents)" in message
    strict = BeirFolder(folder, "made", strict=True).in_passages(3, 1)
    with pytest.raises(CaiError, match="'long#0'"):
        getattr(strict, ask)("test")


@pytest.mark.parametrize("read", [lambda made: list(made.documents()), lambda made: made.check("test")])
def test_an_id_like_that_of_a_passage_is_refused(folder: Path, read) -> None:
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "c#", "text": "In C#"}\n')
    with pytest.raises(CaiError, match=r"corpus\.jsonl:16: the id 'c#' contains '#', .*change the id"):
        read(passages(folder))


def test_a_duplicate_document_is_found(folder: Path) -> None:
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "long", "text": "again"}\n')
    with pytest.raises(CaiError, match=r"corpus\.jsonl:16: document id 'long#0' occurs twice \(first: .*jsonl:13\)"):
        list(passages(folder).documents())


def test_a_fingerprint_of_documents_depends_on_the_settings(tiny: Path) -> None:
    made = [passages(tiny, *settings).fingerprint("documents") for settings in ((3, 1), (3, 1), (3, 0), (4, 1))]
    whole = BeirFolder(tiny, "tiny").fingerprint("documents")
    assert made[0] == made[1]
    assert len({whole, *made}) == 4
    assert passages(tiny, 3, 1, ("text",)).fingerprint("documents") not in made
    for part in ("queries", "test"):
        assert passages(tiny).fingerprint(part) == BeirFolder(tiny, "tiny").fingerprint(part)
