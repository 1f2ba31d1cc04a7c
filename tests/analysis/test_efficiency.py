"""Efficiency against counts by hand; what decides about an aim; the command on a finished run."""

import json
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.analysis.__main__ import main
from cai_pyserini.analysis.efficiency import Efficiency, Pruning, aims, efficiency, plot, prunings, times
from cai_pyserini.analysis.settings import EfficiencySettings
from cai_pyserini.core.errors import CaiError
from tests.conftest import json_lines


def row(name: str, score: float, p50: float, p99: float) -> Efficiency:
    return Efficiency(name, 10.0, 1000, 50.0, score, {10: (p50, p99)})


ROWS = [row("all", 0.5, 3, 6), row("mass 0.9", 0.496, 2, 3), row("mass 0.5", 0.49, 1, 1)]


def test_documents_and_queries_are_combined(tmp_path: Path) -> None:
    settings = EfficiencySettings(
        run_folder=tmp_path, output=tmp_path, keep_mass=[0.9], keep_terms=[64], keep_query_terms=[8], rescore=[50]
    )
    queries = ["", ", 8 query terms", ", 8 query terms, 50 rescored"]
    names = [f"{documents}{of_query}" for documents in ("all", "mass 0.9", "64 terms") for of_query in queries]
    assert [pruning.name for pruning in prunings(settings)] == names and prunings(settings)[0] == Pruning()


@pytest.mark.parametrize(
    "stock, line", [((4, 6), "met: 2 times as fast as stock"), ((3.9, 9), "MISSED"), ((9, 5.9), "MISSED")]
)
def test_an_aim_needs_both_percentiles_and_the_quality(stock: tuple[float, float], line: str) -> None:
    (found,) = aims(ROWS, {10: stock})  # the third row is the fastest, but loses 2%
    assert found.startswith(line) and "mass 0.9: " in found


def test_times_are_medians_of_rounds_after_a_warm_up() -> None:
    calls: list[str] = []
    searchers = {name: lambda id, name=name: calls.append(name + id) for name in ("a", "b", "c")}
    measured = times(searchers, ["1", "2"], 3, "")
    assert list(measured) == ["a", "b", "c"] and all(of_queries.shape == (2,) for of_queries in measured.values())
    assert calls[:6] == ["a1", "b1", "c1", "b2", "c2", "a2"] and len(calls) == 4 * 6
    assert all(0 < value < 100 for of_queries in measured.values() for value in of_queries)


def test_the_plot_has_a_panel_per_number_of_hits() -> None:
    (axes,) = plot(ROWS, {10: (4, 8)}).axes
    points = [np.array(line.get_xydata()).tolist() for line in axes.lines]
    assert points == [[[3, 0.5]], [[2, 0.496]], [[1, 0.49]], [[4, 0.5]]]


@pytest.mark.parametrize(
    "system, message",
    [("bm25", "only SPLADE systems"), ("splade-smooth", "no scores of splade-")],
)
@pytest.mark.slow
def test_systems_that_have_nothing_to_prune_are_refused(system: str, message: str, run_folder: Path, tmp_path: Path):
    with pytest.raises(CaiError, match=message):
        efficiency(EfficiencySettings(run_folder=run_folder, output=tmp_path, system=system))


@pytest.mark.slow
@pytest.mark.parametrize("system", ["splade-idf", "joint-splade-idf"])
def test_the_command(system: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--run-folder", str(run_folder), "--output", str(tmp_path), "--system", system, "--hits", "10"]
    main(
        ["efficiency", *arguments, "--keep-mass", "0.5", "--keep-query-terms", "2", "--rescore", "12", "--rounds", "1"]
    )
    printed = capsys.readouterr().out.splitlines()
    queries = ["", ", 2 query terms", ", 2 query terms, 12 rescored"]
    names = [f"{documents}{of_query}" for documents in ("all", "mass 0.5") for of_query in queries]
    assert [line.split("  ")[0] for line in printed[2:9]] == ["stock", *names]
    assert printed[-1] == f"{tmp_path}: efficiency.json, efficiency.png"
    data = json.loads((tmp_path / "efficiency.json").read_text())
    assert data["queries"] == 5 and data["stock"].keys() == {"10"}
    found = {pruning["name"]: pruning for pruning in data["prunings"]}
    scores = json.loads((run_folder / "evaluations" / f"{system}.json").read_text())["nDCG@10"]
    assert found["all"]["score"] == pytest.approx(sum(scores.values()) / len(scores))
    vectors = [line["vector"] for line in json_lines(run_folder / "impacts" / system / "00000.jsonl")]
    assert found["all"]["impacts_per_document"] == pytest.approx(sum(map(len, vectors)) / 12)
    assert found["mass 0.5"]["impacts_per_document"] < found["all"]["impacts_per_document"]
    assert found["mass 0.5, 2 query terms"]["postings_per_query"] < found["mass 0.5"]["postings_per_query"]
    assert found["mass 0.5"]["postings_per_query"] < found["all"]["postings_per_query"]
    two, rescored = found["all, 2 query terms"], found["all, 2 query terms, 12 rescored"]
    assert rescored["postings_per_query"] == two["postings_per_query"] and rescored["score"] >= two["score"]
