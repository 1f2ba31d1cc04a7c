"""Tables and reports of results made by hand, and the check of expected scores."""

import re
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments import report_charts
from cai_pyserini.experiments.execute import _best
from cai_pyserini.experiments.experiment import Results
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.report import markdown, page, table, write_page
from cai_pyserini.experiments.report_charts import charts, scores_chart
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.summary import verify
from cai_pyserini.runs.significance import Comparison


@pytest.fixture(autouse=True)
def with_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_charts, "charts", charts)


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
        "splade": Comparison(-0.07891, p=0.00049),
        "splade-idf": Comparison(0.0211, p=0.0501),
        "hybrid-splade-idf": Comparison(0.0211, p=0.04994),
    },
    timings_s={"check": 0.04, "encode documents": 1234.56},
    index_bytes={"bm25": 1_500_000, "splade": 25_000_000},
    searches={"bm25": "bm25", "splade": "splade-doc"},
    nonzeros_per_document=123.45,
    best={"without a model": "bm25", "with SPLADE": "hybrid-splade-idf", "with any model": "hybrid-splade-idf"},
    alpha={"joint": {"splade": 3.7128, "bow": 0.51}},
    counts={"documents": 5183, "queries": 300, "judgments": 339},
    settings={"depth": 40},
    precision="bfloat16",
    quantization_loss={"splade": {"relative_error": 0.0123, "dropped": 0.05, "clipped": 0.0}},
    versions={"cai_pyserini": "0.1.0", "torch": "2.13"},
    published=[{"system": "BM25 flat", "score": 0.6789, "source": "Anserini"}],
)


def test_the_table_marks_the_best_and_what_differs() -> None:
    header, _, *rows = table(RESULTS).splitlines()
    assert header.split() == ["system", "nDCG@10", "R@100", "RR@10", "ms/query", "nDCG@10", "−", "bm25", "p"]
    assert [line.split() for line in rows[:4]] == [
        ["bm25", "0.6789", "*0.9200", "0.6100", "0.50"],
        ["splade", "0.6000", "*0.9200", "*0.6400", "12.35", "-0.0789†", "<0.001"],
        # What is equal in four places is equally good.
        ["splade-idf", "*0.7000", "0.9000", "*0.6400", "12.00", "+0.0211", "0.050"],
        ["hybrid-splade-idf", "*0.7000", "0.9000", "0.5000", "13.00", "+0.0211†", "0.050"],
    ]
    assert "best without a model: bm25 0.6789; with SPLADE: hybrid-splade-idf 0.7000" in rows  # no other model gains


def test_the_legend_says_the_depth_and_the_correction() -> None:
    for text in (table(RESULTS), markdown(RESULTS)):
        assert "best 40 documents of each run (the setting depth)" in text
        assert "paired t-test on nDCG@10, p < 0.05, Holm-corrected over 3 systems" in text
    alone = replace(RESULTS, systems={"bm25": RESULTS.systems["bm25"]}, comparisons={}, best={})
    assert "the setting depth" not in table(alone) and "Holm" not in table(alone)
    for name in ("cross-encoder", "fused-splade-dense"):
        reranked = replace(alone, systems={name: RESULTS.systems["bm25"]})
        assert "best 40 documents of each run (the setting depth)" in table(reranked)


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
        "- Best without a model: bm25 0.6789",
        "- Best with SPLADE: hybrid-splade-idf 0.7000",
        "In joint, BM25 has the weight 3.71 (splade queries), 0.51 (bow queries) beside SPLADE.",
    ):
        assert line in text.splitlines(), line
    assert "Quantization of splade: relative error 1.23%, 5.00% of the entries became 0" in text
    assert "Dense encoder" not in text and "Cross-encoder" not in text
    settings = RESULTS.settings | {"dense": {"name": "minilm"}, "cross_encoder": "some/model"}
    text = markdown(replace(RESULTS, settings=settings, published=[], nonzeros_per_document=None))
    assert "Dense encoder: minilm." in text and "Cross-encoder: some/model." in text
    assert "Published" not in text and "non-zeros" not in text


PER_QUERY = {
    "bm25": {f"q{number}": number % 2 for number in range(10)},
    "splade": dict.fromkeys((f"q{number}" for number in range(10)), 0.6),
    "hybrid-splade-idf": {f"q{number}": 1 - number / 10 for number in range(10)},
}


