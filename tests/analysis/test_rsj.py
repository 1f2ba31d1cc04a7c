"""ΔRSJ by hand, tokens as Pyserini has them."""

import json
from math import log
from pathlib import Path

import pytest

from cai_pyserini.analysis.rsj import analyze, default_analyzer, plot, rsj, short_names, top_documents
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import BeirFolder
from tests.conftest import Command

TEXTS = {"d1": "Phytate, cancer", "d2": "cancers", "d3": "a cancer and its diets", "d4": "Dieting"}
QUERIES = {"q1": "the cancer cancers: diet of a zebra", "q2": "phytate", "q3": "diet", "zebra": "zebra"}
QRELS = [("q1", "d3", 2), ("q1", "d1", 0), ("q2", "d1", 0), ("q3", "d4", 1), ("zebra", "d4", 1)]


@pytest.fixture
def collection(tmp_path: Path) -> BeirFolder:
    folder = tmp_path / "diets"
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", TEXTS), ("queries", QUERIES)):
        records = [json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(records))
    lines = ["query-id\tcorpus-id\tscore\n", *("\t".join(map(str, judgment)) + "\n" for judgment in QRELS)]
    (folder / "qrels" / "test.tsv").write_text("".join(lines))
    return BeirFolder(folder, "diets")


@pytest.mark.parametrize(
    "holders, relevant, documents, odds_ratio",
    [
        ("abc", "ad", 10, (1.5 / 1.5) / (2.5 / 6.5)),
        ("abcd", "a", 4, (1.5 / 0.5) / (3.5 / 0.5)),  # every document has it
        ("ab", "ab", 5, (2.5 / 0.5) / (0.5 / 3.5)),  # the relevant documents have it and no other
        ("a", "b", 3, (0.5 / 1.5) / (1.5 / 1.5)),
    ],
)
def test_rsj_worked_examples(holders: str, relevant: str, documents: int, odds_ratio: float) -> None:
    assert rsj(set(holders), set(relevant), documents) == pytest.approx(log(odds_ratio))


def test_tokens_are_pyserinis() -> None:
    ours = default_analyzer()  # starts the JVM, which Pyserini would otherwise do as it is imported
    from pyserini.analysis import Analyzer, get_lucene_analyzer

    theirs = Analyzer(get_lucene_analyzer())
    texts = [
        "",
        "to be or not to be",
        "Körpergröße, [β-blockers]; 1,000 ½ mg",
        "naïve 血圧 😀 U.S. don't",
        *TEXTS.values(),
    ]
    for text in texts:
        assert ours(text) == theirs.analyze(text)
    assert ours("the Dieting of cancers, 1,000") == ["diet", "cancer", "1,000"]


def test_pairs_worked_example(collection: BeirFolder, caplog: pytest.LogCaptureFixture) -> None:
    runs = {"idf": {"q1": {"d1", "d2"}, "zebra": {"d1"}}, "ideal": {"q1": {"d3"}, "q3": {"d4"}, "zebra": {"d4"}}}
    analysis = analyze(collection, "test", runs)
    # Of the four documents three have "cancer", two "diet"; d3 has both. zebra is in no document.
    # q2 has no relevant document, q3 is not in the run idf.
    assert analysis.pairs.to_dict("list") == {
        "query": ["q1", "q1"],
        "token": ["cancer", "diet"],
        "documents": [3, 2],
        "idf": pytest.approx([log(4 / 3), log(2)]),
        "rsj": pytest.approx([log(1.8), log(5)]),
        "group": ["LowRSJ LowIDF", "HighRSJ HighIDF"],
    }
    assert analysis.delta.to_dict("list") == {
        "idf": pytest.approx([log(5) - log(1.8), log(0.04) - log(5)]),
        "ideal": [0, 0],
    }
    assert analysis.counts == {"documents": 4, "queries": 2, "pairs": 2}
    assert analysis.thresholds == pytest.approx(
        {"rsj": 0.25 * log(1.8) + 0.75 * log(5), "idf": (log(4 / 3) + log(2)) / 2}
    )
    assert "2 of 4 queries" in caplog.text
    assert {group: len(pairs) for group, pairs in analysis.groups().items()} == {
        "LowRSJ LowIDF": 1,
        "HighRSJ HighIDF": 1,
    }


