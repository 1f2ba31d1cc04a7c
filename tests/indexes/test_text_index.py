"""BM25 indexes, opened with stock Pyserini, and docT5query's appended queries."""

import json
import shutil
from pathlib import Path

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import text_index as stage
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.text_index import index_bm25
from tests.conftest import DATA, Command, stage_command
from tests.indexes.stock import bm25, reader, run_module

main = stage_command("index")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.mark.parametrize("name, document", [("tiny", "d9"), ("de", "grippe"), ("ja", "grippe")])
def test_bm25_is_as_pyserinis_own(name: str, document: str, tmp_path: Path) -> None:
    collection = load_collection(str(DATA / f"{name}.yaml"))
    (tmp_path / "json").mkdir()
    lines = [json.dumps({"id": id, "contents": contents}) for id, contents in collection.documents()]
    (tmp_path / "json" / "all.jsonl").write_text("\n".join(lines))
    paths = ["--input", tmp_path / "json", "--index", tmp_path / "own", "--storePositions", "--storeDocvectors"]
    kind = ["--collection", "JsonCollection", "--generator", "DefaultLuceneDocumentGenerator"]
    kind += ["--language", collection.language]
    run_module("pyserini.index.lucene", *kind, *paths, "--threads", 1, "--optimize")
    ours = index_bm25(collection, tmp_path / "ours", threads=1)
    assert reader(ours).stats() == reader(tmp_path / "own").stats()
    queries, language = collection.topics("test").values(), None if name == "tiny" else collection.language
    found = bm25(ours, queries, language=language)
    assert max(map(len, found)) > 2
    assert found == bm25(tmp_path / "own", queries, language=language)
    assert (found != bm25(ours, queries)) == bool(language)
    searcher = open_searcher(ours)
    assert [searcher.search(query, 100) for query in queries] == [
        [(id, pytest.approx(score, abs=1e-5)) for id, score in hits] for hits in found
    ]
    vectors = [reader(index).get_document_vector(document) for index in (ours, tmp_path / "own")]
    assert vectors[0] == vectors[1] and len(vectors[0]) > 5  # RM3 needs them


def test_bm25_keeps_the_other_documents_of_an_empty_one(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (broken / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "e", "title": "", "text": " "}\n{"_id": "f", "text": "zinc for cattle"}\n')
    index = tmp_path / "index"
    main(["bm25", "--collection", str(broken), "--output", str(index), "--threads", "2"])
    assert capsys.readouterr().out.startswith(f"{index}: 13 documents, ")
    ((first, _), *_) = bm25(index, ["cattle"])[0]
    assert first == "f"
    assert sorted(id for id, _ in bm25(index, ["zinc"])[0]) == ["d11", "f"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "index"]
    assert not [path for path in index.iterdir() if path.is_dir()]


def test_paths_and_collectors_are_those_of_the_user_whatever_the_locale(
    tiny: Path, run_folder: Path, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "döner"
    shutil.copytree(tiny, folder / "tiny")
    shutil.copy(tiny.with_suffix(".yaml"), folder)  # with metadata, which is written in the process of the command
    environment = {"LC_ALL": "POSIX", "JAVA_TOOL_OPTIONS": "-XX:+UseG1GC"}
    paths = ["--collection", folder / "tiny.yaml", "--output", folder / "indéx"]
    done = command("cai_pyserini", "stage", "index", "bm25", *paths, **environment)
    assert done.returncode == 0, done.stderr
    assert bm25(folder / "indéx", ["insulin"]) == bm25(run_folder / "indexes" / "bm25", ["insulin"]) != [[]]


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    """Generated queries: two of d7, one of d8, of which a word is nowhere else."""
    folder = tmp_path / "generated"
    (folder / "qrels").mkdir(parents=True)
    queries = {"g1": "tonsil removal", "g2": "quinsy", "g3": "ague"}
    lines = [json.dumps({"_id": id, "text": text}) + "\n" for id, text in queries.items()]
    (folder / "queries.jsonl").write_text("".join(lines))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\ng1\td7\t1\ng2\td7\t1\ng3\td8\t1\n")
    return folder


def test_generated_queries_are_appended_to_their_documents(
    tiny: Path, generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "MIN_DOCUMENTS", 5)  # so that there are two processes
    documents = BeirFolder(tiny, "tiny")
    index = index_bm25(documents, tmp_path / "index", 2, BeirFolder(generated, "generated"))
    assert reader(index).get_document_vector("d7") == {"tonsillectomi": 1, "tonsil": 1, "remov": 1, "quinsi": 1}
    found = bm25(index, ["quinsy", "ague", "insulin"])
    assert [[id for id, _ in hits] for hits in found] == [["d7"], ["d8"], ["d9"]]
    assert artifact.require(index, "index").stats["documents"] == 12
    with_queries = artifact.require(index, "index").digest
    assert artifact.require(index_bm25(documents, index, 1), "index").digest != with_queries
    assert bm25(index, ["quinsy"]) == [[]]


def test_passages_have_the_generated_queries_of_their_documents(tiny: Path, generated: Path, tmp_path: Path) -> None:
    """Those of a passage's own id too; none was found, as the ids of passages are others."""
    passages = BeirFolder(tiny, "tiny").in_passages(3, 1)
    with (generated / "queries.jsonl").open("a") as file:
        file.write('{"_id": "g4", "text": "spotlessness"}\n')
    with (generated / "qrels" / "train.tsv").open("a") as file:
        file.write("g4\td1#1\t1\ng2\td1\t1\n")
    index = index_bm25(passages, tmp_path / "index", 1, BeirFolder(generated, "generated"))
    parts = {record.id for record in passages.records() if record.id.startswith(("d1#", "d7#"))}
    quinsy, spotless = bm25(index, ["quinsy", "spotlessness"])
    assert {id for id, _ in quinsy} == parts and len(parts) > 3 and [id for id, _ in spotless] == ["d1#1"]


def test_generated_queries_of_other_documents_are_refused(
    tiny: Path, generated: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    qrels = generated / "qrels" / "train.tsv"
    qrels.write_text(qrels.read_text().replace("d8", "doc8"))
    index_bm25(BeirFolder(tiny, "tiny"), tmp_path / "index", 1, BeirFolder(generated, "generated"))
    document = "document 'doc8' of the generated queries is not in collection tiny (1 of 2 such documents)"
    assert f"{qrels}:4: {document}: their queries are left out" in caplog.messages
    qrels.write_text(qrels.read_text().replace("\td", "\tDoc"))
    with pytest.raises(CaiError, match=r"train\.tsv:2: document 'Doc7' .* \(2 of 2 .*whose ids are such as 'd1'"):
        index_bm25(BeirFolder(tiny, "tiny"), tmp_path / "other", 1, BeirFolder(generated, "generated"))
    qrels.write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(CaiError, match="generated: its qrels, split 'train', assign no query to any document"):
        index_bm25(BeirFolder(tiny, "tiny"), tmp_path / "other", 1, BeirFolder(generated, "generated"))
