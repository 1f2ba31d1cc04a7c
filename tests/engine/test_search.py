"""What is searched by hand is what is in the run, with its documents, and explained."""

import json
import math
import multiprocessing
import re
import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from cai_pyserini.cli.export import main as export
from cai_pyserini.cli.run import main as beir
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.found import Fusing
from cai_pyserini.engine.hits import Hit
from cai_pyserini.engine.open import Run, open_index, open_systems
from cai_pyserini.engine.retriever import Deadline
from cai_pyserini.engine.search import Engine
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.runs.trec import read_run, scores_by_query

SYSTEMS = [
    *("bm25", "bm25-near", "splade-idf", "splade-doc-idf", "dense", "joint", "joint-doc-near"),
    *("hybrid-splade-idf", "hybrid-dense-product", "hybrid-splade-idf-dense-zscore"),
]
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
    beir([str(tiny), "--output", str(output), "--dense", "splade-tiny", "--systems", *SYSTEMS])
    return output


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return Run(folder)


@pytest.fixture(params=SYSTEMS)
def engine(request: pytest.FixtureRequest, run: Run) -> Engine:
    return run.open(request.param)


def test_hits_are_those_of_the_run(engine: Engine, folder: Path) -> None:
    expected = scores_by_query(read_run(ranking_of(parse_system(engine.name), RunFolder(folder)).output))
    for (id, _), hits in zip(QUERIES.items(), engine.search(list(QUERIES.values()), k=100), strict=True):
        scores = {document: score for document, score in expected.get(id, {}).items() if document != id}
        assert [hit.id for hit in hits] == list(scores)
        assert [hit.score for hit in hits] == pytest.approx(list(scores.values()), abs=2e-4)
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))


def test_explanations_add_up_to_the_scores(engine: Engine) -> None:
    text = QUERIES["q1"]
    (hits,) = engine.search([text], k=100)
    explained = engine.explain(text, [*(hit.id for hit in hits), "no such document"])
    combine = math.prod if engine.name.endswith("product") else math.fsum
    assert [(e.document, e.rank) for e in explained.values()] == [(hit.id, hit.rank) for hit in hits]
    for hit in hits:
        explanation = explained[hit.id]
        assert explanation.score == pytest.approx(hit.score, abs=2e-4)
        if explanation.parts:
            assert combine(part.share for part in explanation.parts) == pytest.approx(hit.score, abs=2e-4)
        elif engine.name != "dense":
            assert math.fsum(term.contribution for term in explanation.terms) == pytest.approx(hit.score, abs=2e-4)


def test_a_document_that_a_hybrid_did_not_find_is_explained(folder: Path) -> None:
    engine = Run(folder).open("hybrid-splade-idf")
    assert engine.parts.fusing
    engine.parts.fusing = engine.parts.fusing._replace(depth=1)  # of each list
    (first,) = engine.search([QUERIES["q2"]], k=100)
    explained = engine.explain(QUERIES["q2"], ["d1", "d4"])
    assert [hit.id for hit in first] == ["d4"] and explained["d4"].rank == 1
    assert (explained["d1"].rank, explained["d1"].score) == (None, 0)
    bm25, splade = explained["d1"].parts
    assert bm25.explanation.rank is None and splade.explanation.rank and splade.explanation.terms
    assert bm25.share == splade.share == 0


