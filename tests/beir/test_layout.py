"""Where everything lies in a run folder."""

from pathlib import Path

from cai_pyserini.beir.layout import Layout
from cai_pyserini.beir.systems import System, parse_system

LAYOUT = Layout(Path("run"))


def names(*systems: str) -> list[System]:
    return [parse_system(name) for name in systems]


def test_paths() -> None:
    adapted, adapted_dense = names("adapted-joint-splade-doc-idf-smooth", "adapted-dense-idf")
    splade, doc, dense, smooth = names("splade-idf", "splade-doc-idf", "dense-idf", "joint-splade-doc-idf-smooth")
    paths = {
        LAYOUT.collection: "collection.json",
        LAYOUT.results: "results.json",
        LAYOUT.report: "report.md",
        LAYOUT.lock: ".lock",
        LAYOUT.idf(splade): "idf",
        LAYOUT.idf(dense): "idf-dense",
        LAYOUT.vectors(splade, "documents", "test"): "vectors/documents",
        LAYOUT.vectors(splade, "queries", "dev"): "vectors/queries-dev",
        LAYOUT.vectors(dense, "documents", "test"): "vectors/dense-idf-documents",
        LAYOUT.vectors(dense, "queries", "dev"): "vectors/dense-idf-queries-dev",
        LAYOUT.impacts(doc): "impacts/splade-idf",
        LAYOUT.index(doc): "indexes/splade-idf",
        LAYOUT.run(doc): "runs/splade-doc-idf.trec",
        LAYOUT.evaluation(doc): "evaluations/splade-doc-idf.json",
        LAYOUT.words: "words",
        LAYOUT.vectors(smooth, "documents", "test"): "vectors/documents-smooth",
        LAYOUT.vectors(smooth, "queries", "dev"): "vectors/queries-dev",
        LAYOUT.expansion(smooth): "expansion",
        LAYOUT.impacts(smooth): "impacts/joint-splade-idf-smooth",
        LAYOUT.index(smooth): "indexes/joint-splade-idf-smooth",
        LAYOUT.run(smooth): "runs/joint-splade-doc-idf-smooth.trec",
        LAYOUT.adapted: "adapted",
        LAYOUT.adapted_dense: "adapted/dense",
        LAYOUT.idf(adapted): "adapted-idf",
        LAYOUT.idf(adapted_dense): "adapted-idf-dense",
        LAYOUT.vectors(adapted, "documents", "test"): "vectors/adapted-documents-smooth",
        LAYOUT.vectors(adapted, "queries", "dev"): "vectors/adapted-queries-dev",
        LAYOUT.vectors(adapted_dense, "documents", "test"): "vectors/adapted-dense-idf-documents",
        LAYOUT.expansion(adapted): "adapted-expansion",
        LAYOUT.impacts(adapted): "impacts/adapted-joint-splade-idf-smooth",
        LAYOUT.index(adapted): "indexes/adapted-joint-splade-idf-smooth",
        LAYOUT.index(adapted_dense): "indexes/adapted-dense-idf",
        LAYOUT.run(adapted): "runs/adapted-joint-splade-doc-idf-smooth.trec",
    }
    assert {path: str(path.relative_to("run")) for path in paths} == paths


def test_systems_share_what_is_the_same_and_nothing_else() -> None:
    splade, doc, splade_idf, doc_idf = names("splade", "splade-doc", "splade-idf", "splade-doc-idf")
    assert LAYOUT.index(splade) == LAYOUT.index(doc) != LAYOUT.index(splade_idf) == LAYOUT.index(doc_idf)
    assert len({LAYOUT.vectors(system, "documents", "test") for system in (splade, doc, splade_idf, doc_idf)}) == 1
    dense, dense_idf = names("dense", "dense-idf")
    assert LAYOUT.vectors(dense, "documents", "test") != LAYOUT.vectors(dense_idf, "documents", "test")


def test_rescored_runs_are_named_by_the_systems_of_the_hybrid_whatever_its_fusion() -> None:
    hybrid, minmax, three = names(
        "hybrid-splade-idf-exact", "hybrid-splade-idf-minmax-exact", "hybrid-splade-idf-dense-exact"
    )
    bm25, splade = hybrid.parts
    assert LAYOUT.rescored(hybrid, splade) == Path("run/runs/rescored/splade-idf-with-bm25.trec")
    assert LAYOUT.rescored(minmax, bm25) == LAYOUT.rescored(hybrid, bm25)
    assert LAYOUT.rescored(three, splade) == Path("run/runs/rescored/splade-idf-with-bm25-dense.trec")
