"""The evaluate command."""

import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from cai_pyserini.cli.evaluate import main
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.runs.fuse import fuse
from cai_pyserini.runs.fusions import FUSIONS
from cai_pyserini.runs.trec import read_run, run_of, write_run

BASE, GOOD = "q1 Q0 d9 1 2 x\nq1 Q0 d1 2 1 x\n", "q1 Q0 d1 1 2 x\nq2 Q0 d4 1 1 x\n"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of two runs in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("base.trec").write_text(BASE)
    Path("good.trec").write_text(GOOD)
    return ["base.trec", "good.trec"]


def test_the_others_are_compared_with_the_first(
    tiny: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--collection", str(tiny), "--trec", *runs, "--measures", "RR@10", "P@1"])
    # Five queries: RR 1/2 of q1, against 1 of q1 and of q2.
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if not line.startswith("-")] == [
        "system RR@10 P@1",
        "base 0.1000 0.0000",
        "good *0.4000 *0.4000",
        "tiny, split test, 5 queries",
        "*: best of its column",
        "",
        "system RR@10 − base 95% interval d_z p p (rand.) wins, losses, ties",
        "good +0.3000 – – – – 2, 0, 3",
        "–: no p below 10 queries, nor of differences that are all the same",
    ]


def test_queries_that_changed_most(tiny: Path, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for path, more in zip(runs, ("q3 Q0 d5 1 1 x\n", "q3 Q0 d1 1 2 x\nq3 Q0 d10 2 1 x\n"), strict=True):
        Path(path).write_text(Path(path).read_text() + more)
    arguments = ["--collection", str(tiny), "--trec", *runs, "--measures", "RR@10", "--changes"]
    main([*arguments, "9"])
    # RR: q1 1/2 and 1, q2 0 and 1, q3 1 and 1/2; the other two 0 and 0.
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[lines.index("queries that changed most base good difference") + 2 :] == [
        "q2: bladder infection 0.0000 1.0000 +1.0000",
        "q1: phytate for the treatment of cancer 0.5000 1.0000 +0.5000",
        "q3: what lowers high blood pressure? 1.0000 0.5000 -0.5000",
    ]
    main([*arguments, "1"])
    assert [line[:2] for line in capsys.readouterr().out.splitlines()[-2:]] == ["q2", "q3"]


def test_files_have_every_query_and_every_comparison(
    tiny: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--collection", str(tiny), "--trec", *runs, "--measures", "RR@10", "P@1", "--output"]
    main([*arguments, "out.json"])
    data = json.loads(Path("out.json").read_text())
    assert (data["title"], data["queries"], data["baseline"]) == ("tiny, split test", 5, "base")
    assert data["systems"]["good"] == {"RR@10": 0.4, "P@1": 0.4}
    assert data["per_query"]["good"]["RR@10"] == {"q1": 1, "q2": 1, "q3": 0, "q4": 0, "d8": 0}
    assert data["pairs"]["base"]["good"] == data["comparisons"]["good"]
    assert data["comparisons"]["good"]["difference"] == pytest.approx(0.3)
    capsys.readouterr()
    main([*arguments, "out.tsv", "--format", "csv"])
    lines, printed = pd.read_table("out.tsv"), pd.read_csv(StringIO(capsys.readouterr().out))
    assert [*lines] == ["query", "run", "measure", "value"] and len(lines) == 5 * 2 * 2
    means = lines.groupby(["run", "measure"]).value.mean()
    assert means["good", "RR@10"] == printed.set_index("system")["RR@10"]["good"] == 0.4


def test_a_finished_run_is_compared(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its own measures, those of its files; with others, those of its TREC runs."""
    results = json.loads((run_folder / "results.json").read_text())
    main([str(run_folder), "--output", str(tmp_path / "out.json")])
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["systems"] == {
        name: {measure: row[measure] for measure in results["measures"]} for name, row in results["systems"].items()
    }
    assert [data[name] for name in ("intervals", "comparisons", "pairs", "measures", "baseline")] == [
        *(results[name] for name in ("intervals", "comparisons", "pairs", "measures")),
        "bm25",
    ]
    capsys.readouterr()
    arguments = [str(run_folder), "--systems", "joint", "splade-idf", "--measures", "AP", "nDCG@10", "--format", "csv"]
    main(arguments)
    table = pd.read_csv(StringIO(capsys.readouterr().out)).set_index("system")
    assert [*table.index] == ["joint", "splade-idf"] and [*table][:3] == ["queries", "AP", "nDCG@10"]
    assert table["nDCG@10"]["joint"] == pytest.approx(results["systems"]["joint"]["nDCG@10"])
    assert table["difference"]["splade-idf"] == pytest.approx(table["AP"]["splade-idf"] - table["AP"]["joint"])
    with pytest.raises(CaiError, match=r"has no evaluation of dense that is up to date; it has bm25, "):
        main([str(run_folder), "--systems", "dense"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give a run folder, or --collection and --trec"),
        (["--collection", "hpo"], "give a run folder, or --collection and --trec"),
        (["runs/a", "--collection", "hpo"], "a run folder has its own collection and runs"),
        (["--collection", "hpo", "--trec", "a", "--systems", "bm25"], "--systems are those of a run folder"),
        (["runs/a", "--changes", "9"], "--changes are those of two systems"),
        (["runs/a", "--output", "a.txt"], "--output: a.txt ends neither in .json nor in .tsv"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_measures_may_be_the_same(tiny: Path, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The first of two names of a measure was a column of zeros."""
    main(["--collection", str(tiny), "--trec", runs[0], "--measures", "AP", "MAP", "AP"])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "base    0.0500  0.0500",
        "tiny, split test, 5 queries",
    ]  # and no comparison


def test_judgments_of_unknown_documents_do_not_count_unless_strict(
    broken: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with (broken / "qrels" / "train.tsv").open("a") as file:
        file.write("q1\tnowhere\t1\nq1\td1\t1\nq2\tnowhere\t1\n")
    arguments = ["--collection", str(broken), "--split", "train", "--trec", "base.trec", "--measures", "RR@10", "R@10"]
    main(arguments)
    assert capsys.readouterr().out.splitlines()[2] == "base    0.2500  0.5000"  # of q1 and t1
    with pytest.raises(CaiError, match=r"train\.tsv:3: document 'nowhere', judged for query 'q1', is not in the"):
        main([*arguments, "--strict"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--trec", "nowhere.trec"], "no run nowhere.trec"),
        (["--trec", "nowhere.trec", "--split", "dev", "--measures", "AP", "P"], "cannot compute P with .*P@10"),
        (["--trec", "base.trec", "--split", "dev"], "no .*dev"),
        (["--trec", "base.trec", "base.trec"], "base.trec is given twice"),
    ],
)
def test_arguments_that_are_refused(tiny: Path, runs: list[str], arguments: list[str], message: str) -> None:
    with pytest.raises(CaiError, match=message):
        main(["--collection", str(tiny), *arguments])


@pytest.mark.parametrize(
    "hits, other, ids",
    [
        ({"Q1": ["d1"], "Q3": ["d1"]}, "the qrels have no queries", "'Q1' and 'q1'"),
        ({"q1": ["doc_d1", "doc_d2"]}, "collection tiny have no documents", "'doc_d1' and 'd1'"),
        ({"q1": ["D1", "doc_d2"]}, "collection tiny have no documents", "'D1' and 'd1'"),
    ],
)
def test_a_run_of_another_collection_is_refused(tiny: Path, runs: list[str], hits: dict, other: str, ids: str) -> None:
    """It had 0 in every measure."""
    write_run(run_of({query: [(id, 1.0) for id in ids] for query, ids in hits.items()}), Path("other.trec"), "other")
    with pytest.raises(CaiError, match=rf"other\.trec and {other} in common: .* such as {ids}"):
        main(["--collection", str(tiny), "--trec", *runs, "other.trec"])


def test_a_run_that_has_little_in_common_with_the_collection_is_warned_of(
    tiny: Path, runs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Queries without hits, which look like a loss, are noted even if they are few."""
    caplog.set_level("INFO", "cai_pyserini.runs.measures")
    main(["--collection", str(tiny), "--trec", runs[1]])
    without_hits = "{} has no hits for {} of 5 judged queries, which count as 0"
    assert caplog.messages == [
        "good.trec and the qrels have only 2 of 5 queries in common",
        without_hits.format("good.trec", 3),
    ]
    caplog.clear()
    documents = ["d1", "d4", "x1", "x2", "x3"]
    run = run_of({query: [(id, 1.0) for id in documents] for query in ("q1", "q2", "q3", "Q4")})
    write_run(run, Path("other.trec"), "other")
    main(["--collection", str(tiny), "--trec", "other.trec"])
    assert caplog.messages == [
        "other.trec and collection tiny have only 2 of 5 documents in common",
        without_hits.format("other.trec", 2),
    ]


def test_a_run_without_hits_has_0_in_every_measure(
    tiny: Path, runs: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """If a system of ours has made it; of other tools, an empty file is broken."""
    empty, fused = Path("empty.trec"), Path("fused.trec")

    def write(path: Path) -> artifact.Stats:
        write_run(run_of({}), path, "nothing")
        return {"ms_per_query": 1.0}

    artifact.make(empty, {"stage": "search"}, write, folder=False)
    assert caplog.messages == ["nothing finds nothing for any query"]
    main(["--collection", str(tiny), "--trec", "empty.trec", *runs, "--measures", "AP"])
    assert capsys.readouterr().out.splitlines()[2].split() == ["empty", "0.0000"]
    assert "empty.trec has no hits: it has 0 in every measure" in caplog.messages
    for method in FUSIONS:
        fuse([empty, empty], fused, method)
        assert fused.read_text() == ""
        fuse([empty, Path(runs[0])], fused, method)
        assert {*read_run(fused).columns[1]} == {"d9", "d1"}


def test_a_run_of_the_documents_as_they_were_is_refused(broken: Path, runs: list[str]) -> None:
    """The qrels are of those of now. What a run of another tool is of, nobody knows."""

    def write(path: Path) -> artifact.Stats:
        write_run(run_of({"q1": [("d1", 1.0)]}), path, "tag")
        return {"ms_per_query": 1.0, "documents_digest": BeirFolder(broken, "any").documents_digest}

    artifact.make(Path("ours.trec"), {"stage": "search"}, write, folder=False)
    main(["--collection", str(broken), "--trec", *runs, "ours.trec"])
    with (broken / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "text": "fever"}\n')
    main(["--collection", str(broken), "--trec", *runs])
    with pytest.raises(CaiError, match=r"^ours\.trec is of other documents than the current ones: search again"):
        main(["--collection", str(broken), "--trec", *runs, "ours.trec"])
