"""Records of files: the contents of each format, and the place in messages."""

import gzip
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from cai_pyserini.collections.records import Columns, count_records, read_records
from cai_pyserini.core.errors import CaiError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 17\n"
OF_EACH_KIND = ("a.jsonl", "a.tsv", "a.csv", "a.parquet")


@pytest.fixture
def read(tmp_path: Path):
    """Write a file and read its records, with only the end of each place."""

    def read(name: str, contents: str | bytes, **given: str) -> list[tuple[str, dict[str, Any]]]:
        data = contents.encode() if isinstance(contents, str) else contents
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        records = read_records(tmp_path / name, Columns(given))  # type: ignore[arg-type]
        return [(where.removeprefix(str(tmp_path / name)), values) for where, values in records]

    return read


@pytest.fixture
def read_parquet(read):
    """Write a table as Parquet and read it."""

    def read_table(table: dict[str, list] | pa.Table, **given: str) -> list[tuple[str, dict[str, Any]]]:
        file = io.BytesIO()
        parquet.write_table(pa.table(table) if isinstance(table, dict) else table, file)
        return read("a.parquet", file.getvalue(), **given)

    return read_table


def record(id: object, text: object, title: object = None) -> dict[str, Any]:
    return {"id": id, "text": text} | ({} if title is None else {"title": title})


def test_csv(read) -> None:
    name = "a.csv.gz"
    text = '\ufeffid,text,year,title\r\n1,"a, ""b""",1999,A\r\n\r\n,,,\r\n"2","two\nlines",2000,\r\n3,c,,C\r\n'
    assert read(name, text) == [
        (":2", record("1", 'a, "b"', "A")),
        (":5", record("2", "two\nlines", "")),
        (":7", record("3", "c", "C")),
    ]
    long = "word " * 100_000
    assert read(name, f'id,text\n1,"{long}"\n') == [(":2", record("1", long))]


def test_tsv_has_no_quotes(read) -> None:
    text = '\ufeff_id\ttext\r\n1\t"a" b\r\n2\t"\n3\tc, d\n'
    assert read("a.tsv", text) == [(":2", record("1", '"a" b')), (":3", record("2", '"')), (":4", record("3", "c, d"))]


def test_a_tsv_of_two_columns_needs_no_header(read) -> None:
    assert read("a.tsv", "\ufeff7\twhat?\n8\tthat\n") == [(":1", record("7", "what?")), (":2", record("8", "that"))]
    assert read("a.tsv", "\n7\twhat?\n") == [(":2", record("7", "what?"))]
    assert read("a.tsv", "7\twhat?\n8\tthat\n", id="7", text="what?") == [(":2", record("8", "that"))]


@pytest.mark.parametrize("name", [*OF_EACH_KIND, "topics", "a.txt"])
def test_a_missing_file_is_named_whatever_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(CaiError, match=f"^no file {tmp_path / name}$"):
        [*read_records(tmp_path / name, Columns())]


def test_parquet(read_parquet) -> None:
    numbers = list(range(2500))
    table = {"id": numbers, "vector": [[1.0]] * 2500, "text": [f"text {n}" for n in numbers], "title": [None] * 2500}
    found = read_parquet(table)
    assert found[0] == (": row 1", {"id": 0, "title": None, "text": "text 0"})
    assert [(where, values["id"]) for where, values in found] == [(f": row {n + 1}", n) for n in numbers]
    ids = pa.array(["a", "b"]).dictionary_encode()
    texts = pa.chunked_array([["x"], ["y"]], pa.large_string())
    assert read_parquet(pa.table({"docid": ids, "contents": texts})) == [
        (": row 1", record("a", "x")),
        (": row 2", record("b", "y")),
    ]


