"""Efficiency against counts by hand, and the command on a finished run."""

import json
import re
from pathlib import Path

import pytest

from cai_pyserini.analysis.efficiency import proposal, times
from cai_pyserini.analysis.settings import EfficiencySettings
from cai_pyserini.cli.analyse import main
from cai_pyserini.core.errors import CaiError
from tests.conftest import json_lines

QUERIES = ["", ", query mass 0.3, 12 rescored"]


def test_times_are_medians_of_rounds_after_a_warm_up() -> None:
    calls: list[str] = []
    searchers = {name: lambda id, name=name: calls.append(name + id) for name in ("a", "b", "c")}
    measured = times(searchers, ["1", "2"], "")
    assert list(measured) == ["a", "b", "c"] and all(of_queries.shape == (2,) for of_queries in measured.values())
    assert calls[:6] == ["a1", "b1", "c1", "b2", "c2", "a2"] and len(calls) == 4 * 6
    assert all(0 < value < 100 for of_queries in measured.values() for value in of_queries)


def test_the_fastest_search_that_loses_little_is_proposed(tmp_path: Path) -> None:
    settings = EfficiencySettings(run=tmp_path, output=tmp_path, hits=[10], loss=0.1)
    names = ["all", "mass 0.9", "mass 0.9, query mass 0.55, 400 rescored"]
    of_two = "forward_index: true, keep_query_mass: 0.55, rescore: 400"
    of_ten = [{10: (ms, ms)} for ms in (8.0, 4.0, 2.0)]
    for scores, proposed, words in (
        ((0.5, 0.48, 0.46), names[2], f"4.0 times .*: keep_mass: 0.9, {of_two}$"),
        ((0.5, 0.48, 0.44), names[1], "2.0 times .*: keep_mass: 0.9$"),
        ((0.5, 0.44, 0.44), names[0], "^No other search"),
    ):
        keys = ("name", "score", "latency")
        rows = [dict(zip(keys, each, strict=True)) for each in zip(names, scores, of_ten, strict=True)]
        text, name = proposal(rows, settings)
        assert name == proposed and re.search(words, text)


@pytest.mark.slow
@pytest.mark.parametrize("system, message", [("bm25", "only SPLADE systems"), ("splade-near", "no scores of splade-")])
def test_systems_that_have_nothing_to_prune_are_refused(system: str, message: str, run_folder: Path, tmp_path: Path):
    with pytest.raises(CaiError, match=message):
        main(["efficiency", str(run_folder), "--output", str(tmp_path), "--system", system])


@pytest.mark.slow
def test_the_command(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = "joint"
    arguments = [str(run_folder), "--output", str(tmp_path), "--system", system, "--hits", "10"]
    main(
        [
            "efficiency",
            *arguments,
            "--keep-mass",
            "0.5",
            "--keep-query-mass",
            "0.3",
            "--rescore",
            "12",
            "--loss",
            "0.99",
        ]
    )
    printed = capsys.readouterr().out.splitlines()
    names = [f"{documents}{of_query}" for documents in ("all", "mass 0.5") for of_query in QUERIES]
    assert [line.split("  ")[0] for line in printed[2:7]] == ["stock", *names]
    assert printed[7] == "" and printed[9:] == ["", f"{tmp_path}: efficiency.json"]
    data = json.loads((tmp_path / "efficiency.json").read_text())
    assert data["queries"] == 5 and data["stock"].keys() == {"10"}
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