def test_the_page_of_charts() -> None:
    text = page(RESULTS, PER_QUERY, 256)
    assert text == page(RESULTS, PER_QUERY, 256), "equal results, another page"
    for part in (
        "Bars of nDCG@10 for 4 systems, from hybrid-splade-idf with 0.7000 to splade with 0.6000",
        # 1, 0.9 … 0.1 against 0, 1, 0, 1 …
        "hybrid-splade-idf is better on 5, bm25 on 5; the mean difference is +0.0500.",
        "both faster and better than those on the line: bm25 (0.50 ms, 0.6789), splade-idf (12.00 ms, 0.7000), hybrid",
        '<th scope="row">splade-idf</th><td>*0.7000</td><td>0.9000</td>',
        "No document was encoded",
    ):
        assert part in text, part
    few = {name: {"q1": 0.5} for name in PER_QUERY}
    assert "Below 10 queries, there are no confidence intervals." in page(RESULTS, few, 256)
    lost = replace(RESULTS, collection="</title><script>", counts=RESULTS.counts | {"cut": 9, "lost": 0.123})
    text = page(lost, PER_QUERY, 256)
    assert "12.3% of the tokens of documents: SPLADE encodes the first 256 of each." in text and "<script" not in text


def test_the_chart_has_the_intervals_of_the_means() -> None:
    intervals = {"hybrid-splade-idf": (0.6, 0.75), "bm25": (0.5, 0.7), "splade-idf": None}
    (bars,) = (
        each
        for each in scores_chart(replace(RESULTS, intervals=intervals)).figure.axes[0].containers
        if hasattr(each, "errorbar")
    )
    segments = bars.errorbar.lines[2][0].get_segments()
    assert [segment[:, 0].tolist() for segment in segments] == [
        pytest.approx([0.6, 0.75]),
        pytest.approx([0.70001, 0.70001]),
        pytest.approx([0.5, 0.7]),
        pytest.approx([0.6, 0.6]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_run_is_accessible(run_folder: Path, browser: Browser, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    opened = browser.new_context(color_scheme=scheme).new_page()
    problems: list[str] = []
    opened.on("console", lambda message: problems.append(message.text))
    write_page(RunFolder(run_folder))
    opened.goto((run_folder / "report.html").as_uri())
    problems += [violation["id"] for violation in Axe().run(opened).response["violations"]]
    assert not problems
    widths = opened.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert len(widths) == 3 and min(widths) > 100
    with Run(run_folder) as run:
        shown = run._repr_html_()
        assert escape(str(run)) in shown  # the fault: a notebook shows another order, and no legend
    assert scores_chart(RunFolder(run_folder).results).image in shown
    opened.context.close()


UNSCORED = replace(
    RESULTS,
    systems={name: {"queries": 7, "ms_per_query": ms} for name, ms in (("bm25", 1.5), ("splade-doc", 2))},
    comparisons={},
    best={},
    counts={"documents": 5183, "queries": 7, "empty_queries": 1},
    published=[],
)


def test_without_qrels_there_are_runs_and_without_queries_indexes() -> None:
    assert table(UNSCORED).splitlines() == [
        "system      ms/query                   run",
        "------------------------------------------",
        "bm25            1.50        runs/bm25.trec",
        "splade-doc      2.00  runs/splade-doc.trec",
        "no qrels: nothing is evaluated; the runs are in runs/, the indexes in indexes/",
    ]
    lines = markdown(UNSCORED).splitlines()
    for line in (
        "5,183 documents, 7 queries. 1 queries have no text: they are not searched for, and count as 0.",
        "| splade-doc | 2.00 | runs/splade-doc.trec |",
        "no qrels: nothing is evaluated; the runs are in runs/, the indexes in indexes/.",
        "Indexes: bm25 1.5 MB, splade 25.0 MB.",
    ):
        assert line in lines, line
    assert "nDCG" not in table(UNSCORED) + markdown(UNSCORED) + page(UNSCORED, {}, 256)
    alone = replace(UNSCORED, systems={"bm25": {}}, counts={"documents": 5183})
    text = "no queries: nothing is searched or evaluated; the indexes are in indexes/"
    assert table(alone) == text
    assert f"{text}." in markdown(alone).splitlines() and "| system" not in markdown(alone)


def test_the_report_says_what_is_left_out() -> None:
    counts = RESULTS.counts | {"left_out_judgments": 1200}
    first = (
        "5,183 documents, 300 queries, 339 judgments. 1,200 judgments of documents that the collection lacks are left"
    )
    assert f"{first} out." in markdown(replace(RESULTS, counts=counts)).splitlines()
    counts |= {"left_out_queries": 3}
    assert f"{first} out, and 3 queries without others." in markdown(replace(RESULTS, counts=counts)).splitlines()


ADAPTED = replace(
    RESULTS,
    systems=RESULTS.systems
    | {"adapted-splade": row(0.65, 0.93, 0.6, 9), "adapted-hybrid-splade-idf": row(0.7, 1, 1, 9)},
    gains={"adapted-splade": Comparison(0.05, p=0.0004), "adapted-hybrid-splade-idf": Comparison(-0.00002, p=1.0)},
    decision=["the mean of weights is kept", "one line each"],
)


def test_the_table_of_gains() -> None:
    lines = table(ADAPTED).splitlines()
    assert [line.split() for line in lines[-7:-3]] == [
        ["system", "nDCG@10", "adapted", "gain", "p"],
        ["-" * len(lines[-7])],
        ["splade", "0.6000", "0.6500", "+0.0500†", "<0.001"],
        ["hybrid-splade-idf", "0.7000", "0.7000", "-0.0000", "1.000"],
    ]
    assert lines[-3:] == [
        "†: changed by adaptation (two-sided paired t-test on nDCG@10, p < 0.05, Holm-corrected over 2 systems)",
        "the mean of weights is kept",
        "one line each",
    ]
    assert "adaptation" not in table(RESULTS) and "Adaptation" not in markdown(RESULTS)
    text = markdown(ADAPTED)
    for line in (
        "## Adaptation",
        "| splade | 0.6000 | 0.6500 | +0.0500† | <0.001 |",
        f"{lines[-3]}.",
        "- the mean of weights is kept",
        "- one line each",
    ):
        assert line in text.splitlines(), line


@pytest.mark.parametrize("render", [table, markdown])
def test_too_few_queries_have_no_p_and_the_table_says_so(render: Callable[[Results], str]) -> None:
    none = Comparison(0.5)
    few = replace(
        RESULTS,
        comparisons=dict.fromkeys(RESULTS.comparisons, none),
        gains=dict.fromkeys(ADAPTED.gains, none),
        systems=ADAPTED.systems,
    )
    text = render(few)
    assert "†" not in text and "Holm" not in text
    assert text.count("–: no p below 10 queries") == 2  # under both tables
    assert re.search(r"splade\b.* \+0.5000 +\|? *–", text)


def test_the_best_for_every_need() -> None:
    values = {"bm25": 0.3, "dense": 0.9, "splade-doc": 0.4, "splade": 0.6, "hybrid-splade-doc-dense-zscore": 0.9}
    values |= {"adapted-splade": 0.8, "adapted-dense": 0.0}
    rows = {name: {"nDCG@10": value} for name, value in values.items()}
    # Ties keep the earlier system, which needs no more models.
    assert _best([parse_system(name) for name in values], rows, "nDCG@10") == {
        "without a model": "splade-doc",
        "with SPLADE": "adapted-splade",
        "with any model": "dense",
    }


def config(**expected: dict[str, float]) -> IndexConfig:
    return IndexConfig(name="scifact", source="nowhere", expected=expected)


def test_verify_compares_with_the_scores_of_the_encoder_and_of_any() -> None:
    chosen = config(any={"bm25": 0.679, "splade": 0.1}, **{"splade-tiny": {"splade": 0.6029}, "other": {"bm25": 0.1}})
    lines = [
        "ok   bm25: nDCG@10 0.6789, expected 0.6790 ± 0.003",
        "ok   splade: nDCG@10 0.6000, expected 0.6029 ± 0.003",
    ]
    assert verify([(RESULTS, chosen)]).splitlines() == lines
    assert verify([(RESULTS, chosen)] * 2).splitlines() == [f"scifact: {line}" for line in lines] * 2


def test_verify_fails_beyond_the_tolerance() -> None:
    with pytest.raises(CaiError) as error:
        verify([(RESULTS, config(any={"bm25": 0.679, "splade": 0.6031}))])
    assert str(error.value).splitlines() == [
        "ok   bm25: nDCG@10 0.6789, expected 0.6790 ± 0.003",
        "FAIL splade: nDCG@10 0.6000, expected 0.6031 ± 0.003",
    ]
    assert verify([(RESULTS, config(any={"splade": 0.69}).replace(tolerance=0.1))])


@pytest.mark.parametrize("expected", [{}, {"any": {"dense": 0.5}}, {"other": {"bm25": 0.5}}])
def test_nothing_to_verify_is_a_failure(expected: dict) -> None:
    with pytest.raises(CaiError, match="nothing to verify"):
        verify([(UNSCORED, config(any={"bm25": 0.679}))])
    with pytest.raises(CaiError, match="expects no scores of these systems with splade-tiny: nothing to verify"):
        verify([(RESULTS, config(**expected))])


def test_a_table_without_the_baseline_has_no_empty_columns() -> None:
    alone = replace(RESULTS, systems={"splade": RESULTS.systems["splade"]}, comparisons={}, best={})
    assert table(alone).splitlines()[0].split() == ["system", "nDCG@10", "R@100", "RR@10", "ms/query"]
