"""Indexes, opened with stock Pyserini: what is in them, what it finds, and what is refused."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini import artifact, jvm
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import BeirFolder
from cai_pyserini.index import index_bm25, index_impacts
from cai_pyserini.search import query_impacts
from cai_pyserini.splade import Tokenizer
from cai_pyserini.vectors import Vectors
from tests.conftest import Command

Hits = list[tuple[str, float]]


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    """Start the JVM before anything imports Pyserini."""
    jvm.start()


@pytest.fixture
def write(tmp_path: Path):
    """Write lines of JSON vectors, or vectors by id as the impact stage writes them, and give their folder."""

    def of(lines: Iterable[str] | dict[str, dict[str, Any]], name: str = "00000.jsonl") -> Path:
        folder = tmp_path / "vectors"
        folder.mkdir(exist_ok=True)
        if isinstance(lines, dict):
            lines = [vector_line(id, vector) for id, vector in lines.items()]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return folder

    return of


def vector_line(id: str, vector: dict[str, Any]) -> str:
    return json.dumps({"id": id, "contents": "", "vector": vector}, ensure_ascii=False)


def reader(index: Path) -> Any:
    from pyserini.index.lucene import LuceneIndexReader

    return LuceneIndexReader(str(index))


def postings(index: Path, term: str) -> dict[str, int]:
    """Document id -> impact of a term, as stock Pyserini reads them."""
    stock = reader(index)
    found = stock.get_postings_list(term, analyzer=None) or []
    return {stock.convert_internal_docid_to_collection_docid(posting.docid): posting.tf for posting in found}


def search(index: Path, *queries: dict[str, int], hits: int = 100) -> list[Hits]:
    """What stock Pyserini finds for queries of impacts."""
    from pyserini.encode import QueryEncoder
    from pyserini.search.lucene import LuceneImpactSearcher

    class Given(QueryEncoder):
        def encode(self, text: str, **kwargs: Any) -> dict[str, int]:
            return json.loads(text)

    searcher = LuceneImpactSearcher(str(index), Given(), min_idf=-1)
    return [[(hit.docid, hit.score) for hit in searcher.search(json.dumps(query), hits)] for query in queries]


VECTORS = {
    "d1": {"fever": 3, "cold": 5},
    "d2": {"fever": 1},
    "d3": {"cold": 2, "##s": 7, "fever": 100},
    "d4": {"zinc": 1},
}


def test_stock_pyserini_reads_the_index(write, tmp_path: Path) -> None:
    index = index_impacts(write(VECTORS), tmp_path / "index")
    stats = reader(index).stats()
    assert (stats["documents"], stats["non_empty_documents"], stats["unique_terms"]) == (4, 4, 4)
    assert stats["total_terms"] == 3 + 5 + 1 + 2 + 7 + 100 + 1
    assert reader(index).get_term_counts("fever", analyzer=None) == (3, 104)
    assert postings(index, "fever") == {"d1": 3, "d2": 1, "d3": 100}
    assert postings(index, "##s") == {"d3": 7}


def test_scores_are_dot_products(write, tmp_path: Path) -> None:
    index = index_impacts(write(VECTORS), tmp_path / "index")
    everything, none, one = search(index, {"fever": 2, "cold": 10, "zinc": 9}, {"absent": 1}, {"##s": 3})
    assert everything == [("d3", 2 * 100 + 10 * 2), ("d1", 2 * 3 + 10 * 5), ("d4", 9), ("d2", 2)]
    assert none == []
    assert one == [("d3", 21)]


def test_a_term_of_every_document_counts(write, tmp_path: Path) -> None:
    index = index_impacts(write({"a": {"x": 1}, "b": {"x": 2}}), tmp_path / "index")
    assert search(index, {"x": 5}) == [[("b", 10), ("a", 5)]]


def test_files_are_indexed_in_order(write, tmp_path: Path) -> None:
    write({"b": {"x": 1}}, "00001.jsonl")
    index = index_impacts(write({"a": {"x": 1}}), tmp_path / "index")
    assert [reader(index).convert_internal_docid_to_collection_docid(i) for i in range(2)] == ["a", "b"]


def test_ties_are_by_document(write, tmp_path: Path) -> None:
    index = index_impacts(write({id: {"x": 3} for id in ("b", "10", "a", "9", "B")}), tmp_path / "index")
    assert [id for id, _ in search(index, {"x": 1})[0]] == ["10", "9", "B", "a", "b"]


@pytest.mark.parametrize("impact", [1, 255, 100_000, 16_777_216])
def test_impacts_small_and_large(write, tmp_path: Path, impact: int) -> None:
    index = index_impacts(write({"a": {"x": impact}, "b": {"x": 1}}), tmp_path / "index")
    assert postings(index, "x") == {"a": impact, "b": 1}
    assert search(index, {"x": 1})[0][0] == ("a", impact)


ODD_TERMS = [
    "|",
    '"',
    "\\",
    "#",
    ":",
    ",",
    "{",
    "}}",
    "'",
    "\u00a0x",
    "\u001f|",
    "β",
    "血圧",
    "🧬",
    "e\u0301",
    "[SEP]",
    "a|3",
]


def test_odd_terms_and_ids(write, tmp_path: Path) -> None:
    vector = {term: i for i, term in enumerate(ODD_TERMS, 1) if term.split() == [term]}
    vectors = {'"quoted"': vector, "血/圧\\": vector, "🧬": vector, "plain": {"|": 9}}
    index = index_impacts(write(vectors), tmp_path / "index")
    for term, impact in vector.items():
        wanted = {id: impact for id in vectors if id != "plain"} | ({"plain": 9} if term == "|" else {})
        assert postings(index, term) == wanted, term
    assert sorted(id for id, _ in search(index, {"|": 1})[0]) == sorted(vectors)


def test_an_odd_term_alone_goes_the_quick_way(write, tmp_path: Path) -> None:
    index = index_impacts(write({"a": {"|": 3, "🧬": 4, ":": 5, "a|3": 6}}), tmp_path / "index")
    assert [postings(index, term)["a"] for term in ("|", "🧬", ":", "a|3")] == [3, 4, 5, 6]


def test_a_term_of_the_longest_length(write, tmp_path: Path) -> None:
    term = "x" * 32766
    assert postings(index_impacts(write({"a": {term: 2}}), tmp_path / "index"), term) == {"a": 2}


def test_a_document_without_terms_is_a_document(write, tmp_path: Path) -> None:
    index = index_impacts(write({"a": {"x": 2}, "b": {}, "c": {"x": 1}}), tmp_path / "index")
    stats = reader(index).stats()
    assert (stats["documents"], stats["non_empty_documents"]) == (3, 2)
    assert artifact.require_manifest(index, "index")["documents"] == 3
    assert search(index, {"x": 1}) == [[("a", 2), ("c", 1)]]


@pytest.mark.parametrize(
    "line",
    [
        '{"id":"a","contents":"","vector":{"x":2,"y":3}}',
        '{"vector": {"x": 2, "y": 3}, "id": "a"}',
        '{ "id" : "a", "vector" : { "x" : 2 , "y" : 3 } }',
        '{"id": "a", "contents": "its text", "vector": {"x": 2, "y": 3}}',
        '{"id": "a", "contents": "", "vector": {"\\u0078": 2, "y": 3}}',
        '{"id": "a", "contents": "", "vector": {"x": 2, "y": 3}, "more": {"z": 1}}',
        '{"id": "a", "contents": "", "vector": {"x": 2, "y": 3}} ',
        '{"id": "a", "contents": "", "vector": {"x":2, "y":3}}',
        '{"id": "a", "contents": "", "vector": {"x": 2,"y": 3}}',
        '{"id": "a", "contents": "", "vector": {"x":  2,  "y": 3 }}',
    ],
)
def test_json_in_another_form(write, tmp_path: Path, line: str) -> None:
    index = index_impacts(write([line, vector_line("b", {"x": 1})]), tmp_path / "index")
    assert postings(index, "x") == {"a": 2, "b": 1}
    assert postings(index, "y") == {"a": 3}
    assert reader(index).stats()["unique_terms"] == 2


def test_a_file_without_a_last_newline(tmp_path: Path, write) -> None:
    folder = write([])
    (folder / "00000.jsonl").write_text(vector_line("a", {"x": 2}))
    assert postings(index_impacts(folder, tmp_path / "index"), "x") == {"a": 2}


SOUND = vector_line("a", {"x": 2})


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"id": "b", "contents": "", "vector": {"x": 2', "expected"),
        ('{"id": "b", "contents": "", "vector": {"x": }}', "expected"),
        ('{"id": "b", "contents": "", "vector": {"x"}}', "expected"),
        ('{"id": "b", "contents": ""}', "expected"),
        ('{"contents": "", "vector": {"x": 2}}', "expected"),
        ('{"id": "b", "contents": "", "vector": ["x"]}', "expected"),
        ('["b"]', "expected"),
        ("", "expected"),
        (vector_line("b", {"x": 0}), "the impact of 'x' is 0; it must be an integer from 1"),
        (vector_line("b", {"x": -3}), "the impact of 'x' is -3"),
        (vector_line("b", {"x": 2.0}), r"the impact of 'x' is 2\.0"),
        (vector_line("b", {"x": 1e3}), r"the impact of 'x' is 1000\.0"),
        (vector_line("b", {"x": "2"}), "the impact of 'x' is '2'"),
        (vector_line("b", {"x": True}), "the impact of 'x' is True"),
        (vector_line("b", {"x": None}), "the impact of 'x' is None"),
        (vector_line("b", {"x": {"y": 2}}), "the impact of 'x' is {'y': 2}"),
        (vector_line("b", {"x": 2**31}), "the impact of 'x' is 2147483648"),
        (vector_line("b", {"y": 1, "x": 0}), "the impact of 'x' is 0"),
        (vector_line("b", {"x y": 2}), "the term 'x y' is empty or has white space"),
        (vector_line("b", {"x\u2003y": 2}), r"the term 'x\\u2003y' is empty or has white space"),
        (vector_line("b", {"": 2}), "the term '' is empty"),
        (vector_line("b", {"x\x01y": 2}), "the term"),
        (vector_line("b", {"x" * 32767: 2}), r"the term x+… has 32,767 bytes; Lucene takes 32,766"),
        (vector_line("b", {"β" * 16384: 2}), r"the term β+… has 32,768 bytes"),
        (vector_line("b c", {"x": 2}), "the id 'b c' is no string, is empty or has white space"),
        (vector_line("", {"x": 2}), "the id ''"),
        ('{"id": 7, "contents": "", "vector": {"x": 2}}', "the id 7 is no string"),
        (SOUND, "document id 'a' is there twice"),
    ],
    ids=lambda value: value[:60],
)
def test_a_broken_line_is_named_and_nothing_is_left(write, tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(CaiError, match=rf"00000\.jsonl:2: {message}"):
        index_impacts(write([SOUND, line, vector_line("c", {"x": 1})]), tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


def test_the_same_id_in_another_file_is_named(write, tmp_path: Path) -> None:
    write([SOUND])
    with pytest.raises(CaiError, match=r"00001\.jsonl:1: document id 'a' is there twice"):
        index_impacts(write([SOUND], "00001.jsonl"), tmp_path / "index")


def test_a_line_that_is_not_utf_8_is_named(write, tmp_path: Path) -> None:
    folder = write([])
    (folder / "00000.jsonl").write_bytes(f"{SOUND}\n{vector_line('b', {'é': 1})}\n".encode("latin-1"))
    with pytest.raises(CaiError, match=r"00000\.jsonl:2: .*UTF-8"):
        index_impacts(folder, tmp_path / "index")


def test_after_a_failure_the_mended_vectors_are_indexed(write, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="impact"):
        index_impacts(write({"a": {"x": 0}}), tmp_path / "index")
    index = index_impacts(write({"a": {"x": 1}}), tmp_path / "index")
    assert postings(index, "x") == {"a": 1}


@pytest.mark.parametrize("empty", [True, False])
def test_no_vectors_are_refused(write, tmp_path: Path, empty: bool) -> None:
    folder = write([])
    if empty:
        (folder / "00000.jsonl").unlink()
    with pytest.raises(CaiError, match=r"no \*\.jsonl; make JSON vectors" if empty else "the JSON vectors are empty"):
        index_impacts(folder, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_made_anew_only_where_the_vectors_change(write, tmp_path: Path) -> None:
    def made() -> int:
        return index_impacts(tmp_path / "vectors", tmp_path / "index").joinpath("manifest.json").stat().st_ino

    write({"a": {"x": 1}})
    first = made()
    assert made() == first
    write({"a": {"x": 1}, "b": {"x": 2}})
    assert made() != first
    assert postings(tmp_path / "index", "x") == {"a": 1, "b": 2}


def anserini(*arguments: str | Path) -> None:
    """Run Anserini's own IndexCollection."""
    found = jvm.find_java()
    start = [found.command, *jvm.options(found), "-cp", str(jvm.anserini_jar()), "io.anserini.index.IndexCollection"]
    done = subprocess.run([*start, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def fields(index: Path) -> dict[str, tuple]:
    """How each field is indexed."""
    infos = jvm.java_class("org.apache.lucene.index.FieldInfos").getMergedFieldInfos(reader(index).reader)

    def of(info: Any) -> tuple:
        options, values = info.getIndexOptions().toString(), info.getDocValuesType().toString()
        return options, values, info.omitsNorms(), info.hasTermVectors(), info.hasPayloads()

    return {name: of(infos.fieldInfo(name)) for name in ("id", "contents")}


def test_the_index_is_as_anserinis_own(line: Path, checkpoint: Path, tmp_path: Path) -> None:
    collection = ["-collection", "JsonVectorCollection", "-generator", "DefaultLuceneDocumentGenerator"]
    paths = ["-input", line / "impacts" / "splade-idf", "-index", tmp_path / "theirs"]
    anserini(*collection, *paths, "-threads", "1", "-impact", "-pretokenized", "-optimize")
    ours, theirs = line / "indexes" / "splade-idf", tmp_path / "theirs"
    assert reader(ours).stats() == reader(theirs).stats()
    assert fields(ours)["id"] == fields(theirs)["id"]
    options, values, _, vectors, payloads = fields(theirs)["contents"]
    assert fields(ours)["contents"] == (options, values, True, vectors, payloads)  # norms would be of no use
    (shard,) = Vectors(line / "vectors" / "queries-test")
    queries = query_impacts(shard.matrix, Tokenizer(checkpoint).terms, 100)
    found = search(ours, *queries)
    assert min(map(len, found)) > 2
    assert found == search(theirs, *queries)


def bm25(index: Path, queries: Iterable[str], k1: float = 0.9, b: float = 0.4) -> list[Hits]:
    """What stock Pyserini finds for text."""
    from pyserini.search.lucene import LuceneSearcher

    searcher = LuceneSearcher(str(index))
    searcher.set_bm25(k1, b)
    return [[(hit.docid, hit.score) for hit in searcher.search(query, 100)] for query in queries]


def test_bm25_is_as_pyserinis_own(tiny: Path, tmp_path: Path, command: Command) -> None:
    collection = BeirFolder(tiny, "tiny")
    (tmp_path / "json").mkdir()
    lines = [json.dumps({"id": id, "contents": contents}) for id, contents in collection.documents()]
    (tmp_path / "json" / "all.jsonl").write_text("\n".join(lines))
    module = ["-m", "pyserini.index.lucene", "--collection", "JsonCollection", "--threads", "1", "--optimize"]
    paths = ["--generator", "DefaultLuceneDocumentGenerator", "--input", tmp_path / "json", "--index", tmp_path / "own"]
    done = command("cai_pyserini", *module, *paths, "--storePositions", "--storeDocvectors")
    assert done.returncode == 0, done.stderr
    ours = index_bm25(collection, tmp_path / "ours", threads=1)
    assert reader(ours).stats() == reader(tmp_path / "own").stats()
    queries = collection.topics("test").values()
    found = bm25(ours, queries)
    assert max(map(len, found)) > 2
    assert found == bm25(tmp_path / "own", queries)
    assert reader(ours).get_document_vector("d9")["insulin"] == 3  # RM3 needs vectors


def test_bm25_keeps_the_other_documents_of_an_empty_one(broken: Path, tmp_path: Path) -> None:
    with (broken / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "e", "title": "", "text": " "}\n{"_id": "f", "text": "zinc for cattle"}\n')
    index = index_bm25(BeirFolder(broken, "broken"), tmp_path / "index", threads=2)
    ((first, _), *_) = bm25(index, ["cattle"])[0]
    assert first == "f"
    assert sorted(id for id, _ in bm25(index, ["zinc"])[0]) == ["d11", "f"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "index"]
    assert not (index / "staging").exists()