def test_configured_names_replace_the_defaults(read, read_parquet) -> None:
    given = {"id": "pmid", "text": "abstract"}
    expected = record("7", "x", "A")
    assert read("a.csv", "id,pmid,abstract,text,title\n1,7,x,y,A\n", **given) == [(":2", expected)]
    table = {"id": ["1"], "pmid": ["7"], "abstract": ["x"], "title": ["A"]}
    assert read_parquet(table, **given) == [(": row 1", expected)]
    with pytest.raises(CaiError, match=r"a\.jsonl:1: no 'heading' among .*`columns: {title: NAME}`"):
        read("a.jsonl", '{"id": "1", "text": "x", "title": "A"}', title="heading")


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.csv", "pmid,text\n1,x\n", r"a\.csv:1: no '_id' or 'id' or .* among 'pmid', 'text'; rename the column"),
        ("a.csv", "id,abstract\n1,x\n", r"a\.csv:1: no 'text' or 'contents' among .*`columns: {text: NAME}`"),
        ("a.csv", "id,text,text\n1,x,y\n", r"a\.csv:1: two columns have the name 'text'"),
        ("a.csv", "id,text\n1,x,y\n", r"a\.csv:2: 3 columns, but the header has 2"),
        ("a.csv", 'id,text\n1,"x\n\ny"\n2\n', r"a\.csv:5: 1 columns, but the header has 2"),
        ("a.csv", 'id,text\n1,x\n2,"y\n3,z\n', r"a\.csv:3: not CSV \(unexpected end of data\)"),
        ("a.csv", 'id,text\n1,"x" y\n', r"a\.csv:2: not CSV \(.*expected after"),
        ("a.csv", "id,text\n1,x\ry\n", r"a\.csv:2: not CSV"),
        ("a.csv", b"id,text\n1,x\n2,\xe9\n", r"a\.csv:3: not UTF-8"),
        ("a.tsv", "1\tx\n2\ty\tz\n", r"a\.tsv:2: 3 columns, but the header has 2"),
        ("a.jsonl", '{"id": "1", "text": "x"}\n{"text": "x"}\n', r"a\.jsonl:2: no '_id' or 'id' or .* among"),
        ("a.parquet", "PAR1, or not", r"a\.parquet: not a Parquet file, or damaged \(.+\)$"),
        *((name, POINTER, rf"{re.escape(name)} is a pointer of Git LFS, not the file itself") for name in OF_EACH_KIND),
    ],
)
def test_a_broken_file_is_named(read, name: str, text: str | bytes, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        read(name, text)


def test_broken_parquet_is_named(read_parquet, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"a\.parquet: no 'text' or 'contents' among 'id', 'abstract'"):
        read_parquet({"id": ["1"], "abstract": ["x"]})
    twice = pa.Table.from_arrays([pa.array(["1"]), pa.array(["x"]), pa.array(["y"])], ["id", "text", "text"])
    with pytest.raises(CaiError, match=r"a\.parquet: two columns have the name 'text'"):
        read_parquet(twice)
    path = tmp_path / "a.parquet"
    read_parquet({"id": ["1"] * 5000, "text": [str(i) for i in range(5000)]})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CaiError, match=r"a\.parquet: not a Parquet file, or damaged"):
        list(read_records(path, Columns()))


ROBUST = """<top>
<num> Number: 301
<title> International
Organized Crime &amp; AT&amp;T

<desc> Description:
Identify organizations.
</top>
<top>

<num> Number: 302 </num>
<EN-title> <b>Poliomyelitis</b> and Post-Polio </EN-title>
<desc> Description: Is the disease under control? </desc>
</top>
"""
COVID = """<?xml version="1.0"?>
<!-- <topic number="0"><query>not this</query></topic> -->
<topics task="covid">
  <topic number="1"><query>coronavirus origin</query><question>what is the origin?</question></topic>
  <topic number='2'>
    A 19-year-old &lt; 20
  </topic>
</topics>"""


def test_trec_topics(read) -> None:
    expected = [(":1", "301", "International\nOrganized Crime & AT&T"), (":9", "302", "Poliomyelitis  and Post-Polio")]
    for name in ("a.trec", "a.txt.gz"):
        assert [(where, values["id"], values["text"]) for where, values in read(name, ROBUST)] == expected
    found = [(where, values["id"], values["text"]) for where, values in read("a.xml", COVID)]
    assert found == [(":4", "1", "coronavirus origin"), (":5", "2", "A 19-year-old < 20")]
    with pytest.raises(CaiError, match=r"a\.xml:5: no 'question' among 'number', 'id', 'text'"):
        read("a.xml", COVID, text="question")
    with pytest.raises(CaiError, match=r"a\.txt: no <top> or <topic> in it"):
        read("a.txt", "q1\tflu\n")


@pytest.mark.parametrize("name, encoding", [("a.jsonl", "utf-16-le"), ("a.csv", "utf-16-be")])
def test_utf_16_is_named(read, name: str, encoding: str) -> None:
    with pytest.raises(CaiError, match=rf"{name}: UTF-16, not UTF-8; convert it: `iconv -f utf-16"):
        read(name, "\ufeffid,text\n1,x\n".encode(encoding))


@pytest.mark.parametrize("name", ["a.json", "a.parquet.gz", "a.gz", "jsonl"])
def test_a_file_of_another_kind_is_refused(read, name: str) -> None:
    with pytest.raises(CaiError, match=r"its name should end with one of \.jsonl, "):
        read(name, "")


def test_records_are_counted_if_that_is_fast(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.tsv", "a.csv", "a.jsonl.gz"):
        (tmp_path / name).write_text("x\ny\n")
    parquet.write_table(pa.table({"id": ["1"] * 3}), tmp_path / "a.parquet")
    counts = {path.name: count_records(path) for path in tmp_path.iterdir()}
    assert counts == {"a.jsonl": 2, "a.tsv": 2, "a.csv": None, "a.jsonl.gz": None, "a.parquet": 3}
