"""Several runs in one command, and the table over all of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.cli.run import main
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.summary import Run, Summary
from tests.conftest import DATA
from tests.experiments.test_report import RESULTS, UNSCORED, row

slow = pytest.mark.slow
INDEXES = {"bm25": 1_500_000, "splade": 25_000_000, "splade-idf": 20_000_000}
MS = (0.5, 12.348, 12, 13)


def made(
    collection: str,
    means: tuple[float, ...],
    queries: int = 20,
    encoder: str = "splade-tiny",
    seed: int | None = None,
    size: int = 1,
) -> Run:
    """A run of the systems of RESULTS with these means. All values differ from bm25's by about 0.01 more or less than
    their mean does."""
    base = np.random.default_rng(0).uniform(-0.3, 0.3, queries)
    noise = np.random.default_rng(len(encoder)).normal(0, 0.01, (len(means), queries)) * np.array(
        [[0], *[[1]] * (len(means) - 1)]
    )
    values = base - base.mean() + noise - noise.mean(1, keepdims=True) + np.array([means]).T
    by_query = {
        name: {f"q{number}": value for number, value in enumerate(own)}
        for name, own in zip(RESULTS.systems, values.tolist(), strict=True)
    }
    results = replace(
        RESULTS,
        collection=collection,
        encoder=encoder,
        evaluated_queries=queries,
        systems={name: row(mean, 0, 0, ms) for name, mean, ms in zip(RESULTS.systems, means, MS, strict=True)},
        index_bytes={name: each // size for name, each in INDEXES.items()},
    )
    label = encoder if seed is None else f"{encoder}-seed-{seed}"
    return Run(encoder, seed, results, Path("runs") / collection / label / "report.md", lambda: by_query)


FIRST = made("scifact", (0.67891, 0.6, 0.7001, 0.70013))
SECOND = made("cacm", (0.5, 0.45, 0.49, 0.40001), queries=5, size=10)
SEEDS = [made("scifact", (0.67891, 0.66 + gain, 0.7 + gain, 0.681), encoder="mine", seed=seed)
         for seed, gain in ((1, 0.0), (2, 0.004), (3, 0.008))]  # fmt: skip
NAMES = {name: {"queries": 7, "ms_per_query": 3} for name in RESULTS.systems}
WITHOUT_QRELS = replace(FIRST, results=replace(UNSCORED, collection="notes", systems=NAMES))
FILES = replace(
    UNSCORED, collection="files", systems={name: {} for name in NAMES}, counts={"documents": 12}, index_bytes=INDEXES
)
WITHOUT_QUERIES = replace(FIRST, results=FILES)


def cells(text: str, rows: int = len(MS)) -> list[list[str]]:
    """The rows of a table for a terminal, down to the legend."""
    lines = text.splitlines()
    return [line.split() for line in (lines[0], *lines[2 : 2 + rows])]


def test_a_column_per_collection_their_mean_time_and_size_and_a_legend() -> None:
    text = Summary([FIRST, SECOND]).text
    assert cells(text) == [
        ["system", "scifact", "cacm", "mean", "ms/query", "index", "MB"],
        ["bm25", "0.6789", "*0.5000", "0.5895", "0.50", "1.6"],
        ["splade", "0.6000†", "0.4500–", "0.5250", "12.35", "27.5"],
        ["splade-idf", "*0.7001†", "0.4900–", "*0.5950", "12.00", "22.0"],
        # The indexes of both parts; those of other systems do not count. What is equal in four places is equally good.
        ["hybrid-splade-idf", "*0.7001†", "0.4000–", "0.5501", "13.00", "23.6"],
    ]
    assert text.splitlines()[6:] == [
        "nDCG@10 on scifact (test, 20 queries), cacm (test, 5 queries), and the mean of these",
        "*: best of its column",
        "†: differs from bm25 (two-sided paired t-test on nDCG@10, p < 0.05, Holm-corrected over 3 rows of a column)",
        "–: no p below 10 queries, nor of differences that are all the same",
        "ms/query: encoding and search, in batches",
        "hybrids and reranking use the best 40 documents of each run (the setting depth)",
        "over the collections, ms/query is the mean, and index MB the sum, of all indexes that a system searches",
    ]


def test_encoders_and_seeds() -> None:
    """Faults: seeds are averaged before a test, so that a gain that one seed in three lacks is significant; bm25 has a
    row for each encoder; a trained encoder is compared with bm25 alone."""
    summary = Summary([FIRST, *SEEDS])
    assert cells(summary.text, 7) == [
        ["system", "encoder", "scifact", "ms/query", "index", "MB"],
        ["bm25", "0.6789", "0.50", "1.5"],
        ["splade", "splade-tiny", "0.6000†", "12.35", "25.0"],
        ["splade", "mine", "0.6640", "±", "0.0040†‡", "12.35", "25.0"],
        ["splade-idf", "splade-tiny", "0.7001†", "12.00", "20.0"],
        ["splade-idf", "mine", "*0.7040", "±", "0.0040†", "12.00", "20.0"],
        ["hybrid-splade-idf", "splade-tiny", "0.7001†", "13.00", "21.5"],
        ["hybrid-splade-idf", "mine", "0.6810‡", "13.00", "21.5"],
    ]
    test = "two-sided t-test with crossed random effects of queries and of seeds, where these matter, on nDCG@10"
    crossed = f"{test}, p < 0.05, Holm-corrected over"
    assert {
        "±: standard deviation over 3 seeds, of what is trained",
        "index MB: of all indexes that a system searches",
        f"†: differs from bm25 ({crossed} 6 rows of a column)",
        f"‡: differs from the same system with splade-tiny ({crossed} 3 rows of a column)",
    } <= {*summary.text.splitlines()}
    two = Summary([FIRST, *SEEDS[:2]]).text
    assert (
        "0.6620 ± 0.0028–" in two and "–: no p below 10 queries, nor of differences that are all the same, nor " in two
    )
    assert "one seed: p is about other queries, not about other seeds" in Summary([FIRST, SEEDS[0]]).text


def test_files_for_papers_and_programs(tmp_path: Path) -> None:
    path = Summary([replace(run, report=tmp_path / run.report) for run in (FIRST, *SEEDS)]).write(tmp_path / "runs")
    lines = path.read_text().splitlines()
    assert lines[0] == "# scifact, encoder splade-tiny, mine"
    assert "| splade-idf | mine | **0.7040 ± 0.0040**† | 12.00 | 20.0 |" in lines
    size = "split test: 5,183 documents, 300 queries, 339 judgments"
    assert f"- [scifact, mine, seed 2](scifact/mine-seed-2/report.md), {size}" in lines
    latex = path.with_suffix(".tex").read_text()
    assert r"splade & mine & 0.6640 $\pm$ 0.0040\textsuperscript{$\dagger$$\ddagger$} &" in latex
    assert "splade,mine,0.6640 ± 0.0040,12.35,25.0" in path.with_suffix(".csv").read_text()
    rows = json.loads(path.with_suffix(".json").read_text())["rows"]
    (found,) = [each for each in rows if (each["system"], each["encoder"]) == ("splade", "mine")]
    own = found["collections"]["scifact"]
    assert [(run["seed"], run["run"], run["nDCG@10"]) for run in own["runs"]][1] == (2, "scifact/mine-seed-2", 0.664)
    assert own["mean"] == pytest.approx(0.664) and own["deviation"] == pytest.approx(0.004)
    assert own["baseline"]["difference"] == pytest.approx(-0.01491) and own["baseline"]["p"] < 0.05
    assert own["first_encoder"]["difference"] == pytest.approx(0.064)


def test_collections_without_scores_are_named_and_not_in_the_mean() -> None:
    text = Summary([FIRST, WITHOUT_QRELS, WITHOUT_QUERIES]).text
    header, *rows = cells(text)
    assert header == ["system", "scifact", "ms/query", "index", "MB"]
    assert rows[0] == ["bm25", "0.6789", "1.75", "4.5"]
    assert text.splitlines()[-2:] == [
        "notes is not scored: no qrels: nothing is evaluated; the runs are in runs/, the indexes in indexes/",
        "files is not scored: no queries: nothing is searched or evaluated; the indexes are in indexes/",
    ]
    alone = Summary([WITHOUT_QUERIES, replace(WITHOUT_QUERIES, results=replace(FILES, collection="more"))]).text
    assert cells(alone)[:2] == [["system", "ms/query", "index", "MB"], ["bm25", "–", "3.0"]]
    assert "nDCG" not in alone and "best of" not in alone


@slow
def test_several_collections_in_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], later: Callable[[], None]
) -> None:
    collections, output = [f"{DATA}/tiny.yaml", f"{DATA}/de.yaml"], str(tmp_path)
    arguments = ["--systems", "bm25", "splade-doc-idf", "hybrid-splade-doc-idf", "--output"]
    main([*collections, *arguments, output])
    printed = capsys.readouterr().out
    scores = RunFolder(tmp_path / "de").results.systems
    assert printed.startswith("tiny:\nsystem ") and f"\n{output}/tiny/report.md\n\nde:\nsystem " in printed
    assert printed.endswith(f"\n\n{output}/summary.md\n")
    summary = printed.rpartition("de/report.md\n")[2]
    assert summary.split()[:6] == ["system", "tiny", "de", "mean", "ms/query", "index"]
    text = (tmp_path / "summary.md").read_text()
    assert "- [de](de/report.md), split test: " in text and "| hybrid-splade-doc-idf | " in text
    assert {line.partition(":")[0] for line in summary.splitlines()} >= {"†", "–"}

    # Alone, each has the same scores, and nothing is made again.
    later()
    main([collections[1], *arguments, f"{output}/de"])
    assert capsys.readouterr().err == "" and "summary" not in printed.partition("de:")[0]
    assert RunFolder(tmp_path / "de").results.systems == scores
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
    assert not (output / "summary.md").exists()
    (broken / "corpus.jsonl").write_text(text)
    later()
    main(arguments)
    printed = capsys.readouterr()
    assert printed.err.count("index bm25 ") == 1
    assert "broken is not scored: no qrels: " in (output / "summary.md").read_text()
    assert (output / "broken" / "runs" / "bm25.trec").exists()
    with pytest.raises(CaiError, match=r"^tiny: index config tiny expects no scores .*\nbroken: "):
        main([*arguments, "--verify"])
    assert capsys.readouterr().out.endswith(f"{output}/summary.md\n")


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
