"""How collections are opened, and passages: their contents, and what still refers to whole documents."""

import json
import logging
import time
from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Document
from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.collections.ir_dataset import IrDataset
from cai_pyserini.collections.passages import passages as passages_of
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import IndexConfig, document_of
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
        Document("long#0", "Long one  two\n"),
        Document("long#1", "Long two\nthree four "),
        Document("long#2", "Long five six seven"),
        Document("fits#0", " one  two\nthree "),
        Document("empty#0", "Nothing  "),
    ]


SENTENCES = [
    "Dr. Grey saw J. Doe, e.g. at 3.5 p.m., in Fig. 3 et al. 2019.",
    'He asked: "Why?"',
    "“Nobody knows!”",
    "¿Quién sabe?",
    "Why not... and so on.",
    "\n\nA heading\n\n",
    "- first item\n",
    "2. second item\n",
    "a\tb\n",
    "1\t2\n",
    "Last page\f",
    "これは文です。",
    "「はい！」と言った。",
    "三つ目？",
]


def test_passages_are_whole_sentences() -> None:
    """The fault: an abbreviation, a number or a quotation ends a sentence; a list or a page does not."""
    text = " ".join(SENTENCES)
    for language, size in (("en", 15), ("en", 40), ("ja", 30)):
        found = [text[start:end].split() for start, end, _ in passages_of(text, size, 0, language)]
        assert all(any(passage[: len(each.split())] == each.split() for each in SENTENCES) for passage in found)
        assert all(any(passage[-len(each.split()) :] == each.split() for each in SENTENCES) for passage in found)
        assert len(found) > 1


def test_long_sentences_are_cut_at_lines_and_words_and_neighbours_share_sentences() -> None:
    words = " ".join(f"w{number}" for number in range(25))
    cut = [words[start:end].split() for start, end, _ in passages_of(words, 10, 4)]
    assert [(part[0], part[-1]) for part in cut] == [("w0", "w9"), ("w6", "w15"), ("w15", "w24")]
    lines = words.replace(" w8", "\nw8")
    assert lines[slice(*passages_of(lines, 10, 0)[0][:2])].split()[-1] == "w7"
    sentences = " ".join(f"One{number} two three." for number in range(9))
    cut = [sentences[start:end].split() for start, end, _ in passages_of(sentences, 10, 3)]
    assert [(part[0], part[-3]) for part in cut] == [
        ("One0", "One2"),
        ("One2", "One4"),
        ("One4", "One6"),
        ("One6", "One8"),
    ]


def test_a_book_is_cut_in_well_under_a_second() -> None:
    """The fault: time that grows with the square of the length."""
    page = "Patients with a fever of 38.5 °C, e.g. of unknown origin, were seen by Dr. Grey. " * 16 + "\f"
    start = time.process_time()
    found = passages_of(page * 2000, 100, 20, is_paged=True)
    assert time.process_time() - start < 1 and found[-1].page == 2000 and len(found) > 5000


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


@pytest.mark.parametrize("read", [lambda made: list(made.documents()), lambda made: made.check("test")])
def test_duplicates_are_refused_and_ids_can_look_like_passages(folder: Path, read) -> None:
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "long#1", "text": "In C#"}\n')
    read(passages(folder))
    assert [f(id) for id, _ in passages(folder).documents() if "#1#" in id for f in (str, document_of)] == [
        "long#1#0",
        "long#1",
    ]
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "long", "text": "again"}\n')
    with pytest.raises(CaiError, match=r"corpus\.jsonl:17: document id 'long.*' occurs twice \(first: .*l:13\)"):
        read(passages(folder))


def test_a_fingerprint_of_documents_depends_on_the_settings(tiny: Path) -> None:
    made = [passages(tiny, *settings).fingerprint("documents") for settings in ((3, 1), (3, 1), (3, 0), (4, 1))]
    whole = BeirFolder(tiny, "tiny").fingerprint("documents")
    assert made[0] == made[1]
    assert len({whole, *made}) == 4
    assert passages(tiny, 3, 1, ("text",)).fingerprint("documents") not in made
    for part in ("queries", "test"):
        assert passages(tiny).fingerprint(part) == BeirFolder(tiny, "tiny").fingerprint(part)


def test_without_spaces_two_characters_count_as_a_word() -> None:
    whole = open_collection(IndexConfig(name="ja", source=str(DATA / "ja"), language="ja"))
    config = IndexConfig(name="ja", source=str(DATA / "ja"), language="ja", passages=10)
    cut, words = open_collection(config), open_collection(config.replace(language="en"))
    found = [document.contents for document in cut.documents() if document.id.startswith("gicht#")]
    assert found == [
        "痛風 痛風では尿酸の結晶が関節にたまる。",
        "痛風 多くは足の親指の付け根が、夜に突然激しく",
        "痛風 は足の親指の付け根が、夜に突然激しく痛む。",
    ]
    assert len({each.fingerprint("documents") for each in (whole, cut, words)}) == 3
    assert whole.fingerprint("documents") == BeirFolder(DATA / "ja", "ja").fingerprint("documents")
