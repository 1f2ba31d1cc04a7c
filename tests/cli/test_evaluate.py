"""The evaluate command."""

from pathlib import Path

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
    assert capsys.readouterr().out.splitlines() == [
        "run         RR@10     P@1",
        "-------------------------",
        "base.trec  0.1000  0.0000",
        "good.trec  0.4000  0.4000",
        "good.trec - base.trec: +0.3000 RR@10, p: –",
        "–: no p below 10 queries, nor of differences that are all the same",
    ]
    Path("third.trec").write_text(GOOD)
    main(["--collection", str(tiny), "--trec", *runs, "third.trec", "--measures", "RR@10"])
    assert capsys.readouterr().out.splitlines()[0] == "run            RR@10  better than"


def test_measures_may_be_the_same(tiny: Path, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The first of two names of a measure was a column of zeros."""
    main(["--collection", str(tiny), "--trec", runs[0], "--measures", "AP", "MAP", "AP"])
    assert capsys.readouterr().out.splitlines()[-1] == "base.trec  0.0500  0.0500  0.0500"  # and no comparison


def test_judgments_of_unknown_documents_do_not_count_unless_strict(
    broken: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with (broken / "qrels" / "train.tsv").open("a") as file:
        file.write("q1\tnowhere\t1\nq1\td1\t1\nq2\tnowhere\t1\n")
    arguments = ["--collection", str(broken), "--split", "train", "--trec", "base.trec", "--measures", "RR@10", "R@10"]
    main(arguments)
    assert capsys.readouterr().out.splitlines()[-1] == "base.trec  0.2500  0.5000"  # of q1 and t1
    with pytest.raises(CaiError, match=r"train\.tsv:3: document 'nowhere', judged for query 'q1', is not in the"):
        main([*arguments, "--strict"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--trec", "nowhere.trec"], "no run nowhere.trec"),
        (["--trec", "nowhere.trec", "--split", "dev", "--measures", "AP", "P"], "cannot compute P with .*P@10"),
        (["--trec", "base.trec", "--split", "dev"], "no .*dev"),
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
    main(["--collection", str(tiny), "--trec", runs[1]])
    assert caplog.messages == ["good.trec and the qrels have only 2 of 5 queries in common"]
    caplog.clear()
    documents = ["d1", "d4", "x1", "x2", "x3"]
    run = run_of({query: [(id, 1.0) for id in documents] for query in ("q1", "q2", "q3", "Q4")})
    write_run(run, Path("other.trec"), "other")
    main(["--collection", str(tiny), "--trec", "other.trec"])
    assert caplog.messages == ["other.trec and collection tiny have only 2 of 5 documents in common"]


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
    assert capsys.readouterr().out.splitlines()[2].startswith("1 empty.trec  0.0000")
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
