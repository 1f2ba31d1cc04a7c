"""The fuse stage: its files, its latency, and what it refuses."""

import math
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.cli.fuse import main
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.runs.fuse import fuse, fuse_runs
from cai_pyserini.runs.fusions import FUSIONS
from cai_pyserini.runs.trec import add_latency, run_of

RUN = "q1 Q0 a 1 3 x\nq1 Q0 b 2 2 x\n"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two runs in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("a.trec").write_text(RUN)
    Path("b.trec").write_text("q1 Q0 b 1 4 x\n")
    return [Path("a.trec"), Path("b.trec")]


def timed_run(path: Path, ms: float) -> Path:
    """A run of the search stage that took `ms` milliseconds per query."""

    def write(partial: Path) -> artifact.Stats:
        partial.write_text(RUN)
        return {"queries": 1, "ms_per_query": ms}

    return artifact.make(path, {"stage": "search", "ms": ms}, write, folder=False)


@pytest.mark.parametrize(
    "method, count, weights, message",
    [
        ("average", 2, None, f"no fusion method 'average'; known are {', '.join(FUSIONS)}$"),
        ("sum", 1, None, "sum of 1 runs: it takes two or more"),
        ("sum", 2, [2], "1 weights for 2 runs: give one per run, in the order of the runs"),
        ("minmax", 2, [2, 0], "weights 2, 0: each must be a positive number"),
        ("minmax", 2, [1, math.inf], "weights 1, inf: each must be a positive number"),
        ("product", 2, [2, 1], "weights have no effect on product: leave them out, or choose another"),
    ],
)
def test_what_cannot_be_fused_is_refused(method: str, count: int, weights: list[float] | None, message: str) -> None:
    with pytest.raises(CaiError, match=f"^{message}"):
        fuse_runs([run_of({"q": [("a", 1.0)]})] * count, method, weights=weights)


def test_the_command(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    main(["--trec", *map(str, runs), "--output", "out.trec"])
    assert capsys.readouterr().out == "out.trec: 1 queries\n"
    assert Path("out.trec").read_text() == "q1 Q0 b 1 6.0 cai_pyserini\nq1 Q0 a 2 3.0 cai_pyserini\n"
    settings = ["--method", "rrf", "--depth", "1", "--hits", "1", "--weights", "3", "0.5"]
    main(["--trec", *map(str, runs), "--output", "out.trec", *settings])
    assert Path("out.trec").read_text() == f"q1 Q0 a 1 {3 / 61} cai_pyserini\n"
    main(["--trec", "a.trec", "a.trec", "--output", "twice.trec"])
    assert Path("twice.trec").read_text().split()[2] == "a"


@pytest.mark.parametrize(
    "other, message",
    [
        ("Q1 Q0 a 1 3 x\n", "a.trec and b.trec have no queries in common: their ids are such as 'q1' and 'Q1'"),
        ("q1 Q0 doc_a 1 3 x\n", "a.trec and b.trec have no documents in common: their ids are such as 'a' and 'doc_a'"),
    ],
)
def test_runs_of_different_collections_are_refused(runs: list[Path], other: str, message: str) -> None:
    """The result was a mixture."""
    runs[1].write_text(other)
    with pytest.raises(CaiError, match=message):
        main(["--trec", *map(str, runs), "--output", "out.trec"])
    assert not Path("out.trec").exists()


def test_runs_of_ours_of_the_same_documents_may_find_different_ones(runs: list[Path]) -> None:
    for run, document in zip(runs, "xy", strict=True):

        def write(path: Path, document: str = document) -> artifact.Stats:
            path.write_text(f"q1 Q0 {document} 1 1 t\n")
            return {"ms_per_query": 1.0, "documents_digest": ["of both", None]}

        run.unlink()
        artifact.make(run, {"stage": "search"}, write, folder=False)
    main(["--trec", *map(str, runs), "--output", "out.trec"])
    assert artifact.require(Path("out.trec"), "fusion fuse").stats["documents_digest"] == ["of both", None]


def test_runs_that_have_little_in_common_are_warned_of(runs: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    runs[0].write_text("q1 Q0 a 1 3 x\nq1 Q0 b 1 2 x\nq1 Q0 c 1 1 x\nq2 Q0 a 1 3 x\n")
    runs[1].write_text("q1 Q0 b 1 3 x\nq1 Q0 d 1 2 x\nq1 Q0 e 1 1 x\nq3 Q0 b 1 3 x\n")
    main(["--trec", "a.trec", "b.trec", "a.trec", "--output", "out.trec"])
    assert caplog.messages == [
        "a.trec and b.trec have only 1 of 3 queries in common; others are such as 'q2' and 'q3'",
        "a.trec and b.trec have only 1 of 3 documents in common; others are such as 'a' and 'd'",
    ]


@pytest.mark.parametrize(
    "method, warning",
    [
        ("sum", "documents that are missing from it count 0, which is higher; minmax and zscore rank them last"),
        ("product", "a product subtracts the lowest score of a query"),
    ],
)
def test_scores_below_0_are_warned_of(
    method: str, warning: str, runs: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """In a sum, 0 passes the -1 of "a". The depth matters, and the hits of the output do not."""
    runs[1].write_text("q1 Q0 b 1 5 y\nq1 Q0 d 2 3 y\nq1 Q0 a 3 -1 y\n")
    fuse(runs, Path("cut.trec"), method, depth=2)
    fuse(runs, Path("minmax.trec"), "minmax")
    if method == "sum":
        Path("all.trec").write_text("q1 Q0 b 1 5 y\nq1 Q0 d 2 3 y\nq1 Q0 a 3 -1 y\n")
        fuse([Path("all.trec"), runs[1]], Path("whole.trec"))  # which are missing nothing
    assert not caplog.messages
    runs[0].write_text(RUN + "q1 Q0 c 3 1 x\n")
    fuse(runs, Path("out.trec"), method, hits=1)
    assert caplog.messages == [f"b.trec has scores below 0: {warning}"]


def test_fused_again_only_where_a_run_or_a_setting_changes(runs: list[Path]) -> None:
    def digest(**settings: Any) -> str:
        return artifact.require(fuse(runs, Path("out.trec"), **settings), "fusion fuse").digest

    digests = [digest(), digest(method="rrf"), digest(depth=1), digest(hits=1), digest(weights=[2, 1])]
    runs[1].write_text("q1 Q0 b 1 5 x\n")
    digests.append(digest())
    assert len(set(digests)) == 6
    assert digest(weights=[2, 1]) == digest(weights=(2.0, 1.0))
    digest()
    before = Path("out.trec").stat().st_mtime_ns
    digest()
    assert Path("out.trec").stat().st_mtime_ns == before


def test_the_latency_of_a_fusion_is_that_of_its_runs_too(runs: list[Path], tmp_path: Path) -> None:
    two = [timed_run(tmp_path / "one.trec", 2.0), timed_run(tmp_path / "other.trec", 3.5)]
    assert add_latency(0.25, two) == 5.75
    assert add_latency(0.25, [two[0], runs[0]]) is None
    fused = fuse(two, tmp_path / "fused.trec")
    ms = artifact.require(fused, "fusion fuse").stats["ms_per_query"]
    assert ms > 5.5
    assert add_latency(1.0, [fused]) == 1.0 + ms
    unknown = fuse([fused, runs[0]], tmp_path / "unknown.trec")
    assert artifact.require(unknown, "fusion fuse").stats["ms_per_query"] is None
    assert add_latency(1.0, [unknown, two[0]]) is None
