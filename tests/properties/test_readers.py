"""Readers of outside data, given anything: the result is what was written, or an error that names the file."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from pyarrow import parquet
from scipy.sparse import csr_matrix

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.records import Columns, read_records
from cai_pyserini.core import jsonl
from cai_pyserini.core.config import EncoderConfig, IndexConfig, encoder_yaml, load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import read_yaml
from cai_pyserini.core.text import normalized
from cai_pyserini.runs import trec
from cai_pyserini.vectors.json_vectors import parse_checked, read_vectors
from cai_pyserini.vectors.weighting import json_vectors

numbers = count()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """An empty folder for every example."""
    folder = tmp_path_factory.mktemp("examples")

    def make() -> Path:
        place = folder / str(next(numbers))
        place.mkdir()
        return place

    return make


def result(path: Path, read: Callable[[], Any]) -> Any:
    """What is read; None for a CaiError, which names the file."""
    try:
        return read()
    except CaiError as error:
        assert str(path) in str(error)
        return None


characters = st.characters(exclude_categories=["Cs"])
texts = st.text(characters, max_size=20)
ids = st.text(characters, min_size=1, max_size=8).filter(
    lambda id: id.split() == [id] and not id.startswith("\ufeff") and "\0" not in id
)


def joined(*tokens: str) -> st.SearchStrategy[bytes]:
    """Bytes in which these tokens are frequent."""
    token = st.sampled_from(tokens).map(str.encode)
    return st.lists(token | st.binary(max_size=4) | texts.map(str.encode), max_size=30).map(b"".join)


def damaged(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The same data with some bytes replaced, or cut off."""

    def damage(whole: bytes, changes: list[tuple[int, int]], end: int) -> bytes:
        changed = bytearray(whole)
        for place, byte in changes:
            if changed:
                changed[place % len(changed)] = byte
        return bytes(changed[: end % (len(changed) + 1)] if end else changed)

    changes = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4)
    return st.builds(damage, data, changes, st.just(0) | st.integers(0, 1 << 20))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["_id", "id", "docid", "title", "text", "contents", "vector"])
objects = st.dictionaries(names, json_values, max_size=4)
json_lines = st.lists(objects | json_values, max_size=5).map(
    lambda values: "\n".join(json.dumps(value) for value in values).encode()
)
tables = joined("id", "text", "title", ",", "\t", "\n", "\r", '"', "\ufeff", ";", "1", "a b")

integers = st.integers(-(2**63), 2**63 - 1)
types: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): texts,
    pa.large_string(): texts,
    pa.binary(): st.binary(max_size=5),
    pa.bool_(): st.booleans(),
    pa.int64(): integers,
    pa.timestamp("ns"): integers,
    pa.float64(): st.floats(),
    pa.list_(pa.string()): st.lists(texts, max_size=2),
    pa.struct({"x": pa.string()}): st.fixed_dictionaries({"x": texts}),
}


@st.composite
def parquet_files(draw: st.DrawFn) -> bytes:
    """Parquet of columns of any type."""
    rows = draw(st.integers(0, 5))
    columns = {}
    for name in draw(st.lists(names, max_size=4, unique=True)):
        kind, values = draw(st.sampled_from([*types.items()]))
        columns[name] = pa.array(draw(st.lists(values | st.none(), min_size=rows, max_size=rows)), kind)
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    return file.getvalue()


