"""What is searched by hand is what is in the run, with its documents, and explained."""

import json
import math
import shutil
from pathlib import Path

import pytest

from cai_pyserini.beir.__main__ import main as beir
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import read_run, scores_by_query
from cai_pyserini.search.engine import Engine
from cai_pyserini.retrieval.lucene import Stored
from cai_pyserini.search.open import OpenRun, open_index

SYSTEMS = [
    *("bm25", "splade-idf", "splade-doc-idf", "joint-splade-idf", "joint-splade-doc-idf-smooth", "dense"),
    *("hybrid-splade-idf", "hybrid-splade-idf-minmax", "hybrid-dense-product", "hybrid-splade-idf-dense-zscore"),
]
UNFIT = ["splade-idf-prf", "hybrid-splade-idf-exact", "hybrid-splade-idf-prf"]
QUERIES = {
    "q1": "phytate for the treatment of cancer",
    "q2": "bladder infection",
    "q3": "what lowers high blood pressure?",
    "q4": "heart attack while running",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(run_folder: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = Path(shutil.copytree(run_folder, tmp_path_factory.mktemp("engine") / "run"))
    beir([str(tiny), "--output", str(output), "--dense", "splade-tiny", "--systems", *SYSTEMS, *UNFIT])
    return output


@pytest.fixture(scope="module", params=SYSTEMS)
def engine(request: pytest.FixtureRequest, folder: Path) -> Engine:
    return OpenRun(folder).open(request.param)


def test_hits_are_those_of_the_run(engine: Engine, folder: Path) -> None:
    run = scores_by_query(read_run(folder / "runs" / f"{engine.name}.trec"))
    for (id, _), hits in zip(QUERIES.items(), engine.search(list(QUERIES.values()), hits=100), strict=True):
        expected = {document: score for document, score in run.get(id, {}).items() if document != id}
        assert [hit.id for hit in hits] == list(expected)
        assert [hit.score for hit in hits] == pytest.approx(list(expected.values()), abs=2e-4)
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))


def test_explanations_add_up_to_the_scores(engine: Engine) -> None:
    text = QUERIES["q1"]
    (hits,) = engine.search([text], hits=100)
    explained = engine.explain(text, [*(hit.id for hit in hits), "no such document"])
    product = engine.name.endswith("product")
    assert [(e.document, e.rank) for e in explained.values()] == [(hit.id, hit.rank) for hit in hits]
    for hit in hits:
        explanation = explained[hit.id]
        assert explanation.score == pytest.approx(hit.score, abs=2e-4)
        if explanation.parts:
            shares = [part.share for part in explanation.parts]
            assert (math.prod if product else math.fsum)(shares) == pytest.approx(hit.score, abs=2e-4)
        elif engine.name != "dense":
            assert math.fsum(term.contribution for term in explanation.terms) == pytest.approx(hit.score, abs=2e-4)


def test_documents_are_shown_with_the_words_of_their_scores(engine: Engine) -> None:
    document = engine.document("d1")
    contents = "Phytate and colon cancer Dietary phytate, found in the bran of cereals, suppresses the growth of colon "
    assert document == Stored("d1", "Phytate and colon cancer", f"{contents}tumours in rats.")
    shown = engine.show(document, engine.explain("dietary phytate and cancer", ["d1"])["d1"])
    assert "".join(piece for piece, _ in shown.title) == document.title
    assert "".join(piece for piece, _ in shown.snippet).startswith("Dietary phytate, found in")
    strong = {piece for piece, strength in (*shown.title, *shown.snippet) if strength > 0.1}
    assert strong >= {"Phytate", "cancer", "phytate"} if engine.name != "dense" else not strong
    assert engine.document("no such document") is None


def test_an_index_is_a_system_of_its_own(folder: Path) -> None:
    index = folder / "indexes" / "joint-splade-idf"
    of_index, of_run = open_index(index), OpenRun(folder).open("joint-splade-idf")
    assert of_index.name == "joint-splade-idf"
    assert of_index.search(["bladder"]) == of_run.search(["bladder"])
    bow = open_index(index, query="bow").search(["bladder"])
    assert bow == OpenRun(folder).open("joint-splade-doc-idf").search(["bladder"]) != of_run.search(["bladder"])
    dense = open_index(folder / "indexes" / "dense", encoder="splade-tiny")
    assert dense.document("d1") is None  # a Faiss index has no texts, and nothing is beside it


