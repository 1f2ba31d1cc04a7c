"""`import cai_pyserini as cai`: the names, what they take and what they give."""

import ast
import doctest
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import ir_measures
import numpy as np
import pandas as pd
import pytest

import cai_pyserini as cai
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact
from cai_pyserini.runs.trec import read_run, scores_by_query
from cai_pyserini.vectors.shards import Vectors
from tests.cli.test_cli import HEAVY

NAMES = ["CaiError", "Encoder", "Engine", "Hit", "Run", "adapt", "compare", "evaluate", "fuse", "index"]
NAMES += ["open", "open_index", "run"]
TEXTS = ["Brachydactyly: short digits of the hand", "Macrocephaly: an enlarged skull"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(run_folder: Path):
    with cai.open(str(run_folder)) as opened:
        yield opened


def test_the_names_are_listed_and_imported_when_they_are_used() -> None:
    assert cai.__all__ == NAMES and dir(cai) == sorted([*NAMES, "__version__"])
    code = "import sys, cai_pyserini\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not (HEAVY | {"numpy", "pydantic", "yaml"}) & set(done.stdout.split())
    with pytest.raises(AttributeError, match="no attribute 'indx'"):
        cai.indx  # noqa: B018
    # a module of one of these names would take its place
    assert not {path.stem for path in Path(cai.__file__).parent.iterdir()} & {*NAMES}


def test_errors_name_settings_not_flags() -> None:
    """The fault: a Python user is told to give `--output`. A command in backticks may have flags."""
    code = "import sys, cai_pyserini.api, cai_pyserini.trainer.adapt\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = [name for name in done.stdout.split() if name.startswith("cai_pyserini.")]
    assert len(names) > 100
    for file in filter(
        Path.is_file, (Path(cai.__file__).parents[1] / f"{name.replace('.', '/')}.py" for name in names)
    ):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("CaiError", "ValueError", "logger.warning"):
                message = "".join(part.value for part in ast.walk(node) if isinstance(getattr(part, "value", 0), str))
                assert file.stem == "flags" or not re.search("--[a-z]", re.sub("`.*?`", "", message)), message


@pytest.mark.parametrize("name", sorted({*NAMES} - {"adapt", "CaiError", "Hit"}))
def test_examples_work(
    java: None, name: str, tmp_path: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each name has an example, but for `adapt`, which takes minutes."""
    monkeypatch.chdir(tmp_path)
    Path("tests").symlink_to(Path(__file__).parent)
    Path("runs").mkdir()
    if name != "run":
        Path("runs/tiny").symlink_to(run_folder)
    text = inspect.getdoc(getattr(cai, name)) or ""
    assert ">>> " in text
    example = doctest.DocTestParser().get_doctest(text, {"cai": cai}, name, None, 0)
    assert doctest.DocTestRunner().run(example).failed == 0


def test_a_query_or_several(run: cai.Run) -> None:
    engine = run["bm25"]
    (first, *_) = hits = engine.search("phytate and cancer", k=2)
    assert engine.search(["phytate and cancer", "bladder"], k=2) == [hits, engine.search("bladder", k=2)]
    assert (first.rank, first.id, first.title) == (1, "d1", "Phytate and colon cancer")
    assert first.text.startswith("Dietary phytate") and first.metadata == {"year": 1998}
    explained = engine.explain("phytate and cancer", first.id)
    assert explained == engine.explain("phytate and cancer", [first.id])["d1"]
    assert explained.score == pytest.approx(first.score, abs=1e-3)
    assert str(explained).startswith("1. d1, score ") and "phytat" in str(explained)
    with pytest.raises(cai.CaiError, match="bm25 has no document 'd99'"):
        engine.explain("phytate", "d99")
    assert run["bm25"] is engine and run.best.name == run.systems[0]


def test_rankings_are_those_of_the_run(run: cai.Run, run_folder: Path, tiny: Path) -> None:
    topics = load_collection(str(tiny)).topics("test")
    frame = pd.DataFrame({"qid": list(topics), "query": list(topics.values())})
    ranking = run["hybrid-splade-idf"].rank(topics)
    pd.testing.assert_frame_equal(run["hybrid-splade-idf"].rank(frame), ranking)
    assert list(ranking.columns) == ["query_id", "doc_id", "score", "rank"]
    expected = scores_by_query(read_run(run_folder / "runs" / "hybrid-splade-idf.trec"))
    own = {query: {hit: score for hit, score in found.items() if hit != query} for query, found in scores_by_query(
        ranking.astype({"query_id": "category", "doc_id": "category"})
    ).items()}  # fmt: skip
    assert own.keys() == expected.keys()
    assert all(own[query] == pytest.approx(found, abs=1e-5) for query, found in expected.items())
    with pytest.raises(cai.CaiError, match="columns id: expected query_id and text or qid and query"):
        run["bm25"].rank(pd.DataFrame({"id": ["1"]}))
    with pytest.raises(cai.CaiError, match="query 'q' occurs twice"):
        run["bm25"].rank(pd.DataFrame({"qid": ["q", "q"], "query": ["a", "b"]}))


def test_measures_are_those_of_the_table(run: cai.Run, run_folder: Path, tiny: Path) -> None:
    files = {name: run_folder / "runs" / f"{name}.trec" for name in ("bm25", "splade-idf")}
    qrels = load_collection(str(tiny)).qrels("test")
    rows = [(query, document, grade) for query, grades in qrels.items() for document, grade in grades.items()]
    others = [
        pd.DataFrame(rows, columns=["query_id", "doc_id", "relevance"]),
        [ir_measures.Qrel(*row) for row in rows],
        str(tiny),
        tiny / "qrels" / "test.tsv",
    ]
    measured = {name: cai.evaluate(path, qrels) for name, path in files.items()}
    for name, means in measured.items():
        assert means == pytest.approx(run.measures.loc[name, list(means)].to_dict())
        assert all(cai.evaluate(read_run(files[name]), other) == means for other in others)
    difference = measured["splade-idf"]["nDCG@10"] - measured["bm25"]["nDCG@10"]
    assert cai.compare(files["bm25"], files["splade-idf"], qrels) == (pytest.approx(difference), None)
    fused = cai.fuse([files["bm25"], files["splade-idf"]])
    hybrid = read_run(run_folder / "runs" / "hybrid-splade-idf.trec")
    assert fused["doc_id"].tolist() == hybrid["doc_id"].tolist()
    with pytest.raises(cai.CaiError, match="a ranking has no column doc_id, but query_id, docno"):
        cai.evaluate(pd.DataFrame({"query_id": ["q"], "docno": ["d"]}), qrels)


def test_documents_as_people_have_them(java: None, tiny: Path, tmp_path: Path) -> None:
    """Texts, dicts, a file and a folder; the same call again does nothing."""
    records = [{"id": f"d{n}", "title": "", "text": text, "year": 2000 + n} for n, text in enumerate(TEXTS)]
    folder = tmp_path / "runs" / "mine"
    with cai.index(records, folder, metadata={"year": "number"}) as index:
        (hit,) = index.search("skull", filter="year>=2001")
        assert (hit.id, hit.text, hit.metadata) == ("d1", TEXTS[1], {"year": 2001})
    made = artifact.read_manifest(folder / "indexes" / "joint-splade-idf")
    with cai.index(iter(records), str(folder), metadata={"year": "number"}) as index:
        assert artifact.read_manifest(folder / "indexes" / "joint-splade-idf") == made
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "file.jsonl").write_text(lines)
    with cai.index(tmp_path / "file.jsonl", tmp_path / "of-file", system="bm25", metadata={"year": "number"}) as index:
        assert [hit.id for hit in index.search("skull")] == ["d1"]
    (tmp_path / "other.jsonl").write_text("{}")
    with pytest.raises(cai.CaiError, match=r"other\.jsonl is not what an index in .*other was made of"):
        cai.index(records, tmp_path / "other")
    with pytest.raises(cai.CaiError, match="document 1, counted from 0, has no `text`, but only id"):
        cai.index([TEXTS[0], {"id": "d1"}])
    with pytest.raises(cai.CaiError, match="unknown key depht; did you mean depth"):
        cai.run(tiny, depht=3)
    with pytest.raises(cai.CaiError, match=r"mine is a finished run: open it with cai\.open\("):
        cai.index(folder)
    with pytest.raises(cai.CaiError, match=r"runs has no finished run; did you mean .*runs/mine\?"):
        cai.open(folder.parent)


@pytest.mark.parametrize(
    "documents",
    [
        {"a": "a cat", "b": "a dog"},
        pd.DataFrame([{"id": "a", "text": "a cat", "title": None}, {"id": "b", "text": "a dog"}]),
    ],
)
def test_other_containers_of_documents(java: None, documents: object) -> None:
    """Iterating over them would give ids, or names of columns. Two words have no spans to estimate alpha from."""
    with cai.index(documents) as index:  # type: ignore[arg-type]
        assert [hit.id for hit in index.search("dog", k=1)] == ["b"]


@pytest.mark.parametrize(
    "documents, message",
    [
        (None, "documents are a NoneType: give a path, texts or dicts"),
        ([], "there are no documents"),
        ([("d1", "text")], "document 0, counted from 0, is a tuple: give a text or a dict"),
    ],
)
def test_what_is_not_documents_is_refused(documents: object, message: str) -> None:
    with pytest.raises(cai.CaiError, match=message):
        cai.index(documents)  # type: ignore[arg-type]


def test_a_run_is_a_container_of_systems(run: cai.Run) -> None:
    assert [*run] == run.systems and len(run) == len(run.systems) and "joint" in run and "jont" not in run
    with pytest.raises(AttributeError, match=r"but its systems have: run\.best\.search, or "):
        run.search("fever")  # type: ignore[attr-defined]
    for query, k, message in [("fever", 0, "k is 0: give the number of hits"), ({"q": "fever"}, 10, "this is a dict")]:
        with pytest.raises(cai.CaiError, match=message):
            run["bm25"].search(query, k)  # type: ignore[call-overload]


def test_an_encoder_has_the_methods_of_sentence_transformers(run_folder: Path, tiny: Path) -> None:
    encoder = cai.Encoder("splade-tiny", device="cpu", precision="float32")
    texts = [f"{record.title} {record.text}" for record in load_collection(str(tiny)).records()]
    stored = next(iter(Vectors(run_folder / "vectors" / "documents"))).vectors
    assert abs(encoder.encode_document(texts) - stored).max() < 0.05  # which may be in bfloat16
    one = encoder.encode_document(texts[0])
    assert one.shape == (1, 30522) and abs(one - encoder.encode_document(texts)[0]).max() < 1e-4
    bow = encoder.encode_query("short short fingers", query="bow")
    assert sorted(encoder.decode(bow)) == [("fingers", 1.0), ("short", 2.0)]
    assert np.shape(cai.Encoder("minilm", device="cpu").encode_query("short fingers")) == (384,)
