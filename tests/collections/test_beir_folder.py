"""BEIR folders, and the checks of all collections: what is read, what is refused, and the place in messages."""

import gzip
import json
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Document, Record
from cai_pyserini.core.errors import CaiError

CORPUS = (
    '{"_id": "d1", "title": "Colds", "text": "Zinc."}',
    '{"_id": "d2", "title": "Malaria", "text": "Plasmodium."}',
)
QUERIES = ('{"_id": "q1", "text": "flu"}', '{"_id": "q2", "text": "fever"}')
HEADER = "query-id\tcorpus-id\tscore"
QRELS = (HEADER, "q1\td1\t1", "q2\td2\t2")
Lines = Iterable[str]


@pytest.fixture
def files(tmp_path: Path):
    """Write files by name, and open their folder."""

    def write(texts: dict[str, str], **settings: Any) -> BeirFolder:
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return BeirFolder(tmp_path, "made", **settings)

    return write


@pytest.fixture
def beir(files):
    """Write a BEIR folder whose default lines can be replaced, and open it."""

    def write(corpus: Lines = CORPUS, queries: Lines = QUERIES, qrels: Lines = QRELS, strict: bool = False):
        parts = {"corpus.jsonl": corpus, "queries.jsonl": queries, "qrels/test.tsv": qrels}
        texts = {name: "".join(f"{line}\n" for line in lines) for name, lines in parts.items()}
        return files(texts, strict=strict)

    return write


def test_contents_are_title_space_text(tiny: Path) -> None:
    documents = list(BeirFolder(tiny, "tiny").documents())
    assert [document.id for document in documents] == [f"d{i}" for i in range(1, 13)]
    assert documents[2].contents == "Aromatase Phytochemicals that inhibit aromatase may prevent breast cancer."
    assert documents[5].contents == " A case report without a title: a myocardial infarction in a marathon runner."
    assert documents[6].contents == "Tonsillectomy "
    assert documents[11].contents == "Größe Körpergröße und β-Blocker: naïve Unicode, 血圧 und ½ mg."
    assert next(BeirFolder(tiny, "tiny", ["text"]).documents()).contents.startswith("Dietary phytate, found")


@pytest.mark.parametrize("name", ["corpus", "queries"])
@pytest.mark.parametrize(
    "line, message",
    [
        ('{"_id": "x", "text": "cut', r"not JSON \(.* column \d+\)"),
        ('["x", "y"]', "expected"),
        ('{"text": "no id"}', "no '_id'"),
        ('{"_id": "x"}', "no 'text'"),
        ('{"_id": "x", "text": 0}', "title and text must be strings"),
        ('{"_id": "x", "text": "y", "text": "z"}', "the key 'text' occurs twice"),
        ('{"_id": "x y", "text": "z"}', "id 'x y' is empty or has white space"),
        (f'{{"_id": "{"x" * 8001}", "text": "z"}}', "the id x{20}… has 8,001 characters; indexes hold 8,000"),
        ('{"_id": null, "text": "z"}', "the id is missing"),
        ('{"_id": "x\\u00a0y", "text": "z"}', "white space"),
        ('{"_id": "x\\u0000", "text": "z"}', r"id 'x\\x00' has a NUL character, which vectors on disk cannot hold"),
    ],
)
def test_a_broken_record_is_named(beir, name: str, line: str, message: str) -> None:
    sound = CORPUS if name == "corpus" else QUERIES
    with pytest.raises(CaiError, match=rf"{name}\.jsonl:2: .*{message}"):
        beir(**{name: [sound[0], line, sound[1]]}).check("test")


@pytest.mark.parametrize(
    "lines, message",
    [
        ({"corpus": [*CORPUS, CORPUS[0]]}, r"jsonl:3: document id 'd1' occurs twice \(first: .*corpus\.jsonl:1\)"),
        ({"corpus": []}, r"collection made has no documents \(/.*\)"),
        ({"queries": [*QUERIES, QUERIES[0]]}, r"queries\.jsonl:3: query id 'q1' occurs twice"),
        ({"qrels": [*QRELS, "q9\td1\t1"]}, r"test\.tsv:4: query 'q9' is in the qrels but not among the queries"),
        ({"qrels": [HEADER]}, "no judgments for split 'test'"),
        ({"qrels": [HEADER, "q1\td8\t1", "q1\td9\t1"]}, r"'d8', judged .*\(2 such documents\), and neither is any"),
    ],
)
def test_inconsistent_parts_are_refused(beir, lines: dict[str, Lines], message: str) -> None:
    with pytest.raises(CaiError, match=message):
        beir(**lines).check("test")