@pytest.mark.parametrize("name", UNFIT)
def test_a_system_that_needs_more_than_indexes_is_refused(folder: Path, name: str) -> None:
    assert name not in OpenRun(folder).systems
    with pytest.raises(CaiError, match="cannot be searched by hand"):
        OpenRun(folder).open(name)


def test_what_cannot_be_opened_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CaiError, match=r"has no index of splade-smooth: .*--systems splade-smooth, or take one of .*bm25"
    ):
        OpenRun(folder).open("splade-smooth")
    with pytest.raises(CaiError, match="has no finished run"):
        OpenRun(tmp_path).open("bm25")
    with pytest.raises(CaiError, match="give --encoder"):
        open_index(folder / "indexes" / "dense")


def test_the_best_system_is_the_first(folder: Path) -> None:
    best = OpenRun(folder).systems[0]
    scores = json.loads((folder / "results.json").read_text())["systems"]
    assert scores[best]["nDCG@10"] == max(scores[name]["nDCG@10"] for name in OpenRun(folder).systems)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_query_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(CaiError, match="the query is empty"):
        OpenRun(folder).open("bm25").search([text])


def test_a_query_without_hits_has_none(folder: Path) -> None:
    assert OpenRun(folder).open("bm25").search(["xyzzy", "bladder"])[0] == []
    assert OpenRun(folder).open("bm25").explain("xyzzy", ["d1"])["d1"].score == 0


def test_passages_are_shown_and_documents_ranked(tiny: Path, tmp_path: Path) -> None:
    names = ["bm25", "splade-idf", "hybrid-splade-idf-minmax"]
    beir([str(tiny), "--output", str(tmp_path), "--passages", "5", "--systems", *names])
    for name in names:
        engine = OpenRun(tmp_path).open(name)
        expected = scores_by_query(read_run(tmp_path / "runs" / f"{name}.trec"))["q1"]
        (hits,) = engine.search([QUERIES["q1"]], hits=100)
        assert [(hit.id, pytest.approx(hit.score, abs=2e-4)) for hit in hits] == list(expected.items())
        document = engine.document(hits[0].stored)
        assert document and hits[0].stored.startswith(f"{hits[0].id}#") and len(document.contents.split()) <= 5 + 4
        assert engine.explain(QUERIES["q1"], [hits[0].id])[hits[0].id].score == pytest.approx(hits[0].score, abs=2e-4)


def test_systems_of_a_run_share_indexes_and_models(folder: Path) -> None:
    run = OpenRun(folder)
    single, hybrid, joint = map(run.open, ("splade-idf", "hybrid-splade-idf", "joint-splade-idf"))
    assert hybrid._retrievers["splade-idf"] is single._retrievers["splade-idf"]
    encoders = {retriever._form.encoder for engine in (single, joint) for retriever in engine._retrievers.values()}
    assert len(encoders) == 1


def test_an_index_without_documents_shows_none(tiny: Path, tmp_path: Path) -> None:
    beir([str(tiny), "--output", str(tmp_path), "--no-raw", "--systems", "bm25", "splade-doc"])
    for name in ("bm25", "splade-doc"):
        engine = OpenRun(tmp_path).open(name)
        (hits,) = engine.search(["bladder"])
        assert hits and engine.document(hits[0].stored) is None


def test_documents_without_queries_can_be_searched(tiny: Path, tmp_path: Path) -> None:
    shutil.copy(tiny / "corpus.jsonl", tmp_path / "corpus.jsonl")
    beir([str(tmp_path), "--output", str(tmp_path / "run"), "--systems", "bm25", "joint-splade-doc-idf"])
    run = OpenRun(tmp_path / "run")
    assert set(run.systems) == {"bm25", "joint-splade-doc-idf"}
    for name in run.systems:
        assert run.open(name).search(["bladder"])[0][0].id == "d4"
