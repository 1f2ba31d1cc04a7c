"""How collections are opened, and passages: their contents, and what still refers to whole documents."""

import json
import logging
from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Document
from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.collections.ir_dataset import IrDataset
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from tests.conftest import DATA

LONG = "one  two\nthree four five six seven"


def test_the_source_chooses_the_reader(tiny: Path) -> None:
    sources = {"hpo": Hpo, "ir_datasets:vaswani": IrDataset, str(tiny): BeirFolder}
    for source, kind in sources.items():
        collection = open_collection(IndexConfig(name="mine", source=source, fields=["text"]))
        assert type(collection) is kind
        assert (collection.name, collection.fields) == ("mine", ("text",))


def test_the_note_is_shown_if_the_folder_is_missing(tmp_path: Path) -> None:
    config = IndexConfig(name="news", source=str(tmp_path / "absent"), note="it is licensed; ask for it")
    with pytest.raises(CaiError, match=r"no collection file or folder .*absent; it is licensed; ask for it"):
        open_collection(config)


@pytest.fixture
def folder(broken: Path) -> Path:
    """The tiny collection, plus a long, a short and an empty document."""
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


@pytest.mark.parametrize("words, overlap", [(1, 0), (3, 2), (4, 0), (5, 1), (100, 0)])
def test_passages_are_equally_long_and_hold_every_word(folder: Path, words: int, overlap: int) -> None:
    whole = {id: contents.split() for id, contents in BeirFolder(folder, "made", ["text"]).documents()}
    found: dict[str, list[list[str]]] = {}
    for id, contents in passages(folder, words, overlap, ("text",)).documents():
        document, number = id.split("#")
        assert int(number) == len(found.setdefault(document, []))
        found[document].append(contents.split())
    assert found.keys() == whole.keys()
    for id, text in whole.items():
        starts = [*range(0, max(len(text) - words, 0), words - overlap), max(len(text) - words, 0)]
        assert found[id] == [text[start : start + words] for start in starts]


def test_only_documents_are_split_into_passages(tiny: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    collection, whole = passages(folder, 3, 1, ("text",)), BeirFolder(tiny, "tiny")
    assert (collection.topics("test"), collection.qrels("test")) == (whole.topics("test"), whole.qrels("test"))
    assert (collection.name, collection.fields, collection.size) == ("made", ("text",), None)
    assert collection.contents({"long"}, "a run") == {"long": LONG}
    with pytest.raises(CaiError, match="a run: document 'long#0' is not in collection made"):
        collection.contents({"long#0"}, "a run")
    with caplog.at_level(logging.WARNING):
        count = len(list(collection.documents()))
        assert collection.check("test") == {"documents": 15, "queries": 5, "judgments": 8, "passages": count}
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    (message,) = [record.getMessage() for record in warned]  # one warning, although both read the collection
    assert count > 15 and message.startswith("2 of 15 documents are empty")


def test_qrels_name_documents(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (folder / "qrels" / "test.tsv").open("a") as file:
        file.write("q1\tlong#0\t1\nq1\tlong\t1\n")
    collection = passages(folder)
    assert collection.qrels("test")["q1"].keys() == {"d1", "d2", "long"}
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "document 'long#0', judged for query 'q1', is not in the collection (1 such documents)" in message


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"_id": "c#", "text": "In C#"}', r"corpus\.jsonl:16: the id 'c#' contains '#', .*change the id"),
        ('{"_id": "long", "text": "again"}', r"corpus\.jsonl:16: document id 'long.*' occurs twice \(first: .*l:13\)"),
    ],
)
@pytest.mark.parametrize("read", [lambda made: list(made.documents()), lambda made: made.check("test")])
def test_ids_that_look_like_passages_and_duplicates_are_refused(folder: Path, line: str, message: str, read) -> None:
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(CaiError, match=message):
        read(passages(folder))


def test_a_fingerprint_of_documents_depends_on_the_settings(tiny: Path) -> None:
    made = [passages(tiny, *settings).fingerprint("documents") for settings in ((3, 1), (3, 1), (3, 0), (4, 1))]
    whole = BeirFolder(tiny, "tiny").fingerprint("documents")
    assert made[0] == made[1]
    assert len({whole, *made}) == 4
    assert passages(tiny, 3, 1, ("text",)).fingerprint("documents") not in made
    for part in ("queries", "test"):
        assert passages(tiny).fingerprint(part) == BeirFolder(tiny, "tiny").fingerprint(part)


def test_without_spaces_each_character_counts_as_a_word() -> None:
    whole = open_collection(IndexConfig(name="ja", source=str(DATA / "ja"), language="ja"))
    config = IndexConfig(name="ja", source=str(DATA / "ja"), language="ja", passages=20, passage_overlap=5)
    cut, words = open_collection(config), open_collection(config.replace(language="en"))
    text = next(whole.records()).text
    passages = [document.contents for document in cut.documents() if document.id.startswith("gicht#")]
    assert len(text) == 40 and passages == [f"痛風 {text[start : start + 20]}" for start in (0, 15, 20)]
    assert len(list(words.documents())) == 60  # a text is one word
    assert len({each.fingerprint("documents") for each in (whole, cut, words)}) == 3
    assert whole.fingerprint("documents") == BeirFolder(DATA / "ja", "ja").fingerprint("documents")