def test_two_ids_with_the_same_hash_are_not_duplicates(beir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cai_pyserini.collections.contract.SeenIds.add", lambda *_: True)
    assert [document.id for document in beir().documents()] == ["d1", "d2"]


def test_the_contents_of_some_documents(beir) -> None:
    assert beir().contents({"d2"}, "a run") == {"d2": "Malaria Plasmodium."}
    with pytest.raises(CaiError, match="a run: document 'd8' is not in collection made"):
        beir().contents({"d1", "d9", "d8"}, "a run")


def test_empty_documents_are_kept_with_one_warning(beir, caplog: pytest.LogCaptureFixture) -> None:
    empty = ['{"_id": "e1", "title": " ", "text": "\\n"}', '{"_id": "e2", "title": null, "text": null}']
    collection = beir(corpus=[*CORPUS, *empty])
    with caplog.at_level(logging.WARNING):
        assert collection.check("test")["documents"] == 4
        assert [document.id for document in collection.documents()] == ["d1", "d2", "e1", "e2"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.match(r"2 of 4 documents are empty \(the first: .*corpus\.jsonl:3\)", message)


BLANK = '{"_id": "q2", "text": " "}'


def test_an_empty_query_is_judged_but_not_searched_for(beir, caplog: pytest.LogCaptureFixture) -> None:
    collection = beir(queries=[QUERIES[0], BLANK])
    assert collection.topics("test") == {"q1": "flu"} and list(collection.qrels("test")) == ["q1", "q2"]
    assert collection.check("test") == {"documents": 2, "queries": 2, "judgments": 2, "empty_queries": 1}
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"queries\.jsonl:2: query 'q2' has no text \(1 such queries\): .* not searched for, and", message)
    with pytest.raises(CaiError, match=r"queries\.jsonl:2: query 'q2' has no text .* such queries and their qrels"):
        beir(queries=[QUERIES[0], BLANK], strict=True).topics("test")


LACKING = [HEADER, "q2\td8\t1", "q1\td1\t1", "q1\td8\t0", "q1\td9\t0"]


@pytest.mark.parametrize("ask", ["topics", "qrels", "check"])
def test_judgments_of_unknown_documents_are_skipped(beir, caplog: pytest.LogCaptureFixture, ask: str) -> None:
    message = r"test\.tsv:2: document 'd8', judged for query 'q2'.*\(2 such documents\); remove such judgments or add"
    for _ in range(2):
        with pytest.raises(CaiError, match=message):
            getattr(beir(qrels=LACKING, strict=True), ask)("test")
    collection = beir(qrels=LACKING)
    for _ in range(2):
        getattr(collection, ask)("test")
    assert collection.topics("test") == {"q1": "flu"} and collection.qrels("test") == {"q1": {"d1": 1}}
    counts = {"documents": 2, "queries": 1, "judgments": 1, "left_out_queries": 1, "left_out_judgments": 3}
    assert collection.check("test") == counts
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.search(
        r"test\.tsv:2: document 'd8', judged for query 'q2', is not in the collection \(2 such documents\): "
        r"3 of 4 judgments and 1 of 2 queries, which have no other judgments, are left out$",
        message,
    )


def test_documents_are_read_once_to_find_judged_documents(beir, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    records = BeirFolder._records

    def counted(collection: BeirFolder, *arguments: Any) -> Iterator[Record]:
        for record in records(collection, *arguments):
            read.append(record.id)
            yield record

    def read_of(*asked: str, **lines: list[str]) -> list[str]:
        collection = beir(**lines)
        for ask in asked:
            getattr(collection, ask)("test")
        return [id for id in read if id.startswith("d")]

    monkeypatch.setattr(BeirFolder, "_records", counted)
    assert read_of("check", "topics", "qrels") == ["d1", "d2"]
    read.clear()
    assert read_of("topics", "qrels", qrels=LACKING) == ["d1", "d2"]
    read.clear()
    assert read_of("qrels", "topics", qrels=QRELS[:2]) == ["d1"]  # stops after the last judged document


@pytest.mark.parametrize(
    "qrels, message",
    [
        ((HEADER, "q1\td1"), r":2: 2 columns; expected query-id, corpus-id and score"),
        ((HEADER, "q1\t0\td1\t1"), r":2: 4 columns"),
        (("q1 d1 1",), r":1: 3 columns; expected .*, tab-separated, or the four of TREC, separated by white space"),
        (("q1 0 d1 1", "q1 0 d 2 1"), r":2: 5 columns"),
        (("q1\td1\t0.5",), r":1: the grade '0\.5' is not an integer"),
        (("q1\td1\t",), r":1: the grade '' is not an integer"),
        ((HEADER, "q1\td1\t1e0"), r":2: the grade '1e0' is not an integer"),
        ((HEADER, "q1\td1\t" + "1" * 5000), r":2: the grade '1+' is not an integer"),
        ((HEADER, "q1\td1\t1", "q1\td2\t10001"), r":3: the grade 10001 is too large: grades are at most 10,000"),
        ((HEADER, "q1\td 1\t1"), r":2: the id 'd 1'"),
        ((HEADER, "q1\td1\t1", "q2\td2\t1", "q1\td1\t2"), r":4: document 'd1' was judged differently for query 'q1'"),
    ],
)
def test_broken_qrels_are_named(beir, qrels: tuple[str, ...], message: str) -> None:
    with pytest.raises(CaiError, match=rf"test\.tsv{message}"):
        beir(qrels=qrels).qrels("test")


@pytest.mark.parametrize(
    "text",
    [
        "q1\td1\t1\nq2\td2\t2\n",
        "query-id\tcorpus-id\tscore\nq1\td1\t1.0\nq2\td2\t2.\n",
        "\ufeffquery-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t+2",
        "q1 0 d1 1\nq2 0 d2 2\n",
        "q1\td1\t1\nq2\td2\t2\nq1\td1\t1.0\n",
        "q1\td1\t1\nq2\td2\t2\nq2\td3\t-2.0\n",
        "q1\t0\td1\t1\r\n\r\nq2  Q0\td2\t2.00\r\n",
    ],
)
def test_qrels_in_other_formats(files, text: str) -> None:
    collection = files({"corpus.jsonl": "\n".join(CORPUS), "qrels/dev.txt": text})
    collection.set_missing("dev", frozenset())
    found = collection.qrels("dev")
    assert found["q2"].pop("d3", 0) == 0 and found == {"q1": {"d1": 1}, "q2": {"d2": 2}}
    with pytest.raises(CaiError, match=r"no file .*qrels/test\.tsv; splits of this collection: dev"):
        collection.qrels("test")


def test_qrels_with_named_columns(files, tmp_path: Path) -> None:
    rows = [{"query-id": "q1", "corpus-id": "d1", "score": 1}, {"query-id": "q2", "corpus-id": "d2", "score": 2.0}]
    texts = {
        "csv": 'relevance,"qid",docid\n1,q1,d1\n2,"q2",d2\n',
        "jsonl": "\n".join(map(json.dumps, rows)),
        "tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t2\n",
    }
    parts = {f"qrels/{suffix}.{suffix}": text for suffix, text in texts.items()}
    collection = files({"corpus.jsonl": "\n".join(CORPUS), "queries.jsonl": "\n".join(QUERIES), **parts})
    parquet.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), tmp_path / "qrels/p.parquet")
    with gzip.open(tmp_path / "qrels/z.tsv.gz", "wt") as file:
        file.write(texts["tsv"])
    for split in (*texts, "p", "z"):
        assert collection.qrels(split) == {"q1": {"d1": 1}, "q2": {"d2": 2}}
        assert collection.check(split)["judgments"] == 2 and collection.fingerprint(split)
    for text, message in (
        ("query-id,corpus-id,score\nq1,d1,0.5\n", r":2: the grade '0.5' is not an integer"),
        ("query-id,corpus-id\nq1,d1\n", r":1: no 'score' or .* among 'query-id', 'corpus-id'; rename the column$"),
    ):
        with pytest.raises(CaiError, match=rf"csv\.csv{message}"):
            files({"qrels/csv.csv": text}).qrels("csv")