def test_plot_has_a_box_for_each_group_and_run(collection: BeirFolder) -> None:
    (axes,) = plot(analyze(collection, "test", {"a": {"q1": {"d1"}}, "b": {"q1": {"d2"}}}), "diets").axes
    assert len(axes.patches) == 4
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "LowRSJ LowIDF\n1 pairs",
        "HighRSJ HighIDF\n1 pairs",
    ]


def test_best_documents_are_cut_at_the_depth(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q Q0 a 1 1 x\nq Q0 b 2 3 x\nq Q0 c 3 2 x\n007 Q0 NA 1 1 x\n")
    assert top_documents(tmp_path / "run.trec", 2) == {"007": {"NA"}, "q": {"b", "c"}}


@pytest.mark.parametrize(
    "runs, names",
    [
        (["runs/splade.trec"], ["splade"]),
        (["hpo/runs/bm25.trec", "hpo/runs/splade-idf.trec"], ["bm25", "splade-idf"]),
        (["base/runs/splade.trec", "adapted/runs/splade.trec"], ["base/splade", "adapted/splade"]),
        (["a.trec", "more/a", "a.trec"], ["a", "more/a", "a"]),
    ],
)
def test_short_names(runs: list[str], names: list[str]) -> None:
    assert short_names([Path(run) for run in runs]) == names


def test_queries_that_no_run_answers_leave_nothing(collection: BeirFolder) -> None:
    with pytest.raises(CaiError, match="no query of diets, split 'test', is in every run and has a word"):
        analyze(collection, "test", {"a": {"zebra": {"d1"}}})


def test_documents_of_another_collection(collection: BeirFolder) -> None:
    with pytest.raises(CaiError, match="splade: document 'elsewhere' is not in collection diets"):
        analyze(collection, "test", {"splade": {"q1": {"elsewhere"}}})


def test_the_command(collection: BeirFolder, tmp_path: Path, command: Command) -> None:
    for name, documents in (("splade", ["d1", "d2", "d3"]), ("splade-idf", ["d3", "d4"])):
        hits = [f"q1 Q0 {id} {rank} {-rank} x\n" for rank, id in enumerate(documents, 1)]
        (tmp_path / f"{name}.trec").write_text("".join(hits))
    given = ["--collection", collection.folder, "--runs", "splade.trec", "splade-idf.trec", "--output", "out"]
    done = command("cai_pyserini.analysis.rsj", *given, "--depth", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # splade: the {d1, d2} of the worked example. splade-idf, {d3, d4}:
    # cancer (1.5 / 1.5) / (2.5 / 0.5) = 0.2 against 1.8, diet (2.5 / 0.5) / (0.5 / 2.5) = 25 against 5
    assert done.stdout.splitlines() == [
        "median (mean) ΔRSJ  LowRSJ LowIDF  HighRSJ HighIDF",
        "--------------------------------------------------",
        "pairs                           1                1",
        "splade              +1.02 (+1.02)    -4.83 (-4.83)",
        "splade-idf          -2.20 (-2.20)    +1.61 (+1.61)",
        "",
        "out/rsj.json, rsj.png, rsj.tsv",
    ]
    data = json.loads((tmp_path / "out" / "rsj.json").read_text())
    assert data["depth"] == 2 and data["queries"] == 1 and data["documents"] == 4
    assert data["groups"]["HighRSJ HighIDF"]["median"] == pytest.approx({"splade": log(0.008), "splade-idf": log(5)})
    assert (tmp_path / "out" / "rsj.tsv").read_text().splitlines() == [
        "query\ttoken\tdocuments\tidf\trsj\tgroup\tΔRSJ splade\tΔRSJ splade-idf",
        "q1\tcancer\t3\t0.2877\t0.5878\tLowRSJ LowIDF\t1.0217\t-2.1972",
        "q1\tdiet\t2\t0.6931\t1.6094\tHighRSJ HighIDF\t-4.8283\t1.6094",
    ]


def test_depth_is_at_least_one(tiny: Path, tmp_path: Path, command: Command) -> None:
    given = ["--collection", tiny, "--runs", "x.trec", "--output", tmp_path / "out", "--depth", "0"]
    done = command("cai_pyserini.analysis.rsj", *given)
    assert (done.returncode, done.stderr) == (1, "error: --depth is 0; it must be at least 1\n")
    assert not (tmp_path / "out").exists()
