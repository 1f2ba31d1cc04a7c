"""Efficiency against counts by hand, and the command on a finished run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.analysis.efficiency import ROUNDS, Measured, proposal, spreads, times
from cai_pyserini.analysis.settings import EfficiencySettings
from cai_pyserini.cli.analyse import main
from cai_pyserini.core.errors import CaiError
from tests.conftest import json_lines

QUERIES = ["", ", query mass 0.3, 12 rescored"]


def test_each_round_times_every_query_after_a_warm_up() -> None:
    calls: list[str] = []
    searchers = {name: lambda id, name=name: calls.append(name + id) for name in ("a", "b", "c")}
    measured = times(searchers, ["1", "2"], "")
    assert list(measured) == ["a", "b", "c"] and all(ms.shape == (ROUNDS, 2) for ms in measured.values())
    assert calls[:6] == ["a1", "b1", "c1", "b2", "c2", "a2"] and len(calls) == (ROUNDS + 1) * 6
    assert all((ms > 0).all() and (ms < 100).all() for ms in measured.values())


def test_percentiles_are_over_queries_and_their_spread_over_rounds() -> None:
    found = spreads(np.array([[1, 2, 9], [1, 4, 5], [1, 3, 30]]))
    assert found["p50"] == (3, 2, 4) and str(found["p50"]) == "3.00 [2.00, 4.00]"
    assert found["p99"] == pytest.approx((8.86, 4.98, 29.46))


# Values of queries that choose, and of the others.
@pytest.mark.parametrize(
    "values, proposed, words",
    [
        ([(0.5, 0.5), (0.48, 0.1), (0.46, 0.3)], 2, r"0\.3000, -0\.2000, .*; p50 3\.00 \[3\.00, .*, 3\.0 times"),
        ([(0.5, 0.5), (0.48, 0.1), (0.44, 0.5)], 1, r"0\.1000, -0\.4000, .*; p50 6\.00 .*, 1\.5 times"),
        ([(0.5, 0.5), (0.44, 0.5), (0.44, 0.5)], 0, "no pruning is proposed"),
    ],
)
def test_a_search_is_chosen_by_one_half_of_the_queries_and_reported_on_the_other(
    values: list[tuple[float, float]], proposed: int, words: str, tmp_path: Path
) -> None:
    settings = EfficiencySettings(run=tmp_path, output=tmp_path, hits=[10], loss=0.1)
    names = ["all", "mass 0.9", "mass 0.9, query mass 0.55, 400 rescored"]
    queries = [str(number) for number in range(24)]
    milliseconds = [(8.0, 9.0), (4.0, 6.0), (2.0, 3.0)]  # of both halves
    found = [
        Measured(name, {}, dict(zip(queries, halves * 12, strict=True)), {10: np.array([ms * 12] * ROUNDS)})
        for name, halves, ms in zip(names, values, milliseconds, strict=True)
    ]
    text, data = proposal(found, queries, settings)
    assert data["name"] == names[proposed] and data["chosen_by"] == data["reported_on"] == 12
    assert re.search(words, text)
    two_steps = "keep_mass: 0.9, forward_index: true, keep_query_mass: 0.55, rescore: 400"
    assert text.endswith([names[0] + ", so no pruning is proposed.", ": keep_mass: 0.9", two_steps][proposed])


@pytest.mark.slow
@pytest.mark.parametrize("system, message", [("bm25", "only SPLADE systems"), ("splade-near", "no scores of splade-")])
def test_systems_that_have_nothing_to_prune_are_refused(system: str, message: str, run_folder: Path, tmp_path: Path):
    with pytest.raises(CaiError, match=message):
        main(["efficiency", str(run_folder), "--output", str(tmp_path), "--system", system])


@pytest.mark.slow
def test_the_command(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    system = "joint"
    arguments = [str(run_folder), "--output", str(tmp_path), "--system", system, "--hits", "10"]
    prunings = ["--keep-mass", "0.5", "--keep-query-mass", "0.3", "--rescore", "12"]
    main(["efficiency", *arguments, *prunings, "--loss", "0.99"])
    assert caplog.messages == ["5 queries are timed: with fewer than 100, p99 is that of the slowest"]
    printed = capsys.readouterr().out.splitlines()
    names = [f"{documents}{of_query}" for documents in ("all", "mass 0.5") for of_query in QUERIES]
    assert [line.split("  ")[0] for line in (*printed[2:6], *printed[9:14])] == [*names, "stock", *names]
    assert printed[15] == f"ms: median of {ROUNDS} rounds [smallest, largest], 5 of 5 queries"
    assert printed[17].startswith("By 3 random queries (seed 42)")
    data = json.loads((tmp_path / "efficiency.json").read_text())
    assert data["queries"] == data["timed"] == 5 and data["proposal"]["reported_on"] == 2
    assert all(low <= median <= high for median, low, high in data["stock"]["10"].values())
    found = {pruning["name"]: pruning for pruning in data["prunings"]}
    scores = json.loads((run_folder / "evaluations" / "joint-splade-idf.json").read_text())["nDCG@10"]
    assert found["all"]["score"] == pytest.approx(sum(scores.values()) / len(scores))
    vectors = [line["vector"] for line in json_lines(run_folder / "impacts" / "joint-splade-idf" / "00000.jsonl")]
    assert found["all"]["impacts_per_document"] == pytest.approx(sum(map(len, vectors)) / 12)
    for less, more in (("mass 0.5", "all"), (f"mass 0.5{QUERIES[1]}", "mass 0.5")):
        assert found[less]["postings_per_query"] < found[more]["postings_per_query"]
        assert (found[less]["impacts_per_document"] < found[more]["impacts_per_document"]) == (more == "all")
    of_two = found[names[1]]  # all 12 documents, so that none is missed
    assert of_two["score"] == found["all"]["score"] and of_two["index_bytes"] > found["all"]["index_bytes"]
    assert of_two["postings_per_query"] < found["all"]["postings_per_query"]