@pytest.mark.parametrize("ask", ["qrels", "fingerprint"])
def test_the_error_for_a_missing_split_lists_the_others(tiny: Path, ask: str) -> None:
    with pytest.raises(CaiError, match=r"no file .*qrels/dev\.tsv; splits of this collection: test, train"):
        getattr(BeirFolder(tiny, "tiny"), ask)("dev")


PARTS = {"corpus.jsonl": "documents", "queries.jsonl": "queries", "qrels/test.tsv": "test", "qrels/train.tsv": "train"}


@pytest.mark.parametrize("name", PARTS)
def test_a_fingerprint_covers_only_its_part(broken: Path, name: str) -> None:
    def fingerprints() -> dict[str, str]:
        return {part: BeirFolder(broken, "any").fingerprint(part) for part in PARTS.values()}

    before = fingerprints()
    with (broken / name).open("a") as file:
        file.write("\n")
    changed = {part for part, value in fingerprints().items() if value != before[part]}
    assert changed == {PARTS[name]}


def test_a_fingerprint_depends_on_contents_fields_columns_and_format(broken: Path, tiny: Path, files) -> None:
    whole = BeirFolder(tiny, "b").fingerprint("documents")
    assert BeirFolder(broken, "a").fingerprint("documents") == whole
    assert BeirFolder(tiny, "b", ["text"]).fingerprint("documents") != whole
    plain = files({"corpus.csv": "id,text,abstract\n1,a,b\n"}).fingerprint("documents")
    assert files({}, columns={"text": "abstract"}).fingerprint("documents") != plain


