"""Impact indexes, opened with stock Pyserini: what is in them, what it finds, and what is refused."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact, terminal
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.retrieve import queries_for
from tests.conftest import stage_command
from tests.indexes.stock import everything, postings, reader, run_module, search
from tests.vectors.test_json_vectors import BROKEN, vector_line

main = stage_command("index")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture
def write(tmp_path: Path):
    """A function that writes lines of JSON vectors, or vectors by id as the impact stage does; returns the folder."""

    def write_file(lines: Iterable[str] | dict[str, dict[str, Any]], name: str = "00000.jsonl") -> Path:
        folder = tmp_path / "vectors"
        folder.mkdir(exist_ok=True)
        if isinstance(lines, dict):
            lines = [vector_line(id, vector) for id, vector in lines.items()]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return folder

    return write_file


VECTORS = {
    "d1": {"fever": 3, "cold": 5},
    "d2": {"fever": 1},
    "d3": {"cold": 2, "##s": 7, "fever": 100},
    "d4": {"zinc": 1},
}


def test_stock_pyserini_reads_and_searches_the_index(write, tmp_path: Path) -> None:
    write({"b": {"odd": 1}}, "00001.jsonl")  # comes after the other file
    index = index_impacts(write(VECTORS | {"none": {}, "a": {"odd": 1}}), tmp_path / "index")
    stats = reader(index).stats()
    assert (stats["documents"], stats["non_empty_documents"], stats["unique_terms"]) == (7, 6, 5)
    assert stats["total_terms"] == 3 + 5 + 1 + 2 + 7 + 100 + 1 + 1 + 1
    assert artifact.require(index, "index").stats["documents"] == 7
    assert reader(index).get_term_counts("fever", analyzer=None) == (3, 104)
    assert [(id, vector) for id, _, vector in everything(index)] == [
        *VECTORS.items(),
        ("none", {}),
        ("a", {"odd": 1}),
        ("b", {"odd": 1}),
    ]
    both, none, one = search(index, {"fever": 2, "cold": 10, "zinc": 9}, {"absent": 1}, {"##s": 3})
    assert both == [("d3", 2 * 100 + 10 * 2), ("d1", 2 * 3 + 10 * 5), ("d4", 9), ("d2", 2)]
    assert none == [] and one == [("d3", 21)]


def test_ties_are_by_document_also_for_a_term_of_every_document(write, tmp_path: Path) -> None:
    index = index_impacts(write({id: {"x": 3} for id in ("b", "10", "a", "9", "B")}), tmp_path / "index")
    found = search(index, {"x": 1})[0]  # which Pyserini tells apart by tiny amounts
    assert [(id, round(score, 3)) for id, score in found] == [(id, 3) for id in ("10", "9", "B", "a", "b")]


@pytest.mark.parametrize("impact", [1, 255, 100_000, 16_777_216])
def test_impacts_small_and_large(write, tmp_path: Path, impact: int) -> None:
    index = index_impacts(write({"a": {"x": impact}, "b": {"x": 1}}), tmp_path / "index")
    assert postings(index, "x") == {"a": impact, "b": 1}
    assert search(index, {"x": 1})[0][0] == ("a", impact)


ODD_TERMS = [
    *("|", '"', "\\", "#", ":", ",", "{", "}}", "'", "β", "血圧", "🧬", "e\u0301", "[SEP]", "a|3"),
    *("\u00a0x", "\u001f|"),  # with white space, as Python sees it: left out below
    "x" * 32766,  # the longest
]


def test_odd_terms_and_ids(write, tmp_path: Path) -> None:
    vector = {term: i for i, term in enumerate(ODD_TERMS, 1) if term.split() == [term]}
    quick = {
        "|": 9,
        "🧬": 4,
        ":": 5,
        "a|3": 6,
        "\u2581fever": 3,
        "\u0120cold": 2,
    }  # with the marks of spaces of tokenizers
    vectors = {'"quoted"': vector, "血/圧\\": vector, "🧬": vector, "plain": quick}
    index = index_impacts(write(vectors), tmp_path / "index")
    for term, impact in vector.items():
        expected = {id: impact for id in vectors if id != "plain"} | ({"plain": quick[term]} if term in quick else {})
        assert postings(index, term) == expected, term
    assert sorted(id for id, _ in search(index, {"|": 1})[0]) == sorted(vectors)
    assert postings(index, "\u2581fever") == {"plain": 3} and postings(index, "\u0120cold") == {"plain": 2}


VALID_LINE = vector_line("a", {"x": 2})


@pytest.mark.parametrize(
    "line, message", [*BROKEN, (VALID_LINE, "document id 'a' occurs twice")], ids=lambda value: value[:60]
)
def test_a_broken_line_is_named_and_nothing_is_left(write, tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(CaiError) as error:
        index_impacts(write([VALID_LINE, line, vector_line("c", {"x": 1})]), tmp_path / "index")
    assert str(error.value).startswith(f"{tmp_path / 'vectors'}/00000.jsonl:2: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


@pytest.mark.parametrize("empty", [True, False])
def test_no_vectors_are_refused(write, tmp_path: Path, empty: bool) -> None:
    folder = write([])
    if empty:
        (folder / "00000.jsonl").unlink()
    with pytest.raises(CaiError, match=r"no \*\.jsonl; make JSON vectors" if empty else "the JSON vectors are empty"):
        index_impacts(folder, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_made_again_only_where_the_vectors_change(write, tmp_path: Path) -> None:
    def make(vectors: dict[str, dict[str, int]]) -> Path:
        return index_impacts(write(vectors), tmp_path / "index")

    before = make({"a": {"x": 1}}).stat().st_ino
    assert make({"a": {"x": 1}}).stat().st_ino == before
    index = make({"a": {"x": 1}, "b": {"x": 2}})
    assert index.stat().st_ino != before
    assert postings(index, "x") == {"a": 1, "b": 2}


@pytest.fixture
def many(write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """JSON vectors of 90 documents with many equal scores, in 5 files, each of which is enough for a process."""
    monkeypatch.setattr("cai_pyserini.indexes.impact_index.MIN_BYTES", 1)
    draw = random.Random(0)
    for number in range(5):
        ids = [f"d{document}" for document in range(18 * number, 18 * (number + 1))]
        vectors = {id: {f"t{draw.randrange(9)}": draw.randint(1, 2) for _ in range(3)} for id in ids}
        folder = write(vectors, f"{number}.jsonl")
    return folder


def test_processes_write_the_index_that_one_writes(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus.jsonl"  # with one document more
    corpus.write_text("".join(f'{{"_id": "d{n}", "text": "text {n}"}}\n' for n in range(91)))
    documents = BeirFolder(corpus, "corpus")
    two = index_impacts(many, tmp_path / "two", documents, threads=2, forward_index=True)
    monkeypatch.setattr("cai_pyserini.indexes.writer.RAM_BUFFER_MB", 1e-3)  # the one process writes several segments
    one = index_impacts(many, tmp_path / "one", documents, threads=1, forward_index=True)
    vectors = [json.loads(line) for file in sorted(many.iterdir()) for line in file.read_text().splitlines()]
    expected = [
        (line["id"], json.dumps({"id": line["id"], "contents": f" text {line['id'][1:]}"}), line["vector"])
        for line in vectors
    ]
    assert everything(one) == everything(two) == expected
    assert reader(one).stats() == reader(two).stats() and reader(one).stats()["unique_terms"] == 9
    queries = [{f"t{term}": 1} for term in range(9)]
    assert search(one, *queries) == search(two, *queries)
    assert not [path for path in two.iterdir() if path.is_dir()]
    forward = [{path.name: path.read_bytes() for path in index.glob("forward.*")} for index in (one, two)]
    assert forward[0] == forward[1] and len(forward[0]) == 4
    stats = [artifact.require(index, "index").stats["documents"] for index in (one, two)]
    assert stats == [90, 90]


@pytest.mark.parametrize(
    "line, message",
    [
        (vector_line("d0", {"t1": 1}), "document id 'd0' occurs twice"),
        ('{"id": "last", "vector": {"t1": -3}}', "the impact of 't1' is -3"),
    ],
)
def test_an_error_of_a_process_is_that_of_the_command(
    many: Path, tmp_path: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (many / "4.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(SystemExit, match="1"):
        terminal.run(lambda: main(["impact", "--input", str(many), "--output", str(tmp_path / "index"), "--threads=2"]))
    assert capsys.readouterr().err.startswith(f"error: {many / '4.jsonl'}:19: {message}")
    assert not list(tmp_path.glob("*index*"))


def fields(index: Path) -> dict[str, tuple]:
    """How each field is indexed."""
    infos = jvm.java_class("org.apache.lucene.index.FieldInfos").getMergedFieldInfos(reader(index).reader)
    options = {}
    for name in ("id", "contents"):
        info = infos.fieldInfo(name)
        kinds = info.getIndexOptions().toString(), info.getDocValuesType().toString()
        options[name] = (*kinds, info.omitsNorms(), info.hasTermVectors(), info.hasPayloads())
    return options


@pytest.mark.parametrize("name", ["splade-idf", "joint-splade-idf"])
def test_the_index_is_as_anserinis_own(name: str, run_folder: Path, tiny: Path, tmp_path: Path) -> None:
    kind = ["--collection", "JsonVectorCollection", "--generator", "DefaultLuceneDocumentGenerator"]
    paths = ["--input", run_folder / "impacts" / name, "--index", tmp_path / "theirs"]
    run_module("pyserini.index.lucene", *kind, *paths, "--threads", 1, "--impact", "--pretokenized", "--optimize")
    ours, theirs = run_folder / "indexes" / name, tmp_path / "theirs"
    assert reader(ours).stats() == reader(theirs).stats()
    assert fields(ours)["id"] == fields(theirs)["id"]
    options, values, _, vectors, payloads = fields(theirs)["contents"]
    assert fields(ours)["contents"] == (options, values, True, vectors, payloads)  # norms would be of no use
    queries = queries_for(ours, BeirFolder(tiny, "tiny").topics("test")).for_search(100)[0].values()
    assert any("bm25:infect" in query for query in queries) == name.startswith("joint")
    found = search(ours, *queries)
    assert min(map(len, found)) > 2
    assert found == search(theirs, *queries)


def test_impacts_of_fewer_documents_than_the_manifest_says_are_refused(tmp_path: Path) -> None:
    def make(folder: Path) -> artifact.Stats:
        for number, ids in enumerate((["d1", "d2"], ["d3", "d4"])):
            lines = [vector_line(id, VECTORS[id]) for id in ids]
            (folder / f"{number:05d}.jsonl").write_text("\n".join([*lines, ""]))
        (folder / "encoder.yaml").write_text("checkpoint: none")
        return {"vectors": 5, "shards": 2}

    impacts = artifact.make(tmp_path / "impacts", artifact.recipe("impact", {}), make)
    with pytest.raises(CaiError, match="impacts has 4 documents, its manifest says 5"):
        index_impacts(impacts, tmp_path / "index")
    assert not (tmp_path / "index").exists()


TEXT = "A case report without a title: a myocardial infarction in a marathon runner."


def stored(index: Path, id: str) -> dict | None:
    """A document as stock Pyserini shows it."""
    raw = reader(index).doc_raw(id)
    return raw and json.loads(raw)


@pytest.mark.parametrize("name", ["bm25", "splade-idf", "joint-splade-idf"])
def test_stock_pyserini_shows_documents(run_folder: Path, name: str) -> None:
    from pyserini.search.lucene import LuceneImpactSearcher, LuceneSearcher

    from cai_pyserini.plugin.encoders import CaiQueryEncoder

    index = str(run_folder / "indexes" / name)
    searcher = LuceneSearcher(index) if name == "bm25" else LuceneImpactSearcher(index, CaiQueryEncoder(index))
    assert json.loads(searcher.doc("d3").raw()) == {
        "id": "d3",
        "title": "Aromatase",
        "metadata": {"year": 2011},
        "contents": "Aromatase Phytochemicals that inhibit aromatase may prevent breast cancer.",
    }
    assert json.loads(searcher.doc("d6").raw()) == {"id": "d6", "contents": f" {TEXT}"}
    assert searcher.doc("no such document") is None


def test_what_is_stored_is_what_was_asked_for(run_folder: Path, tiny: Path, tmp_path: Path) -> None:
    impacts, index = run_folder / "impacts" / "splade-idf", tmp_path / "index"
    main(["impact", "--input", str(impacts), "--output", str(index)])
    assert stored(index, "d6") is None
    index_impacts(impacts, index, BeirFolder(tiny, "tiny", ["text"]))  # which are the fields that are searched
    assert stored(index, "d6") == {"id": "d6", "contents": TEXT}


def test_another_collection_is_refused(run_folder: Path, broken: Path, tmp_path: Path) -> None:
    lines = (broken / "corpus.jsonl").read_text().splitlines()
    (broken / "corpus.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(CaiError, match="was made of other documents than broken has now: make its vectors again"):
        index_impacts(run_folder / "impacts" / "splade-idf", tmp_path / "index", BeirFolder(broken, "broken"))
    assert not (tmp_path / "index").exists()


def test_command(write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "index"
    main(["impact", "--input", str(write(VECTORS)), "--output", str(index)])
    assert capsys.readouterr().out.startswith(f"{index}: 4 documents, ")
    with pytest.raises(CaiError, match="vectors has files that this command has not made"):
        main(["impact", "--input", str(tmp_path / "vectors"), "--output", str(tmp_path / "vectors")])
    assert [path.name for path in (tmp_path / "vectors").iterdir()] == ["00000.jsonl"]
