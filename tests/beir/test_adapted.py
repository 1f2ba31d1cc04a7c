"""Runs with adaptation: before and after in one folder, with few steps of training."""

import time
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from cai_pyserini.adapt.settings import AdaptSettings
from cai_pyserini.analysis.cost import costs
from cai_pyserini.analysis.explain import explain_query
from cai_pyserini.analysis.finished_run import FinishedRun
from cai_pyserini.beir import plan
from cai_pyserini.beir.__main__ import main
from cai_pyserini.beir.experiment import Experiment
from cai_pyserini.beir.report import markdown
from cai_pyserini.beir.systems import parse_system
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.trec import read_run, scores_by_query
from cai_pyserini.search.open import OpenRun
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import adapted_experiment

NAMES = ["bm25", "splade-doc", "joint-splade-idf-smooth", "hybrid-splade-idf-minmax", "dense"]
SYSTEMS = [*NAMES, *(f"adapted-{name}" for name in NAMES[1:])]


@pytest.fixture(scope="module")
def experiment(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """An experiment that has been run."""
    made = adapted_experiment(tiny, tmp_path_factory.mktemp("adapted"))
    plan.run(made, SYSTEMS)
    return made


@pytest.mark.slow
def test_systems_before_and_after_are_in_one_table(experiment: Experiment) -> None:
    results = plan.run(experiment, SYSTEMS)
    assert list(results.systems) == SYSTEMS
    assert list(results.gains) == SYSTEMS[len(NAMES) :]
    assert results.index_bytes.keys() == {
        *("bm25", "splade", "splade-idf", "joint-splade-idf-smooth", "dense", "adapted-dense"),
        *("adapted-splade", "adapted-splade-idf", "adapted-joint-splade-idf-smooth"),
    }
    assert results.alpha.keys() == {"joint-splade-idf-smooth", "adapted-joint-splade-idf-smooth"}
    (decision,) = results.decision
    report = experiment.layout.report.read_text()
    assert report == markdown(results) and "\n## Adaptation\n" in report and f"\n- {decision}\n" in report
    assert load_encoder(str(experiment.layout.index(parse_system("adapted-splade-idf")))).name == "adapted"
    before, after = (
        next(iter(Vectors(experiment.layout.vectors(parse_system(name), "documents", "test")))).vectors
        for name in ("splade", "adapted-splade")
    )
    assert before.shape == after.shape and abs(before - after).max() > 0.01


@pytest.mark.slow
def test_without_evidence_the_run_goes_on_with_the_encoders_as_they_were(tiny: Path, tmp_path: Path) -> None:
    """Twelve documents are no evidence; any gain was enough."""
    made = adapted_experiment(tiny, tmp_path)
    assert made.adapt
    names = ["joint-splade-doc-idf-smooth", "adapted-joint-splade-doc-idf-smooth"]
    results = plan.run(replace(made, adapt=made.adapt.replace(weight=None)), names)
    (decision,) = results.decision
    assert decision.startswith(
        "not adapted: the encoders are used as before, since no candidate gains significantly in "
    )
    assert f"\n- {decision}\n" in made.layout.report.read_text()
    before, after = (scores_by_query(read_run(made.layout.run(parse_system(name)))) for name in names)
    assert before == after


@pytest.mark.slow
def test_nothing_is_done_twice(experiment: Experiment) -> None:
    time.sleep(1)  # manifests are dated to the second
    before = {path: path.stat().st_mtime_ns for path in experiment.output.rglob("*") if path.is_file()}
    with redirect_stderr(StringIO()) as printed:
        plan.run(experiment, SYSTEMS)
    assert printed.getvalue() == ""
    after = {path: path.stat().st_mtime_ns for path in experiment.output.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()
    changed = {path.name for path in before if before[path] != after[path]}
    assert {"results.json", "report.md"} <= changed <= {"results.json", "report.md", ".lock"}


@pytest.mark.slow
def test_analyses_use_the_encoder_of_each_system(experiment: Experiment) -> None:
    run = FinishedRun(experiment.output)
    assert run.encoder().config.checkpoint == load_encoder("splade-tiny").checkpoint
    assert run.encoder(adapted=True).checkpoint.samefile(experiment.layout.adapted)
    single = {"bm25", "splade-doc", "splade-idf", "joint-splade-idf-smooth"}
    adapted = {"adapted-splade-doc", "adapted-splade-idf", "adapted-joint-splade-idf-smooth"}
    assert {cost.system for cost in costs(run)} == single | adapted
    case = explain_query(run, OpenRun(experiment.output), "q2", sorted(adapted))
    for name, explanations in case.systems.items():
        scores = scores_by_query(read_run(experiment.layout.run(parse_system(name))))["q2"]
        found = {e.document: e.score for e in explanations if e.rank}
        assert found and found == pytest.approx({document: scores[document] for document in found}, rel=1e-5)


@pytest.mark.slow
def test_documents_alone_can_be_adapted_to(tiny: Path, tmp_path: Path) -> None:
    documents = tmp_path / "documents.jsonl"
    documents.write_bytes((tiny / "corpus.jsonl").read_bytes())
    made = adapted_experiment(documents, tmp_path, dense=None)
    results = plan.run(made, ["adapted-splade-doc-idf"])
    assert results.searches == {"adapted-splade-idf": "adapted-splade-doc-idf"} and not results.systems
    assert made.layout.index(parse_system("adapted-splade-idf")).is_dir()


def test_what_was_typed_is_what_adaptation_gets(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Experiment] = []

    def record(experiment: Experiment, names: list[str]) -> None:
        made.append(experiment)
        raise InterruptedError(*names)

    monkeypatch.setattr(plan, "run", record)
    flags = [str(tiny), "--adapt", "--dense", "minilm", "--device", "cpu", "--output", str(tmp_path / "run")]
    with pytest.raises(InterruptedError, match="adapted-hybrid-splade-idf-dense-zscore"):
        main(flags)
    assert made[0].adapt == AdaptSettings(
        collection=str(tiny),
        base="splade-tiny",
        dense="minilm",
        output=tmp_path / "run" / "adapted",
        vectors=tmp_path / "run" / "vectors",
        device="cpu",
    )
    with pytest.raises(InterruptedError):
        main(flags[:1])
    assert made[1].adapt is None