def test_late_parts_are_left_out_and_come_back(run: Run) -> None:
    """Models that another thread uses stand for slow ones; none may be used twice at a time."""
    text, name = QUERIES["q1"], "hybrid-splade-idf-dense-zscore"
    whole, product, bm25 = (run.open(system) for system in (name, "hybrid-dense-product", "bm25"))
    assert whole.parts.fusing
    weights = whole.parts.fusing.weights and whole.parts.fusing.weights[:1]
    rest = Engine("rest", {"bm25": whole.parts.retrievers["bm25"]}, Fusing("zscore", weights=weights))
    models = ["splade-idf", "dense"]
    assert [name for name, retriever in whole.parts.retrievers.items() if retriever.needs_model] == models
    for engine in (whole, product):
        engine.search([text])  # loads the models

    def search_until(engine: Engine, deadline: float) -> tuple[list[Hit], list[str]]:
        until = Deadline(deadline)
        (found,) = engine.find([text], deadline=until)
        return found.hits, until.late

    late, in_time = 0.0, 1e9
    with ExitStack() as locks:
        for encoder in {whole.parts.retrievers[name]._queries.encoder for name in models}:
            assert encoder
            locks.enter_context(encoder.lock)
        assert search_until(whole, late) == (rest.search([text])[0], models)
        assert search_until(product, late) == (bm25.search([text])[0], ["dense"])
        assert search_until(whole, in_time)[1] == models  # their last searches still run
    for engine in (whole, product):
        for call in engine.parts.last_calls.values():
            call.result()
        assert search_until(engine, in_time) == (engine.search([text])[0], [])


def test_documents_are_shown_with_the_words_of_their_scores(engine: Engine) -> None:
    contents = "Phytate and colon cancer Dietary phytate, found in the bran of cereals, suppresses the growth of colon "
    assert engine.document("d1") == Stored("d1", "Phytate and colon cancer", f"{contents}tumours in rats.")
    assert engine.document("no such document") is None
    (described,) = [one for one in engine.describe("dietary phytate and cancer") if one.hit.id == "d1"]
    assert "".join(piece for piece, _ in described.title) == "Phytate and colon cancer"
    assert "".join(piece for piece, _ in described.snippet).startswith("Dietary phytate, found in")
    strong = {piece for piece, strength in (*described.title, *described.snippet) if strength > 0.1}
    assert strong >= {"Phytate", "cancer", "phytate"} if engine.name != "dense" else not strong


def test_words_that_no_document_has_are_replaced_by_similar_ones(run: Run, folder: Path) -> None:
    for name in ("bm25", "joint", "hybrid-splade-idf-dense-zscore", "dense"):  # the last ones with the words of bm25
        engine = run.open(name)
        assert engine.suggestion("(Blader infecton) of salt?") == "(bladder infection) of salt?"
        assert [engine.suggestion(text) for text in ("bladder infections", "xyzzy", "", "blader " * 99)] == [None] * 4
    for index, expected in {"joint-splade-idf": "bladder", "splade-idf": None}.items():  # with stems alone, or none
        with open_index(folder / "indexes" / index) as engine:
            assert engine.suggestion("blader") == expected


def test_rare_words_are_not_suggested(tmp_path: Path) -> None:
    """The fault: a query is corrected to a name that one document has."""
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": str(n), "text": {0: "Smithson"}.get(n, "kidney" if n < 9 else "filler")}) + "\n"
            for n in range(2500)
        )
    )
    with open_index(index_bm25(BeirFolder(tmp_path, "x"), tmp_path / "index", threads=1)) as engine:
        assert [engine.suggestion(text) for text in ("smithsom", "kidny", "kadny")] == [None, "kidney", None]
        assert engine.document_frequencies("the kidneys of a zebra") == {"kidneys": 8, "zebra": 0}


@pytest.mark.parametrize("name", ["bm25", "joint", "dense"])
def test_words_are_demanded_and_left_out_without_metadata(run: Run, name: str) -> None:
    """In a dense index by the order of the index of BM25, which no file tells."""
    filters = None, "NOT contents:phytate"
    whole, found = (run.open(name).search(["risk of cancer"], 12, filter=each)[0] for each in filters)
    assert {"d1", "d3"} <= {hit.id for hit in whole} and not run.open(name).metadata
    assert [hit.id for hit in found] == [hit.id for hit in whole if hit.id != "d1"]