tagged = joined(
    *("name: ", "source: ", "checkpoint: ", "passages: ", "fields: ", "columns: ", "bits: ", "joint: ", "expected: "),
    *("!!int ", "!!float ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "!!null ", "!!python/name:os.system "),
    *("2020-13-45", "2020-01-01 99:00", "1:99", ".inf", "1e999", "0x", "0b", "0o9", "-", "- ", "? ", "<<: ", "= "),
    *("&a ", "*a", "[", "]", "{", "}", ", ", ": ", "\n", "\n  ", "'", '"', "|", ">", "%YAML 9.9", "---", "#", "\ufeff"),
)
lines_of_qrels = joined("q1", "q2", "d1", "d2", "\t", " ", "\n", "0", "1", "1.0", "-1", "query-id", "score", "\ufeff")
lines_of_runs = joined("q1", " Q0 ", "d1", " ", "\t", "\n", "1", "2.5", "nan", "-1e5", " run\n", "q1 Q0 d1 1 2.5 run\n")
vector_lines = st.lists(
    st.builds(
        lambda id, vector, separators: json.dumps(
            {"id": id, "contents": "", "vector": vector}, separators=separators, ensure_ascii=len(id) > 3
        ),
        ids | json_values.map(repr),
        st.dictionaries(st.text(max_size=5), st.integers(1, 9) | json_values, max_size=4),
        st.sampled_from([(", ", ": "), (",", ":")]),
    ),
    max_size=4,
).map(lambda lines: "\n".join([*lines, ""]).encode(errors="surrogatepass"))


def documents_of(path: Path) -> object:
    return BeirFolder(path, "any").size, list(BeirFolder(path, "any").documents())


def objects_of(path: Path) -> None:
    for _, value in jsonl.read(path):
        json.dumps(value, ensure_ascii=False).encode()  # it can be written again


def run_of_bytes(path: Path) -> None:
    run = trec.read_run(path)
    assert np.isfinite(run.scores).all() and len(run)


def vectors_of(path: Path) -> None:
    for where, line, id, contents in read_vectors([path]):
        checked = parse_checked(line, where)
        assert (id, contents.split()) == (checked[0], checked[1].split())


ANY: dict[str, tuple[st.SearchStrategy[bytes], list[Callable[[Path], Any]]]] = {  # by the end of a file's name
    ".jsonl": (json_lines | tables, [objects_of, lambda path: list(jsonl.read(path, ["text"])), documents_of]),
    ".vectors.jsonl": (vector_lines | json_lines, [vectors_of]),
    **dict.fromkeys([".csv", ".tsv", ".csv.gz", ".jsonl.gz"], (tables | json_lines, [documents_of])),
    ".parquet": (parquet_files(), [documents_of]),
    ".trec": (lines_of_runs, [run_of_bytes]),
    ".yaml": (tagged, [read_yaml, lambda path: load_index_config(str(path)), lambda path: load_encoder(str(path))]),
}


@pytest.mark.parametrize("suffix", ANY)
@given(st.data())
def test_any_bytes(fresh, suffix: str, data) -> None:
    strategy, readers = ANY[suffix]
    path = fresh() / f"a{suffix}"
    path.write_bytes(data.draw(strategy | damaged(strategy) | st.binary()))
    for read in readers:
        result(path, lambda read=read: read(path))


@given(lines_of_qrels | damaged(lines_of_qrels), tables | json_lines, st.sampled_from(["csv", "tsv", "jsonl", "xml"]))
def test_any_bytes_as_qrels_or_topics(fresh, qrels: bytes, topics: bytes, suffix: str) -> None:
    for name, data in (("qrels/test.tsv", qrels), (f"queries.{suffix}", topics)):
        folder = fresh()
        (folder / "corpus.csv").write_text("id,text\nd1,a\nd2,b\n")
        (folder / "queries.tsv").write_text("q1\ta\nq2\t \n")
        (folder / "qrels").mkdir()
        (folder / name).write_bytes(data)
        beir = BeirFolder(folder, "any")
        result(folder, partial(beir.check, "test"))
        topics_read = result(folder, partial(beir.topics, "test")) or {}
        assert all(text and "\n" not in text for text in topics_read.values())
        judged = list((result(folder, partial(beir.qrels, "test")) or {}).values())
        assert {document for grades in judged for document in grades} <= {"d1", "d2"}
        assert all(type(grade) is int for grades in judged for grade in grades.values())


documents = st.lists(st.tuples(ids, texts, texts), min_size=1, max_size=6, unique_by=lambda document: document[0])


def write_csv(path: Path, rows: Iterable[Iterable[str]]) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows(rows)


@given(documents)
def test_documents_come_back_from_every_format(fresh, rows: list[tuple[str, str, str]]) -> None:
    folder = fresh()
    columns = ("_id", "title", "text")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    write_csv(folder / "a.csv", [columns, *rows])
    jsonl.write(folder / "a.jsonl", records)
    parquet.write_table(pa.Table.from_pylist(records), folder / "a.parquet")
    for path in folder.iterdir():
        found = [(r.id, r.title, r.text) for r in BeirFolder(path, "any").records()]
        assert found == [(id, normalized(title), normalized(text)) for id, title, text in rows], path


@given(documents)
def test_documents_come_back_from_tsv(fresh, rows: list[tuple[str, str, str]]) -> None:
    lines = [(id, re.sub(r"[\r\n\t]", " ", text)) for id, text, _ in rows]
    for header in ("id\ttext\n", ""):
        path = fresh() / "a.tsv"
        path.write_text(header + "".join(f"{id}\t{text}\n" for id, text in lines), encoding="utf-8", newline="")
        if header or Columns().is_header(lines[0]) is False:
            assert [(v["id"], v["text"]) for _, v in read_records(path, Columns())] == lines


qrels = st.dictionaries(ids, st.dictionaries(ids, st.integers(-9, 9), min_size=1, max_size=3), min_size=1, max_size=3)


@given(qrels, st.booleans(), st.sampled_from(["", ".0"]))
def test_qrels_come_back(fresh, grades: dict[str, dict[str, int]], trec_format: bool, decimals: str) -> None:
    folder = fresh()
    (folder / "qrels").mkdir()
    known = {document for judged in grades.values() for document in judged}
    jsonl.write(folder / "corpus.jsonl", ({"id": id, "text": "x"} for id in known))
    between = " 0 " if trec_format else "\t"
    lines = [(q, d, f"{grade}{decimals}") for q, judged in grades.items() for d, grade in judged.items()]
    text = "".join(f"{q}{between}{d}{' ' if trec_format else between}{grade}\n" for q, d, grade in lines)
    (folder / "qrels" / "test.txt").write_text(text, encoding="utf-8", newline="")
    expected = {query: {document: max(grade, 0) for document, grade in of.items()} for query, of in grades.items()}
    assert BeirFolder(folder, "any").qrels("test") == expected


scores = st.floats(-3e38, 3e38)
hits = st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=4), min_size=1, max_size=3)


