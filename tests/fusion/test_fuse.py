"""Fusion: every method by hand, and against pyserini.fusion."""

import random
from pathlib import Path

import pytest

from cai_pyserini import jvm
from cai_pyserini.cli import CaiError
from cai_pyserini.fuse import METHODS, as_run, fuse
from cai_pyserini.trec import read_run, write_run
from tests.conftest import Command

Scores = dict[str, list[tuple[str, float]]]


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    """Start the JVM before anything imports Pyserini."""
    jvm.start()


@pytest.fixture
def fused(tmp_path: Path):
    """Fuse runs given as the lines `query document score`."""

    def run(method: str, *texts: str, **settings: float) -> Scores:
        paths = [tmp_path / f"{i}.trec" for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            hits = [line.split() for line in text.strip().splitlines()]
            path.write_text("".join(f"{query} Q0 {doc} 0 {score} x\n" for query, doc, score in hits))
        return as_run(fuse([read_run(path) for path in paths], method, **settings))  # type: ignore[arg-type]

    return run


def approximately(run: Scores) -> Scores:
    return {query: [(doc, pytest.approx(score)) for doc, score in hits] for query, hits in run.items()}


FIRST = """
    q1 a 3
    q1 b 2
    q1 c 1
    q2 a 5
"""
SECOND = """
    q1 d 2
    q1 b 4
    q3 z 1
"""


@pytest.mark.parametrize(
    "method, settings, q1, q2, q3",
    [
        ("sum", {}, {"b": 6, "a": 3, "d": 2, "c": 1}, {"a": 5}, {"z": 1}),
        ("minmax", {}, {"b": 0.5 + 1, "a": 1, "c": 0, "d": 0}, {"a": 1}, {"z": 1}),
        ("rrf", {}, {"b": 1 / 62 + 1 / 61, "a": 1 / 61, "d": 1 / 62, "c": 1 / 63}, {"a": 1 / 61}, {"z": 1 / 61}),
        ("rrf", {"rrf_k": 1}, {"b": 1 / 3 + 1 / 2, "a": 1 / 2, "d": 1 / 3, "c": 1 / 4}, {"a": 1 / 2}, {"z": 1 / 2}),
        ("product", {}, {"b": 8, "a": 0, "c": 0, "d": 0}, {"a": 0}, {"z": 0}),
        ("interpolation", {}, {"b": 3, "a": 1.5, "d": 1, "c": 0.5}, {"a": 2.5}, {"z": 0.5}),
        ("interpolation", {"alpha": 0.25}, {"b": 3.5, "d": 1.5, "a": 0.75, "c": 0.25}, {"a": 1.25}, {"z": 0.75}),
        # The best two of each run count, and are what min-max is of.
        ("sum", {"depth": 2}, {"b": 6, "a": 3, "d": 2}, {"a": 5}, {"z": 1}),
        ("minmax", {"depth": 2}, {"a": 1, "b": 1, "d": 0}, {"a": 1}, {"z": 1}),
        ("minmax", {"depth": 1}, {"a": 1, "b": 1}, {"a": 1}, {"z": 1}),
        ("product", {"depth": 1}, {"a": 0, "b": 0}, {"a": 0}, {"z": 0}),
        ("sum", {"hits": 1}, {"b": 6}, {"a": 5}, {"z": 1}),
    ],
)
def test_worked_examples(fused, method: str, settings: dict, q1: dict, q2: dict, q3: dict) -> None:
    wanted = {"q1": list(q1.items()), "q2": list(q2.items()), "q3": list(q3.items())}
    assert fused(method, FIRST, SECOND, **settings) == approximately(wanted)


@pytest.mark.parametrize(
    "method, wanted",
    [
        ("sum", {"a": 6, "b": 3}),
        ("minmax", {"a": 3, "b": 0}),
        ("rrf", {"a": 3 / 61, "b": 2 / 62}),
        ("product", {"a": 6, "b": 0}),
    ],
)
def test_three_runs(fused, method: str, wanted: dict) -> None:
    found = fused(method, "q a 1\nq b 0.5", "q a 2", "q a 3\nq b 2.5")
    assert found == approximately({"q": list(wanted.items())})


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_a_file_does_not_matter(fused, method: str) -> None:
    backwards = ["\n".join(reversed(text.strip().splitlines())) for text in (FIRST, SECOND)]
    assert fused(method, *backwards) == fused(method, FIRST, SECOND)


@pytest.mark.parametrize("method", METHODS)
def test_ties_are_by_document(fused, method: str) -> None:
    run = "q c 1\nq a 1\nq b 1"
    assert [doc for doc, _ in fused(method, run, run)["q"]] == ["a", "b", "c"]
    assert [doc for doc, _ in fused(method, run, run, depth=1)["q"]] == ["a"]


@pytest.mark.parametrize("method", METHODS)
def test_ids_are_strings(fused, method: str, tmp_path: Path) -> None:
    ids = ["007", "7", "NA", "null", "1e5"]
    text = "\n".join(f"{query} {doc} {3 + i}" for query in ids for i, doc in enumerate(ids))
    run = fused(method, text, text)
    assert list(run) == sorted(ids)
    assert all(sorted(doc for doc, _ in hits) == sorted(ids) for hits in run.values())
    write_run(run, tmp_path / "out", "t")
    assert sorted(set(read_run(tmp_path / "out").query_id)) == sorted(ids)


def random_run(seed: int, path: Path) -> Path:
    draw = random.Random(seed)
    run = {}
    for query in range(6):
        scores = sorted((round(draw.uniform(-3, 30), 6) for _ in range(40)), reverse=True)
        run[f"q{query}"] = list(zip(draw.sample([f"d{i}" for i in range(80)], 40), scores, strict=True))
    write_run(run, path, "random")
    return path


@pytest.mark.parametrize("method", ["sum", "minmax", "rrf", "interpolation"])
@pytest.mark.parametrize("depth", [40, 15])
def test_fusion_is_pyserinis(tmp_path: Path, method: str, depth: int) -> None:
    from pyserini.fusion import interpolation, normalize, reciprocal_rank_fusion
    from pyserini.trectools import AggregationMethod, TrecRun

    paths = [random_run(seed, tmp_path / f"{seed}.trec") for seed in range(2)]
    runs = [TrecRun(str(path)) for path in paths]
    if method == "minmax":  # theirs normalizes before it cuts
        for run in runs:
            run.run_data = run.run_data.groupby("topic").head(depth)
    theirs = {
        "sum": lambda: TrecRun.merge(runs, AggregationMethod.SUM, depth=depth, k=20),
        "minmax": lambda: normalize(runs, k=20),
        "rrf": lambda: reciprocal_rank_fusion(runs, rrf_k=7, depth=depth, k=20),
        "interpolation": lambda: interpolation(runs, alpha=0.3, depth=depth, k=20),
    }[method]().run_data
    ours = fuse([read_run(path) for path in paths], method, depth, hits=20, alpha=0.3, rrf_k=7)
    assert len(ours) == 6 * 20
    assert ours.query_id.tolist() == theirs.topic.tolist()
    assert ours.doc_id.tolist() == theirs.docid.tolist()
    assert ours.score.tolist() == pytest.approx(theirs.score.tolist(), rel=1e-12)


def test_fusing_leaves_the_runs_as_they_are(tmp_path: Path) -> None:
    runs = [read_run(random_run(seed, tmp_path / f"{seed}.trec")) for seed in range(2)]
    copies = [run.copy() for run in runs]
    for method in METHODS:
        fuse(runs, method)
    assert all(run.equals(copy) for run, copy in zip(runs, copies, strict=True))


@pytest.mark.parametrize(
    "method, count, message",
    [
        ("average", 2, "no fusion method 'average'; known are sum, minmax, rrf, product, interpolation"),
        ("sum", 1, "sum of 1 runs: it takes two or more"),
        ("interpolation", 3, "interpolation of 3 runs: it takes two"),
    ],
)
def test_what_cannot_be_fused_is_refused(fused, method: str, count: int, message: str) -> None:
    with pytest.raises(CaiError, match=message):
        fused(method, *[FIRST] * count)


def test_the_command(tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.trec").write_text("q1 Q0 a 1 3 x\nq1 Q0 b 2 2 x\n")
    (tmp_path / "b.trec").write_text("q1 Q0 b 1 4 x\n")
    done = command("cai_pyserini.fuse", "--runs", "a.trec", "b.trec", "--output", "out.trec", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "out.trec: 1 queries, 2 documents\n"), done.stderr
    assert (tmp_path / "out.trec").read_text() == "q1 Q0 b 1 6.000000 sum\nq1 Q0 a 2 3.000000 sum\n"


def test_the_command_fails_on_a_broken_run(tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.trec").write_text("q1 Q0 a 1 3 x\nq1 Q0 b 2\n")
    done = command("cai_pyserini.fuse", "--runs", "a.trec", "a.trec", "--output", "out.trec", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: a.trec:2: expected query Q0 document rank score tag\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.trec"]
