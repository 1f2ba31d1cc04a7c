"""The evaluate command."""

from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.evaluate.__main__ import main

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
    main(["--collection", str(tiny), "--runs", *runs, "--measures", "RR@10", "P@1"])
    # Five queries: RR 1/2 of q1, against 1 of q1 and of q2.
    assert capsys.readouterr().out.splitlines() == [
        "run         RR@10     P@1",
        "-------------------------",
        "base.trec  0.1000  0.0000",
        "good.trec  0.4000  0.4000",
        "good.trec - base.trec: +0.3000 RR@10, p: –",
        "–: no p below 10 queries, nor of differences that are all the same",
    ]


def test_measures_may_be_the_same(tiny: Path, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The first of two names of a measure was a column of zeros."""
    main(["--collection", str(tiny), "--runs", runs[0], "--measures", "AP", "MAP", "AP"])
    assert capsys.readouterr().out.splitlines()[-1] == "base.trec  0.0500  0.0500  0.0500"  # and no comparison


def test_judgments_of_unknown_documents_do_not_count_unless_strict(
    broken: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with (broken / "qrels" / "train.tsv").open("a") as file:
        file.write("q1\tnowhere\t1\nq1\td1\t1\nq2\tnowhere\t1\n")
    arguments = ["--collection", str(broken), "--split", "train", "--runs", "base.trec", "--measures", "RR@10", "R@10"]
    main(arguments)
    assert capsys.readouterr().out.splitlines()[-1] == "base.trec  0.2500  0.5000"  # of q1 and t1
    with pytest.raises(CaiError, match=r"train\.tsv:3: document 'nowhere', judged for query 'q1', is not in the"):
        main([*arguments, "--strict"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--runs", "nowhere.trec"], "no run nowhere.trec"),
        (["--runs", "nowhere.trec", "--split", "dev", "--measures", "AP", "P"], "cannot compute P with .*P@10"),
        (["--runs", "base.trec", "--split", "dev"], "no .*dev"),
    ],
)
def test_arguments_that_are_refused(tiny: Path, runs: list[str], arguments: list[str], message: str) -> None:
    with pytest.raises(CaiError, match=message):
        main(["--collection", str(tiny), *arguments])