def test_the_dense_index_of_a_run_can_be_approximate(folder: Path, run: Run, tiny: Path, tmp_path: Path) -> None:
    """In a collection as small as this one, it finds the same."""
    flags = "--dense", "splade-tiny", "--dense-index", "hnsw", "--systems", "dense"
    beir([str(tiny), "--output", str(shutil.copytree(folder, tmp_path / "run")), *flags])
    assert artifact.require(tmp_path / "run" / "indexes" / "dense", "index").stats["recall@100"] == 1
    other, exact = Run(tmp_path / "run").open("dense"), run.open("dense")
    for text in QUERIES.values():
        ours, (expected,) = other.search([text], k=100)[0], exact.search([text], k=100)
        assert {hit.id: pytest.approx(hit.score, abs=1e-5) for hit in ours} == {hit.id: hit.score for hit in expected}
        scores = [
            {id: each.score for id, each in engine.explain(text, ["d1", "no"]).items()} for engine in (other, exact)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5) and scores[0].keys() == {"d1"}


def test_what_cannot_be_opened_is_named(run: Run, folder: Path, tmp_path: Path) -> None:
    missing = r"has no up-to-date index of splade-near: .*again with the system splade-near, or take one of .*bm25"
    unfit = "cross-encoder cannot be searched, only run: take one of .*bm25"
    for name, message in (("splade-near", missing), ("cross-encoder", unfit)):
        assert name not in run.systems
        with pytest.raises(CaiError, match=message):
            run.open(name)
    with pytest.raises(CaiError, match="has no finished run"):
        Run(tmp_path).open("bm25")
    with pytest.raises(CaiError, match="of its queries: give one"):
        open_index(folder / "indexes" / "dense")


def test_the_best_system_is_the_first(run: Run, folder: Path) -> None:
    scores = json.loads((folder / "results.json").read_text())["systems"]
    assert scores[run.systems[0]]["nDCG@10"] == max(scores[name]["nDCG@10"] for name in run.systems)


def test_a_recommended_system_is_the_first_where_nothing_was_measured() -> None:
    """docs/choosing.md: all kinds of evidence, first in a fusion, then in one index, before less of it."""
    best_first = [
        "trio",
        "hybrid-splade-idf-dense-zscore",
        "joint-doc-near",
        "hybrid-dense-minmax",
        "joint",
        "dense",
        "bm25",
        "splade",
    ]
    systems = sorted(map(parse_system, sorted(best_first)), key=lambda system: system.expected_quality, reverse=True)
    assert [system.name for system in systems] == best_first


@pytest.mark.parametrize(
    ("system", "said", "unsaid"),
    [
        ("bm25-near", "BM25 (the words of the query, also where only similar documents have them)", "SPLADE"),
        ("splade-idf", "SPLADE (words related to those of the documents and the query)", "BM25"),
        ("splade-doc-idf", "SPLADE (words related to those of the documents)", "BM25"),
        ("dense", "dense vectors (similar meaning)", "BM25"),
    ],
)
def test_a_system_is_described_by_what_it_finds(run: Run, system: str, said: str, unsaid: str) -> None:
    """The fault: bm25-near is said to be SPLADE, and assistants choose by that."""
    description = run.open(system).description
    assert description == said and unsaid not in description


def test_the_best_of_those_asked_for_is_the_default(folder: Path) -> None:
    """The fault: `serve --systems bm25 joint` shows, and gives assistants, bm25 if they name no other."""
    best = [name for name in Run(folder).systems if name in ("bm25", "joint")]
    for asked in (best, best[::-1]):
        opened = open_systems([folder], asked)
        assert list(opened) == best
        for engine in opened.values():
            engine.close()


