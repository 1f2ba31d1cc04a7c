"""Tables and reports of results made by hand, and the check of expected scores."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cai_pyserini.beir.layout import Layout
from cai_pyserini.beir.report import Results, markdown, table, verify, write
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError


def row(ndcg: float, recall: float, rr: float, ms: float) -> dict[str, float]:
    return {"nDCG@10": ndcg, "R@100": recall, "RR@10": rr, "queries": 300, "ms_per_query": ms}


RESULTS = Results(
    collection="scifact",
    encoder="splade-tiny",
    split="test",
    systems={
        "bm25": row(0.67891, 0.92, 0.61, 0.5),
        "splade": row(0.6, 0.92, 0.64002, 12.348),
        "splade-idf": row(0.70001, 0.9, 0.63998, 12),
        "hybrid-splade-idf": row(0.70002, 0.9, 0.5, 13),
    },
    comparisons={
        "splade": {"difference": -0.07891, "p": 0.00049},
        "splade-idf": {"difference": 0.0211, "p": 0.0501},
        "hybrid-splade-idf": {"difference": 0.0211, "p": 0.04994},
    },
    timings_s={"check": 0.04, "encode documents": 1234.56},
    index_bytes={"bm25": 1_500_000, "splade": 25_000_000},
    nonzeros_per_document=123.45,
    counts={"documents": 5183, "queries": 300, "judgments": 339},
    settings={
        "depth": 40,
        "precision": "bfloat16",
        "dense": None,
        "cross_encoder": None,
        "quantization_loss": {"splade": {"relative_error": 0.0123, "dropped": 0.05, "clipped": 0.0}},
    },
    versions={"cai_pyserini": "0.1.0", "torch": "2.13"},
    published=[{"system": "BM25 flat", "score": 0.6789, "source": "Anserini"}],
)


def cells(line: str) -> list[str]:
    return line.split()


def test_the_table_marks_the_best_and_what_differs() -> None:
    header, _, *rows = table(RESULTS).splitlines()
    assert cells(header) == ["system", "nDCG@10", "R@100", "RR@10", "ms/query", "nDCG@10", "−", "bm25", "p"]
    assert [cells(line) for line in rows[:4]] == [
        ["bm25", "0.6789", "*0.9200", "0.6100", "0.50"],
        ["splade", "0.6000", "*0.9200", "*0.6400", "12.35", "-0.0789†", "<0.001"],
        # What is equal in four places is equally good.
        ["splade-idf", "*0.7000", "0.9000", "*0.6400", "12.00", "+0.0211", "0.050"],
        ["hybrid-splade-idf", "*0.7000", "0.9000", "0.5000", "13.00", "+0.0211†", "0.050"],
    ]


def test_the_legend_says_the_depth_and_the_correction() -> None:
    for text in (table(RESULTS), markdown(RESULTS)):
        assert "best 40 documents of each run (--depth)" in text
        assert "paired t-test on nDCG@10, p < 0.05, Holm-corrected over 3 systems" in text
    alone = replace(RESULTS, systems={"bm25": RESULTS.systems["bm25"]}, comparisons={})
    assert "--depth" not in table(alone) and "Holm" not in table(alone)
    reranked = replace(alone, systems={"cross-encoder": RESULTS.systems["bm25"]})
    assert "best 40 documents of each run (--depth)" in table(reranked)


def test_the_report() -> None:
    text = markdown(RESULTS)
    for line in (
        "# scifact, encoder splade-tiny, split test",
        "5,183 documents, 300 queries, 339 judgments.",
        "| system | nDCG@10 | R@100 | RR@10 | ms/query | nDCG@10 − bm25 | p |",
        "| splade-idf | **0.7000** | 0.9000 | **0.6400** | 12.00 | +0.0211 | 0.050 |",
        "| BM25 flat | 0.6789 | Anserini |",
        "| encode documents | 1234.6 |",
        "Indexes: bm25 1.5 MB, splade 25.0 MB.",
        "123.5 non-zeros per document, encoded in bfloat16.",
        "Versions: cai_pyserini 0.1.0, torch 2.13.",
    ):
        assert line in text.splitlines(), line
    assert "Quantization of splade: relative error 1.23%, 5.00% of the entries became 0" in text
    assert "Dense encoder" not in text and "Cross-encoder" not in text


def test_the_report_names_the_other_models() -> None:
    settings = RESULTS.settings | {"dense": {"name": "minilm"}, "cross_encoder": "some/model"}
    text = markdown(replace(RESULTS, settings=settings, published=[], nonzeros_per_document=None))
    assert "Dense encoder: minilm." in text and "Cross-encoder: some/model." in text
    assert "Published" not in text and "non-zeros" not in text


def test_both_files_are_written(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write(RESULTS, layout)
    assert Results(**json.loads(layout.results.read_text())) == RESULTS
    assert layout.report.read_text() == markdown(RESULTS)


def config(**expected: dict[str, float]) -> IndexConfig:
    return IndexConfig(name="scifact", source="nowhere", expected=expected)


def test_verify_compares_with_the_scores_of_the_encoder_and_of_any() -> None:
    chosen = config(any={"bm25": 0.679, "splade": 0.1}, **{"splade-tiny": {"splade": 0.6029}, "other": {"bm25": 0.1}})
    assert verify(RESULTS, chosen).splitlines() == [
        "ok   bm25: nDCG@10 0.6789, expected 0.6790 ± 0.003",
        "ok   splade: nDCG@10 0.6000, expected 0.6029 ± 0.003",
    ]


def test_verify_fails_beyond_the_tolerance() -> None:
    with pytest.raises(CaiError) as error:
        verify(RESULTS, config(any={"bm25": 0.679, "splade": 0.6031, "splade-idf": 0.69}))
    assert str(error.value).splitlines() == [
        "ok   bm25: nDCG@10 0.6789, expected 0.6790 ± 0.003",
        "FAIL splade: nDCG@10 0.6000, expected 0.6031 ± 0.003",
        "FAIL splade-idf: nDCG@10 0.7000, expected 0.6900 ± 0.003",
        "2 of 3 scores differ by more than 0.003: splade, splade-idf",
    ]
    assert verify(RESULTS, config(any={"splade": 0.69}).replace(tolerance=0.1))


@pytest.mark.parametrize("expected", [{}, {"any": {"dense": 0.5}}, {"other": {"bm25": 0.5}}])
def test_nothing_to_verify_is_a_failure(expected: dict) -> None:
    with pytest.raises(CaiError, match="expects no scores of these systems with splade-tiny: nothing to verify"):
        verify(RESULTS, config(**expected))
