"""ΔRSJ computed by hand, with Pyserini's tokens."""

import json
from math import log
from pathlib import Path

import pytest

from cai_pyserini.analysis.rsj import analyze, rsj_weight
from cai_pyserini.cli.analyse import main
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from tests.conftest import corpus_of

TEXTS = {"d1": "Phytate, cancer", "d2": "cancers", "d3": "a cancer and its diets", "d4": "Dieting"}
QUERIES = {"q1": "the cancer cancers: diet of a zebra", "q2": "phytate", "q3": "diet", "zebra": "zebra"}
QRELS = {"q1": {"d3": 2, "d1": 0}, "q2": {"d1": 0}, "q3": {"d4": 1}, "zebra": {"d4": 1}}


@pytest.fixture
def collection(tmp_path: Path) -> BeirFolder:
    return corpus_of(tmp_path / "diets", TEXTS, QUERIES, test=QRELS)


@pytest.mark.parametrize(
    "holders, relevant, documents, odds_ratio",
    [
        ("abc", "ad", 10, (1.5 / 1.5) / (2.5 / 6.5)),
        ("abcd", "a", 4, (1.5 / 0.5) / (3.5 / 0.5)),  # in every document
        ("ab", "ab", 5, (2.5 / 0.5) / (0.5 / 3.5)),  # in the relevant documents only
        ("a", "b", 3, (0.5 / 1.5) / (1.5 / 1.5)),
    ],
)
def test_rsj_worked_examples(holders: str, relevant: str, documents: int, odds_ratio: float) -> None:
    assert rsj_weight(set(holders), set(relevant), documents) == pytest.approx(log(odds_ratio))


@pytest.mark.slow
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
    assert "2 of 4 queries are left out" in caplog.text


@pytest.mark.slow
def test_runs_of_other_queries_or_documents_are_refused(collection: BeirFolder) -> None:
    with pytest.raises(CaiError, match="no query of diets, split 'test', is in every run and has a word"):
        analyze(collection, "test", {"a": {"zebra": {"d1"}}})
    with pytest.raises(CaiError, match="splade: document 'elsewhere' is not in collection diets"):
        analyze(collection, "test", {"splade": {"q1": {"elsewhere"}}})


@pytest.mark.slow
def test_the_command(collection: BeirFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, documents in (("splade", ["d1", "d2", "d3"]), ("splade-idf", ["d3", "d4"])):
        hits = [f"q1 Q0 {id} {rank} {-rank} x\n" for rank, id in enumerate(documents, 1)]
        (tmp_path / f"{name}.trec").write_text("".join(hits))
    runs = [str(tmp_path / f"{name}.trec") for name in ("splade", "splade-idf")]
    output = tmp_path / "out"
    main(["rsj", "--collection", collection.place, "--trec", *runs, "--depth", "2", "--output", str(output)])
    # splade: the {d1, d2} of the worked example. splade-idf, {d3, d4}:
    # cancer (1.5 / 1.5) / (2.5 / 0.5) = 0.2 against 1.8, diet (2.5 / 0.5) / (0.5 / 2.5) = 25 against 5
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed[2:5]] == [
        ["pairs", "1", "1"],
        [runs[0], "+1.02", "(+1.02)", "-4.83", "(-4.83)"],
        [runs[1], "-2.20", "(-2.20)", "+1.61", "(+1.61)"],
    ]
    assert printed[6] == f"{output}: rsj.json, rsj.tsv"
    data = json.loads((output / "rsj.json").read_text())
    assert data["depth"] == 2 and data["queries"] == 1 and data["documents"] == 4
    assert data["groups"]["HighRSJ HighIDF"]["median"] == pytest.approx({runs[0]: log(0.008), runs[1]: log(5)})
    assert len((output / "rsj.tsv").read_text().splitlines()) == 3