@pytest.mark.parametrize(
    ("text", "filter", "message"),
    [
        ("", None, "the query is empty"),
        (" \n", None, "the query is empty"),
        ("caf\udce9", None, r"the query '.*\\udce9' is not UTF-8; convert it"),
        ("coffee", "year:\udce9", r"the filter '.*\\udce9' is not UTF-8; convert it"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(run: Run, text: str, filter: str | None, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        run.open("bm25").search([text], filter=filter)


def test_an_open_system_needs_no_file_that_an_update_replaces(adapted_run: Path, tmp_path: Path) -> None:
    """The fault: the first query loads a model that belongs to another index."""
    run = Path(shutil.copytree(adapted_run, tmp_path / "run"))
    engines = open_systems([run], ["bm25", "adapted-splade-doc", "adapted-joint-near", "dense"])
    shutil.rmtree(run)
    for engine in engines.values():
        (described,) = engine.describe("bladder infection", 1)
        assert described.hit.id == "d4"
    for engine in engines.values():
        engine.close()


def test_passages_are_shown_and_documents_ranked(tiny: Path, tmp_path: Path) -> None:
    """And so they are in Milvus."""
    names = ["bm25", "splade-idf", "hybrid-splade-idf-minmax"]
    folder, cut = tmp_path / "run", tmp_path / "cut.yaml"
    cut.write_text(json.dumps({"name": "cut", "source": str(tiny), "passages": 5}))
    beir([str(cut), "--output", str(folder), "--systems", *names])
    run, ids = Run(folder), [f"d{number}" for number in range(1, 13)]
    for engine in map(run.open, names):
        expected = scores_by_query(read_run(folder / "runs" / f"{engine.name}.trec"))["q1"]
        (hits,) = engine.search([QUERIES["q1"]], k=100)
        assert [(hit.id, pytest.approx(hit.score, abs=2e-4)) for hit in hits] == list(expected.items())
        document = engine.document(hits[0].passage or "")
        assert document and hits[0].stored.startswith(f"{hits[0].id}#") and len(document.contents.split()) <= 5 + 4
        explained = engine.explain(QUERIES["q1"], ids)
        assert explained[hits[0].id].score == pytest.approx(hits[0].score, abs=2e-4)
        assert [*explained] == ids and len(engine) == len(ids)
    pytest.importorskip("pymilvus")
    impacts = ["--impacts", str(folder / "impacts" / "splade-idf"), "--collection", str(cut)]
    export(["milvus", *impacts, "--uri", str(tmp_path / "milvus.db"), "--output", str(tmp_path / "exported")])
    with open_index(tmp_path / "exported") as milvus, run.open("splade-idf") as lucene:
        for k in (1, 3, 5, 100):
            found, expected = (each.search(QUERIES["q1"], k) for each in (milvus, lucene))
            assert [(hit.id, hit.stored) for hit in found] == [(hit.id, hit.stored) for hit in expected]
        assert len(milvus) == len(lucene) and [*map(milvus.document, ids)] == [*map(lucene.document, ids)]
        for one, other in zip(*(each.explain(QUERIES["q1"], ids).values() for each in (milvus, lucene)), strict=True):
            assert (one.document, one.rank, one.terms) == (other.document, other.rank, other.terms)


def test_documents_alone_can_be_searched_and_not_shown_where_none_are_stored(tiny: Path, tmp_path: Path) -> None:
    shutil.copy(tiny / "corpus.jsonl", tmp_path / "corpus.jsonl")
    systems = ["bm25", "joint-doc"]
    beir([str(tmp_path), "--output", str(tmp_path / "run"), "--no-raw", "--systems", *systems])
    run = Run(tmp_path / "run")
    assert set(run.systems) == set(systems)
    for engine in map(run.open, systems):
        (hits,) = engine.search(["bladder"])
        assert hits[0].id == "d4" and engine.document(hits[0].stored) is None
        assert next(engine.describe("bladder"))[2:] == ([], [], None, None)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("system", ["bm25", "hybrid-splade-idf-dense-zscore"])
def test_a_fork_is_refused(run: Run, folder: Path, system: str) -> None:
    engine, context = run.open(system), multiprocessing.get_context("fork")
    engine.search(["bladder"])
    receiver, sender = context.Pipe(duplex=False)
    late = Deadline(1e9)

    def search() -> None:
        for call in (partial(engine.find, ["bladder"], deadline=late), partial(Run(folder).open, "splade-idf")):
            try:
                call()
            except CaiError as error:
                sender.send(str(error))

    child = context.Process(target=search)
    child.start()
    child.join(20)
    child.kill()
    for _ in range(2):
        assert receiver.poll(), "no answer"
        assert re.match(r"(Java|PyTorch) cannot be used .* forked .*\"spawn\"", receiver.recv())