THREE = [Document("1", "A x"), Document("2", " y")]


@pytest.mark.parametrize(
    "name, text",
    [
        ("corpus.tsv", "docid\ttitle\tcontents\n1\tA\tx\n2\t\ty\n"),
        ("corpus.jsonl", '\ufeff{"id": 1, "title": "A", "text": "x"}\n{"docid": "2", "contents": "y"}\n'),
        ("part-1.jsonl", '{"id": "1", "title": "A", "contents": "x"}\n{"id": "2", "contents": "y"}\n'),
    ],
)
def test_documents_in_other_formats(files, name: str, text: str) -> None:
    collection = files({name: text})
    assert list(collection.documents()) == THREE
    assert not collection.has_queries("test") and not collection.has_qrels("test")
    assert collection.check("test") == {"documents": 2}


def test_a_file_of_documents_is_a_collection(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("id,title,text\n1,A,x\n2,,y\n")
    (tmp_path / "queries.csv").write_text("id,text\nq,x\n")
    collection = BeirFolder(tmp_path / "mine.csv", "mine")
    assert list(collection.documents()) == THREE and collection.check("test") == {"documents": 2}
    for ask, lacking in ((collection.qrels, "qrels"), (collection.topics, "queries")):
        with pytest.raises(CaiError, match=rf"collection mine has no {lacking} \(.*mine\.csv\)"):
            ask("test")
    (tmp_path / "mine.xlsx").touch()
    with pytest.raises(CaiError, match=r"mine\.xlsx: its name should end with one of \.jsonl, \.jsonl\.gz, \.parquet"):
        BeirFolder(tmp_path / "mine.xlsx", "mine")


def test_documents_in_several_files(files, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    texts = {f"{number}.jsonl": f'{{"id": {number}, "contents": "x"}}\n' for number in range(10, 20)}
    texts["15.jsonl.gz"] = ""
    others = {"queries.jsonl": QUERIES[0], "qrels/dev.tsv": "q1\t10\t1", "notes.txt": "none", "manifest.json": "{}"}
    collection = files(texts | others)
    (tmp_path / "15.jsonl.gz").write_bytes(gzip.compress((tmp_path / "15.jsonl").read_bytes()))
    (tmp_path / "15.jsonl").unlink()
    with caplog.at_level(logging.INFO, "cai_pyserini"):
        for each in (collection, BeirFolder(tmp_path, "made")):
            assert [document.id for document in each.documents()] == [str(number) for number in range(10, 20)]
    named = "10.jsonl, 11.jsonl, 12.jsonl, 13.jsonl, …, 19.jsonl (10 files)"
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == f"{tmp_path}: documents: {named}; queries: queries.jsonl; qrels: dev.tsv; not read: notes.txt"
    files({"12.jsonl": texts["10.jsonl"]})
    with pytest.raises(CaiError, match=r"12\.jsonl:1: document id '10' occurs twice \(first: .*10\.jsonl:1\)"):
        list(collection.documents())


LINE = '{"id": "1", "contents": "x"}\n'


@pytest.mark.parametrize(
    "beside, unclear",
    [
        ("corpus.jsonl", "corpus-2.jsonl"),
        ("part-1.jsonl", "train-queries.jsonl"),
        ("part-1.jsonl", "more.csv"),
        ("part-1.jsonl", "qrels.tsv"),
    ],
)
def test_a_file_that_might_have_documents_is_refused(files, beside: str, unclear: str) -> None:
    collection = files({beside: LINE, unclear: LINE})
    for ask in (collection.documents, lambda: iter([collection.fingerprint("documents")])):
        with pytest.raises(CaiError, match=rf"{re.escape(unclear)}: does it have documents\? Move it away or merge"):
            next(ask())


@pytest.mark.parametrize(
    "names, ask", [(("corpus.jsonl", "corpus.csv"), "check"), (("qrels/test.tsv", "qrels/test.txt"), "qrels")]
)
def test_two_files_of_the_same_part_are_refused(beir, files, names: tuple[str, str], ask: str) -> None:
    beir()
    with pytest.raises(CaiError, match=rf"{names[0]} and {Path(names[1]).name}: only one of them can be the right one"):
        getattr(files(dict.fromkeys(names, LINE)), ask)("test")


def test_column_names_can_be_configured(files) -> None:
    collection = files(
        {
            "corpus.csv": "pmid,heading,abstract,text\n1,A,x,no\n2,,y,no\n",
            "queries.tsv": "topic\tquestion\nq1\twhat?\n",
            "qrels/test.tsv": "q1\t1\t1\n",
        },
        columns={"id": "pmid", "title": "heading", "text": "abstract"},
        query_columns={"id": "topic", "text": "question"},
    )
    assert list(collection.documents()) == THREE
    assert collection.topics("test") == {"q1": "what?"}


def test_queries_without_qrels_are_all_topics(files, caplog: pytest.LogCaptureFixture) -> None:
    collection = files({"corpus.jsonl": CORPUS[0], "queries.jsonl": "\n".join([*QUERIES, BLANK.replace("q2", "q3")])})
    assert collection.topics("test") == {"q1": "flu", "q2": "fever"}
    assert collection.check("test") == {"documents": 1, "queries": 3, "empty_queries": 1}
    assert len(caplog.records) == 1
    with pytest.raises(CaiError, match=r"collection made has no qrels"):
        collection.qrels("test")


@pytest.mark.parametrize(
    "name, message",
    [
        ("notes", r"no file .*corpus\.jsonl: a folder in BEIR's layout has corpus\.jsonl, queries"),
        ("qrels/test.tsv", r"no file .*queries\.jsonl: a folder in BEIR's layout has"),
        ("qrels/test.xml", r"no file .*qrels/test\.tsv; splits of this collection: none \(.*/test\.xml is not read"),
        ("qrels.tsv", r"no file .*qrels/test\.tsv; .*: none \(.*/qrels\.tsv is not read; its name should be qrels/te"),
        ("queries.json", r"no file .*queries\.jsonl \(.*/queries\.json is not read; its name should be queries and"),
    ],
)
def test_misplaced_files_are_named(files, name: str, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        files({"nothing" if name == "notes" else "corpus.jsonl": CORPUS[0], name: "q1\td1\t1\n"}).check("test")
