"""`import cai_pyserini as cai`: the names, what they take and what they give."""

import ast
import asyncio
import doctest
import inspect
import json
import math
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pytest

import cai_pyserini as cai
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact
from cai_pyserini.experiments.settings import RunOptions, RunSettings
from cai_pyserini.runs.trec import read_run, scores_by_query
from cai_pyserini.vectors.shards import Vectors
from tests.cli.test_cli import HEAVY

NAMES = ["CaiError", "Encoder", "Engine", "Hit", "Run", "adapt", "compare", "evaluate", "fuse", "index"]
NAMES += ["open", "open_index", "run"]
HITS = ["query_id", "q0", "doc_id", "rank", "score", "tag"]
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
    names, seen = ["cai_pyserini.engine.api", "cai_pyserini.trainer.adapt"], set()
    while names:
        file = Path(cai.__file__).parents[1] / f"{names.pop().replace('.', '/')}.py"
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cai_pyserini."):
                names += [str(node.module), *(f"{node.module}.{name.name}" for name in node.names)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("CaiError", "ValueError", "logger.warning"):
                message = "".join(part.value for part in ast.walk(node) if isinstance(getattr(part, "value", 0), str))
                assert file.stem == "flags" or not re.search("--[a-z]", re.sub("`.*?`", "", message)), message
    assert len(seen) > 100


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
    own = {
        query: {hit: score for hit, score in zip(found["doc_id"], found["score"], strict=True) if hit != query}
        for query, found in ranking.groupby("query_id")
    }
    assert own.keys() == expected.keys()
    assert all(own[query] == pytest.approx(found, abs=1e-5) for query, found in expected.items())
    with pytest.raises(cai.CaiError, match="query 0, counted from 0: no 'text' or 'query'"):
        run["bm25"].rank(pd.DataFrame({"id": ["1"]}))
    with pytest.raises(cai.CaiError, match="query 'q' occurs twice"):
        run["bm25"].rank(pd.DataFrame({"qid": ["q", "q"], "query": ["a", "b"]}))


def test_measures_are_those_of_the_table(
    run: cai.Run, run_folder: Path, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
        assert all(cai.evaluate(scores_by_query(read_run(files[name])), other) == means for other in others)
    difference = measured["splade-idf"]["nDCG@10"] - measured["bm25"]["nDCG@10"]
    given = [
        ([*files.values()], qrels),
        ({name: scores_by_query(read_run(path)) for name, path in files.items()}, str(tiny)),
        ({name: pd.read_csv(path, sep=" ", names=HITS) for name, path in files.items()}, others[0]),
    ]
    for rankings, judged in given:
        compared = cai.compare(rankings, judged)
        found = compared.comparisons["splade-idf"]
        assert compared.baseline == "bm25" and compared.systems == {n: pytest.approx(m) for n, m in measured.items()}
        assert compared.pairs == {"bm25": {"splade-idf": found}} and found.p is None
        assert found.difference == pytest.approx(difference)
    for of_run in (cai.compare(run, systems=["splade-idf", "bm25"]), cai.compare(run_folder, measures=["nDCG@10"])):
        assert of_run.comparisons["splade-idf"].difference == pytest.approx(difference)
        assert r"\begin{tabular}" in of_run.to_latex() and str(of_run).startswith("system")
    for arguments, message in [
        ((run, qrels), "has its own qrels: give none"),
        (([*files.values()],), "rankings need qrels"),
        (({}, qrels), "no rankings to compare"),
        ((pd.DataFrame(), qrels), "rankings by name, or a list of them; this is a DataFrame"),
    ]:
        with pytest.raises(cai.CaiError, match=message):
            cai.compare(*arguments)
    fused = cai.fuse([files["bm25"], files["splade-idf"]])
    hybrid = read_run(run_folder / "runs" / "hybrid-splade-idf.trec")
    assert fused["doc_id"].tolist() == hybrid.columns[1]
    assert cai.evaluate(files["bm25"], qrels, "RR@10") == cai.evaluate(
        {query: run["bm25"].search(text, 1000) for query, text in load_collection(str(tiny)).topics("test").items()},
        qrels,
        [ir_measures.RR @ 10],
    )
    for ranking, judged, message in [
        (pd.DataFrame({"query_id": ["q"], "docno": ["d"]}), qrels, "a ranking: no 'score' among 'query_id', 'docno'"),
        ({"q": {"d1": 1.0}}, qrels, "a ranking and the qrels have no queries in common"),
        ({"q": {"d1": 1.0}}, {}, "the qrels have no judgments"),
        (files["bm25"], {"q": {"d1": 1}}, r"bm25\.trec and the qrels have no queries in common"),
    ]:
        with pytest.raises(cai.CaiError, match=message):
            cai.evaluate(ranking, judged)
    assert cai.evaluate({"q1": {"x": 1.0}}, {"q1": {"d1": 1}}, "RR") == {"RR": 0}
    assert "none of its documents is judged for any query; its ids are such as 'x', and those" in caplog.text
    with pytest.raises(cai.CaiError, match="fuse takes a list of rankings; this is a dict"):
        cai.fuse({"q": {"d1": 1.0}})
    with pytest.raises(cai.CaiError, match="k is 0"):
        cai.fuse([files["bm25"]], k=0)


def test_documents_as_people_have_them(java: None, tmp_path: Path) -> None:
    """Texts, dicts, a file and a folder; the same call again does nothing."""
    records = [{"id": f"d{n}", "title": "", "text": text, "year": 2000 + n} for n, text in enumerate(TEXTS)]
    folder = tmp_path / "runs" / "mine"
    with cai.index(records, folder) as index:
        (hit,) = index.search("skull", filter="year>=2001")
        assert (hit.id, hit.text, hit.metadata) == ("d1", TEXTS[1], {"year": 2001})
    made = artifact.read_manifest(folder / "indexes" / "joint-splade-idf")
    with cai.index(iter(records), str(folder), metadata={"year": "number"}) as index:
        assert artifact.read_manifest(folder / "indexes" / "joint-splade-idf") == made
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "file.jsonl").write_text(lines)
    with cai.index(tmp_path / "file.jsonl", tmp_path / "of-file", system="bm25", metadata={"year": "number"}) as index:
        assert [hit.id for hit in index.search("skull")] == ["d1"]
        with pytest.raises(cai.CaiError, match=r"of-file was made of .*file\.jsonl: change documents there, then `cai"):
            index.add(["a text"])
    (tmp_path / "other.documents.jsonl").write_text("{}")
    with pytest.raises(cai.CaiError, match=r"other\.documents\.jsonl is not what an index in .*other was made of"):
        cai.index(records, tmp_path / "other")
    with pytest.raises(cai.CaiError, match=r"mine is a finished run: open it with cai\.open\("):
        cai.index(folder)
    with pytest.raises(cai.CaiError, match=r"runs has no finished run; did you mean .*runs/mine\?"):
        cai.open(folder.parent)


def test_a_corrected_call_works(java: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The faults: a refused call leaves a file that the corrected one takes for somebody else's; an error names a flag
    or a temporary file, where the caller's record or keyword is wrong."""
    folder = tmp_path / "a"
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (TEXTS, {"sytem": "bm25"}, "index has no keyword 'sytem'; did you mean system"),
        (TEXTS, {"systems": ["bm25"]}, "index has no keyword 'systems'; did you mean system"),
        (TEXTS, {"output": "b"}, "index has no keyword 'output'; did you mean folder"),
        (TEXTS, {"batch-size": 3}, "did you mean batch_size"),
        (TEXTS, {"passages": "5"}, "passages: '5' should be a valid integer"),
        (TEXTS, {"system": "bm52"}, "bm52"),
        (TEXTS, {"encoder": "splade-tniy"}, "splade-tiny"),
        ([*TEXTS, None], {}, "document 2, counted from 0 is a NoneType"),
    ]
    for documents, options, message in refused:
        with pytest.raises(cai.CaiError, match=message):
            cai.index(documents, folder, **options)
    with pytest.raises(cai.CaiError, match="run has no keyword 'depht'; did you mean depth"):
        cai.run(tmp_path, depht=3)  # type: ignore[call-arg]
    for wrong in (lambda: cai.index(""), lambda: cai.open(3), lambda: cai.open_index([3]), lambda: cai.Encoder(None)):  # type: ignore[arg-type]
        with pytest.raises(cai.CaiError, match=r"is ('|\[?3|None).*: give a path"):
            wrong()
    with cai.index([*TEXTS, " "], folder, system="bm25") as index:
        assert [hit.id for hit in index.search("skull")] == ["1"]
    assert "(the first: document 2, counted from 0)" in caplog.text and ".jsonl" not in caplog.text
    assert RunOptions.__annotations__.keys() | {"collections", "systems", "output", "encoder", "dense"} == {
        *RunSettings.model_fields.keys() - {"config", "dry_run", "train", "verify"}
    }


def test_any_id_can_have_the_sign_of_passages(java: None) -> None:
    """The fault: an id with # is refused, or taken for a passage of another document."""
    documents = [{"id": id, "text": " ".join(TEXTS * 50)} for id in ("a", "a#1", "#", "a#1#0")]
    with cai.index(documents, system="bm25", passages=20) as index:
        for k in (2, 4, 10):
            assert [hit.id for hit in index.search("skull", k=k)] == ["#", "a", "a#1", "a#1#0"][:k]
        index.delete("a#1")
        assert {hit.id for hit in index.search("skull")} == {"#", "a", "a#1#0"}


def test_hits_outlive_their_index(java: None) -> None:
    """The faults: empty texts after `with`; hits that cannot be pickled, or be rows of a DataFrame."""
    rows = [{"id": n, "title": f"T{n}", "text": f"skull {n}", "y": n, "on": date(2020, 1, n)} for n in (1, 2, 3)]
    with cai.index(rows, system="bm25") as index:
        hits, (several,) = index.search("skull", k=np.int64(2)), index.search(query for query in ["skull"])
        assert asyncio.run(index.search_async("skull", filter={"y": [1, 2]})) == hits
        assert pickle.loads(pickle.dumps(hits)) == hits
        assert index.explain("skull", hits[0]) == index.explain("skull", 1) == index.explain("skull", [hits[0]])["1"]
        assert index.document(1) == index.document(hits[0]) and len(index) == 3
        assert index.facets("on", most=np.int64(1)) == {"on": {"2020": 3}}
        filters: list[Any] = [
            {"y": 2},
            {"y": {">": 1, "<=": 2}},
            {"on": date(2020, 1, 2)},
            ["y>=2", {"y": np.int64(2)}],
        ]
        filters += [{"contents": ["2"]}, {"y": pd.Series([2, 7]), "on": {">=": "2020-01"}}]
        for filter in filters:
            assert [hit.id for hit in index.search("skull", filter=filter)] == ["2"], filter
        for empty in ([], (), {}, None):
            assert len(index.search("skull", filter=empty)) == 3
        for wrong, message in [
            ({"z": 1}, "no field 'z'"),
            ({"y": {"~": 1}}, "y has '~'"),
            ({"y": None}, "y is compared"),
            ({"y": b"2"}, "y is compared"),
        ]:
            with pytest.raises(cai.CaiError, match=message):
                index.search("skull", filter=wrong)
        for query, k, message in [
            ("fever", 0, "k is 0: give an integer, 1 or more"),
            ("fever", True, "k is True"),
            (["fever", math.nan], 10, "query 1, counted from 0, is a float: give a text"),
        ]:
            with pytest.raises(cai.CaiError, match=message):
                index.search(query, k)  # type: ignore[call-overload]
    row = {"rank": 1, "id": "1", "title": "T1", "text": "skull 1", "passage": None, "start": 0, "end": 7, "page": None}
    row |= {"metadata": {"y": 1, "on": "2020-01-01"}, "score": hits[0].score}
    assert json.loads(json.dumps(hits[0].to_dict())) == row
    frame = pd.DataFrame(hits)
    pd.testing.assert_frame_equal(frame, hits.to_dataframe())
    assert frame.to_dict("records")[0] == row and frame["text"].tolist() == ["skull 1", "skull 2"]
    assert several[2].text == "skull 3"
    assert pytest.importorskip("polars").DataFrame(hits)["id"].to_list() == ["1", "2"]
    index = cai.index([*rows, *({"id": n, "text": "skull"} for n in range(4, 1200))], system="bm25")
    many = index.search("skull", k=1200)
    index.close()
    assert many[0].text
    with pytest.raises(cai.CaiError, match=r"the index is closed, and document '.*' was not read before"):
        many[-1].text  # noqa: B018


def test_hits_of_systems_that_share_an_index_outlive_it(run_folder: Path) -> None:
    """The fault: the first system that closes takes the texts of the others with it."""
    with cai.open(run_folder) as run:
        hits = [run[name].search("high blood pressure", k=1)[0] for name in ("bm25", "hybrid-splade-idf", "joint")]
    assert all(hit.text for hit in hits)


def test_documents_can_be_added_replaced_and_deleted(java: None, tmp_path: Path) -> None:
    """The index after changes is that of a new one with the same documents; a refused change changes nothing."""
    folder = tmp_path / "runs" / "a"
    cai.index(
        [{"id": "a", "text": "old skull", "y": 1}, {"id": "b", "text": "hand", "z": 2}], folder, system="bm25"
    ).close()
    with cai.open(folder) as run:
        index, other = run["bm25"], run.open("bm25")
        kept = [index.search("skull"), other.search("skull")]
        index.add(pd.DataFrame([{"id": "c", "text": "third skull", "y": 3}]))
        index.update({"a": {"text": "new skull", "y": 4}, "d": "fourth skull"})
        index.delete(other.search("hand"))
        for message, change in [
            ("document 'c' is there already: `update` replaces it", lambda: index.add({"c": "skull"})),
            ("there is no document 'x' to delete", lambda: index.delete(["a", "x"])),
            ("document 0, counted from 0: the id is missing", lambda: index.update(["skull"])),
            ("these are all documents", lambda: index.delete(["a", "c", "d"])),
        ]:
            with pytest.raises(cai.CaiError, match=message):
                change()
        documents = [{"id": "a", "text": "new skull", "y": 4}, {"id": "c", "text": "third skull", "y": 3}]
        with cai.index([*documents, {"id": "d", "text": "fourth skull"}], system="bm25") as fresh:
            expected = fresh.search("new third fourth skull")
        for engine in (index, other, run["bm25"]):
            found = engine.search("new third fourth skull")
            assert [hit.to_dict() for hit in found] == [hit.to_dict() for hit in expected]
            assert [hit.id for hit in engine.search("skull", filter={"y": 4})] == ["a"] and len(engine) == 3
        assert [hits[0].text for hits in kept] == ["old skull"] * 2
        previous = folder.with_name("a.documents.previous")
        previous.write_text("")  # as a change leaves it that is killed
        with ThreadPoolExecutor(2) as threads:
            [*threads.map(index.add, ({7: "skull"}, ["fifth skull"]))]
        (fifth,) = index.search("fifth", k=1)
        assert fifth.id in ("0", "8") and fifth.text == "fifth skull" and len(index) == 5 and not previous.exists()


def test_a_run_is_a_container_of_systems(run: cai.Run) -> None:
    assert [*run] == run.systems and len(run) == len(run.systems) and "joint" in run and "jont" not in run
    with pytest.raises(AttributeError, match=r"but its systems have: run\.best\.search, or "):
        run.search("fever")  # type: ignore[attr-defined]
    with pytest.raises(cai.CaiError, match="this is a dict, which `rank` may take"):
        run["bm25"].search({"q": "fever"})


def test_an_encoder_has_the_methods_of_sentence_transformers(run_folder: Path, tiny: Path) -> None:
    encoder = cai.Encoder("splade-tiny", device="cpu", precision="float32")
    texts = [f"{record.title} {record.text}" for record in load_collection(str(tiny)).records()]
    stored = next(iter(Vectors(run_folder / "vectors" / "documents"))).vectors
    assert abs(encoder.encode_document(texts) - stored).max() < 0.05  # which may be in bfloat16
    one = encoder.encode_document(texts[0])
    assert one.shape == (1, 30522) and abs(one - encoder.encode_document(texts)[0]).max() < 1e-4
    bow = encoder.encode_query("short short fingers", query="bow")
    assert sorted(encoder.decode(bow)) == [("fingers", 1.0), ("short", 2.0)]
    assert abs(encoder.encode_query(iter(["short fingers"])) - encoder.encode_query("short fingers")).max() == 0
    for wrong, message in [
        ({"d1": "a"}, "this is a dict: give the texts alone"),
        (["a", None], "text 1, .* is a NoneType"),
    ]:
        with pytest.raises(cai.CaiError, match=message):
            encoder.encode_query(wrong)  # type: ignore[arg-type]
    assert np.shape(cai.Encoder("minilm", device="cpu").encode_query("short fingers")) == (384,)
