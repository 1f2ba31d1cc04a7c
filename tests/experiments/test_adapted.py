"""Runs with adaptation: before and after in one folder, with few steps of training."""

import shutil
from pathlib import Path

import pytest

from cai_pyserini.analysis.cost import costs
from cai_pyserini.analysis.explain import explain_query
from cai_pyserini.cli.run import main
from cai_pyserini.core import steps
from cai_pyserini.core.config import load_encoder
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments import prepare as preparing
from cai_pyserini.experiments.artifacts import SpladeEncoder
from cai_pyserini.experiments.execute import execute
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.plan import plan
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.report import markdown
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import System
from cai_pyserini.runs.trec import read_run, scores_by_query
from cai_pyserini.trainer.settings import AdaptSettings
from tests.conftest import ADAPTED, adapting


def systems(names: list[str]) -> list[System]:
    return [parse_system(name) for name in names]


@pytest.mark.slow
def test_systems_before_and_after_are_in_one_table_and_nothing_is_done_twice(adapted_run: Path, tiny: Path) -> None:
    run, results = RunFolder(adapted_run), RunFolder(adapted_run).results
    assert list(results.systems) == ADAPTED
    assert list(results.gains) == ADAPTED[5:9]  # the last two have nothing to compare with
    assert results.index_bytes.keys() == {
        *("bm25", "splade", "splade-idf", "joint-splade-idf-near", "dense", "adapted-dense", "adapted-splade"),
        *("adapted-splade-idf", "adapted-joint-splade-idf", "adapted-joint-splade-idf-near"),
    }
    assert results.alpha.keys() == {name for name in results.index_bytes if "joint" in name}
    (decision,) = results.decision
    report = run.report.read_text()
    assert report == markdown(results) and "\n## Adaptation\n" in report and f"\n- {decision}\n" in report
    assert load_encoder(str(index_of(parse_system("adapted-splade-idf"), run).output)).name == "adapted"
    before, after = (next(iter(SpladeEncoder(run, adapted).documents().vectors())).vectors for adapted in (False, True))
    assert before.shape == after.shape and abs(before - after).max() > 0.01
    again, _ = adapting(tiny, adapted_run.parent)
    assert {reason for _, reason in steps.plan(plan(again, systems(ADAPTED)))} == {None}


@pytest.mark.slow
def test_without_evidence_the_run_goes_on_with_the_encoders_as_they_were(
    adapted_run: Path, tiny: Path, tmp_path: Path
) -> None:
    """Twelve documents are no evidence; any gain was enough. The fault: the encoders of the adaptation before, which
    the folder has, are opened before they are made again."""
    run, settings = adapting(tiny, tmp_path)
    shutil.copytree(adapted_run, run.folder)
    names = ["joint-doc-near", "adapted-joint-doc-near"]
    run.adaptation = settings.replace(weight=None)
    results = execute(run, systems(names))
    (decision,) = results.decision
    assert decision.startswith(
        "not adapted: the encoders are used as before, since no candidate gains significantly in "
    )
    assert f"\n- {decision}\n" in run.report.read_text()
    before, after = (scores_by_query(read_run(ranking_of(parse_system(name), run).output)) for name in names)
    assert before == after


@pytest.mark.slow
def test_analyses_use_the_encoder_of_each_system(adapted_run: Path) -> None:
    run = RunFolder(adapted_run)
    assert SpladeEncoder(run).config().checkpoint == load_encoder("splade-tiny").checkpoint
    assert SpladeEncoder(run, adapted=True).opened().checkpoint.samefile(run.adapted)
    single = {"bm25", "splade-doc", "splade-idf", "joint-near"}
    of_adapted = {f"adapted-{name}" for name in single - {"bm25"}} | {"adapted-joint"}
    assert {cost.system for cost in costs(run)} == single | of_adapted
    case = explain_query(run, Run(run.folder), "q2", sorted(of_adapted))
    for name, explanations in case.systems.items():
        scores = scores_by_query(read_run(ranking_of(parse_system(name), run).output))["q2"]
        found = {e.document: e.score for e in explanations if e.rank}
        assert found and found == pytest.approx({document: scores[document] for document in found}, rel=1e-5)


def test_what_was_typed_is_what_adaptation_gets(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AdaptSettings | None] = []

    def record(run: RunFolder, systems: list[System], evaluate: bool) -> None:
        made.append(run.adaptation)
        raise InterruptedError(*(system.name for system in systems))

    monkeypatch.setattr(preparing, "execute", record)
    flags = [str(tiny), "--adapt", "--dense", "minilm", "--device", "cuda:1", "--output", str(tmp_path / "run")]
    flags += ["--precision", "float32", "--seed", "7", "--alpha", "2", "--depth", "50", "--weights", "3", "1", "1"]
    with pytest.raises(InterruptedError, match="adapted-trio"):
        main(flags)
    with pytest.raises(InterruptedError):
        main(flags[:1])
    run = RunFolder(tmp_path / "run")
    assert made == [
        AdaptSettings(
            collection=str(tiny),
            base="splade-tiny",
            dense="minilm",
            output=run.adapted,
            vectors=run.vectors,
            device="cuda:1",
            precision="float32",
            seed=7,
            alpha=2.0,
            depth=50,
            weights=[3.0, 1.0, 1.0],
        ),
        None,
    ]