@given(hits)
def test_runs_come_back(fresh, found: dict[str, dict[str, float]]) -> None:
    path = fresh() / "run.trec"
    run = trec.run_of({query: list(hits.items()) for query, hits in found.items()})
    trec.write_run(run, path, "tag")
    assert [*trec.read_run(path)] == [*run]
    for query, hits in trec.scores_by_query(run).items():
        assert list(hits) == sorted(found[query], key=lambda id: -found[query][id])
        assert hits == pytest.approx(found[query], rel=1e-6, abs=1e-37)


@given(st.lists(ids, min_size=1, max_size=4), st.lists(ids, min_size=1, max_size=4, unique=True), st.randoms())
def test_json_vectors_come_back(fresh, rows: list[str], terms: list[str], draw) -> None:
    assume(not any("\x01" in term for term in terms))
    impacts = np.array([[draw.randint(0, 2) for _ in terms] for _ in rows], np.int32)
    path = fresh() / "a.jsonl"
    path.write_text("".join(json_vectors(rows, csr_matrix(impacts), terms)), encoding="utf-8", newline="")
    expected = [
        (id, {f"{term}\x01{impact}" for term, impact in zip(terms, row, strict=True) if impact})
        for id, row in zip(rows, impacts.tolist(), strict=True)
    ]
    assert [(id, set(contents.split())) for _, _, id, contents in read_vectors([path])] == expected


@given(
    st.builds(
        IndexConfig,
        name=texts,
        source=texts,
        split=texts,
        columns=st.dictionaries(st.sampled_from(["id", "title", "text"]), texts),
        k1=st.floats(0, 1e6),
        note=st.none() | texts,
    )
)
def test_collections_come_back_from_yaml(fresh, config: IndexConfig) -> None:
    path = fresh() / "a.yaml"
    assume(not (path.parent / config.source).exists())
    path.write_text(yaml.safe_dump(config.model_dump()), encoding="utf-8")
    assert load_index_config(str(path)) == config


@given(st.builds(EncoderConfig, name=texts.filter(bool), checkpoint=texts, bits=st.integers(1, 16), source=texts))
def test_encoders_come_back_from_yaml(fresh, config: EncoderConfig) -> None:
    path = fresh() / "a.yaml"
    assume(not (path.parent / config.checkpoint).exists() and not Path(config.checkpoint).exists())
    path.write_text(encoder_yaml(config, path.parent), encoding="utf-8")
    assert load_encoder(str(path)) == config
