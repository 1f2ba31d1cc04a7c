"""Several collections in one run, and the table over all of them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cai_pyserini.cli.run import main
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.experiment import Results
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.summary import markdown, table
from cai_pyserini.runs.significance import Comparison
from tests.conftest import DATA
from tests.experiments.test_report import RESULTS, UNSCORED, row

slow = pytest.mark.slow
SYSTEMS = [parse_system(name) for name in RESULTS.systems]
INDEXES = {"bm25": 1_500_000, "splade": 25_000_000, "splade-idf": 20_000_000}
FIRST = replace(RESULTS, index_bytes=INDEXES)
SECOND = replace(
    RESULTS,
    collection="cacm",
    systems=dict(zip(RESULTS.systems, (row(score, 0, 0, 1) for score in (0.5, 0.45, 0.49, 0.40001)), strict=True)),
    comparisons=dict.fromkeys(RESULTS.comparisons, Comparison(-0.05)),
    index_bytes={name: size // 10 for name, size in INDEXES.items()},
    settings={"depth": 40},
)
WITHOUT_QRELS = replace(
    UNSCORED, collection="notes", systems={name: {"queries": 7, "ms_per_query": 3} for name in RESULTS.systems}
)
WITHOUT_QUERIES = replace(
    UNSCORED, collection="files", systems={"bm25": {}}, counts={"documents": 12}, index_bytes=INDEXES
)


def cells(text: str) -> list[list[str]]:
    """The rows of a table for a terminal, down to the legend."""
    lines = text.splitlines()
    return [line.split() for line in (lines[0], *lines[2 : 2 + len(SYSTEMS)])]


def test_a_column_per_collection_their_mean_time_and_size_and_a_legend() -> None:
    assert cells(table(SYSTEMS, [FIRST, SECOND])) == [
        ["system", "scifact", "cacm", "mean", "ms/query", "index", "MB"],
        ["bm25", "0.6789", "*0.5000", "0.5895", "0.75", "1.6"],
        ["splade", "0.6000†", "0.4500–", "0.5250", "6.67", "27.5"],
        ["splade-idf", "*0.7000", "0.4900–", "*0.5950", "6.50", "22.0"],
        # The indexes of both parts; those of other systems do not count.
        ["hybrid-splade-idf", "*0.7000†", "0.4000–", "0.5500", "7.00", "23.6"],
    ]
    assert table(SYSTEMS, [FIRST, SECOND]).splitlines()[6:] == [
        "nDCG@10 on each collection, and the mean",
        "*: best of its column",
        "†: differs from bm25 (paired t-test on nDCG@10, p < 0.05, Holm-corrected over 3 systems)",
        "ms/query: encoding and search, in batches",
        "hybrids and reranking use the best 40 documents of each run (the setting depth)",
        "–: no p below 10 queries, nor of differences that are all the same",
        "over the collections, ms/query is the mean, and index MB the sum, of all indexes that a system searches",
    ]


def test_as_a_file_with_links_to_the_reports() -> None:
    reports = {Path("runs/scifact/splade-tiny/report.md"): FIRST, Path("runs/cacm/splade-tiny/report.md"): SECOND}
    lines = markdown(SYSTEMS, reports, Path("runs")).splitlines()
    assert lines[0] == "# scifact, cacm, encoder splade-tiny"
    assert lines[2] == "| system | scifact | cacm | mean | ms/query | index MB |"
    assert lines[7] == "| hybrid-splade-idf | **0.7000**† | 0.4000– | 0.5500 | 7.00 | 23.6 |"
    assert "- [cacm](cacm/splade-tiny/report.md), split test: 5,183 documents, 300 queries, 339 judgments" in lines


def test_collections_without_scores_are_named_and_not_in_the_mean() -> None:
    text = table(SYSTEMS, [FIRST, WITHOUT_QRELS, WITHOUT_QUERIES])
    header, *rows = cells(text)
    assert header == ["system", "scifact", "mean", "ms/query", "index", "MB"]
    assert rows[0] == ["bm25", "0.6789", "0.6789", "1.75", "4.5"]
    assert text.splitlines()[-2:] == [
        "notes is not scored: no qrels: nothing is evaluated; the runs are in runs/, the indexes in indexes/",
        "files is not scored: no queries: nothing is searched or evaluated; the indexes are in indexes/",
    ]
    alone = table(SYSTEMS, [WITHOUT_QUERIES, replace(WITHOUT_QUERIES, collection="more")])
    assert cells(alone)[:2] == [["system", "ms/query", "index", "MB"], ["bm25", "–", "3.0"]]
    assert "nDCG" not in alone and "best" not in alone


def load_results(folder: Path) -> Results:
    return RunFolder(folder).results


@slow
def test_several_collections_in_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], later: Callable[[], None]
) -> None:
    collections, output = [f"{DATA}/tiny.yaml", f"{DATA}/de.yaml"], str(tmp_path)
    arguments = ["--systems", "bm25", "splade-doc-idf", "hybrid-splade-doc-idf", "--output"]
    main([*collections, *arguments, output])
    printed = capsys.readouterr().out
    systems = [parse_system(name) for name in arguments[1:4]]
    results = [load_results(tmp_path / name) for name in ("tiny", "de")]
    assert printed.startswith("tiny:\nsystem ") and f"\n{output}/tiny/report.md\n\nde:\nsystem " in printed
    assert printed.endswith(f"\n\n{table(systems, results)}\n\n{output}/summary-splade-tiny.md\n")
    text = (tmp_path / "summary-splade-tiny.md").read_text()
    assert "- [de](de/report.md), split test: " in text and "| hybrid-splade-doc-idf | " in text
    assert {line.partition(":")[0] for line in table(systems, results).splitlines()} >= {"†", "–"}

    # Alone, each has the same scores, and nothing is made again.
    later()
    main([collections[1], *arguments, f"{output}/de"])
    assert capsys.readouterr().err == "" and "summary" not in printed.partition("de:")[0]
    assert load_results(tmp_path / "de").systems == results[1].systems
    main([*collections, *arguments, output, "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "up to date" not in line] == ["tiny:", "de:"]


@slow
def test_a_failing_collection_is_named_and_the_same_command_continues(
    tiny: Path, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], later: Callable[[], None]
) -> None:
    text, output = (broken / "corpus.jsonl").read_text(), tmp_path / "runs"
    (broken / "corpus.jsonl").write_text("broken\n")
    shutil.rmtree(broken / "qrels")
    arguments = [str(tiny), str(broken), "--systems", "bm25", "--output", str(output)]
    with pytest.raises(CaiError, match=r"^broken: .*corpus\.jsonl:1: .*not JSON"):
        main(arguments)
    printed = capsys.readouterr().out
    assert f"{output}/tiny/report.md" in printed and printed.endswith("broken:\n")
    assert not (output / "summary-splade-tiny.md").exists()
    (broken / "corpus.jsonl").write_text(text)
    later()
    main(arguments)
    printed = capsys.readouterr()
    assert printed.err.count("index bm25 ") == 1
    assert "broken is not scored: no qrels: " in (output / "summary-splade-tiny.md").read_text()
    assert (output / "broken" / "runs" / "bm25.trec").exists()
    with pytest.raises(CaiError, match=r"^tiny: index config tiny expects no scores .*\nbroken: "):
        main([*arguments, "--verify"])
    assert capsys.readouterr().out.endswith(f"{output}/summary-splade-tiny.md\n")


def test_what_cannot_run_is_refused_before_anything_runs(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "runs"
    for others, message in (
        ([f"{tiny}.yaml"], rf"^{tiny} and {tiny}\.yaml are both named tiny: "),
        (["no-such-collection"], "^no collection 'no-such-collection'"),
        ([f"{DATA}/de", "--systems", "dense"], "^tiny: dense needs the setting dense"),
        (
            [f"{DATA}/de", "--systems", "doct5query", "--generated", str(tiny)],
            "^the setting generated has the queries of one",
        ),
    ):
        with pytest.raises(CaiError, match=message):
            main([str(tiny), *others, "--output", str(output)])
    assert not output.exists()
