"""The steps of an experiment: what each system needs, from the collection to its scores."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.collections.readers import load_in_languages
from cai_pyserini.core import artifact, steps
from cai_pyserini.core.config import languages_in
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import require_trainer
from cai_pyserini.core.steps import Step
from cai_pyserini.experiments.artifacts import Artifact, CheckedCollection, EncodedQueries, walk
from cai_pyserini.experiments.chosen_artifacts import Weights
from cai_pyserini.experiments.index_artifacts import index_of
from cai_pyserini.experiments.names import with_parts
from cai_pyserini.experiments.ranking_artifacts import Evaluation, ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import RunSettings
from cai_pyserini.experiments.systems import ADAPTED, SINGLE, System
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.runs.fusions import FUSIONS


def artifacts(run: RunFolder, systems: Sequence[System], evaluate: bool = True) -> list[Artifact]:
    """All artifacts of systems, each once, after those that it is made from: with searches if the collection has
    queries, and evaluations if it has qrels, but neither without `evaluate`. Indexes come first, and weights, so that
    systems can be searched as early as possible."""
    needed, has_queries = with_parts(systems), evaluate and run.has_queries
    indexed = [system for system in needed if system.index_name]
    indexed.sort(key=lambda system: (system.adapted, system.near, system.work))
    encodes = any("splade" in system.evidence for system in indexed)
    ends: list[Artifact] = [CheckedCollection(run, encodes), *(index_of(system, run) for system in indexed)]
    if any(map(run.experiment.balances, needed)):
        ends.append(Weights(run))
    if has_queries:
        rankings = [ranking_of(system, run) for system in needed]
        ends += [*(each for each in walk(rankings) if isinstance(each, EncodedQueries)), *rankings]
    if evaluate and run.has_qrels:
        ends += [Evaluation(system, run) for system in systems]
    return list({each.output: each for each in walk(ends)}.values())


def plan(run: RunFolder, systems: Sequence[System], evaluate: bool = True) -> list[Step]:
    """The steps that make what `artifacts` lists, in order."""
    return _steps(artifacts(run, systems, evaluate))


def _steps(artifacts: Iterable[Artifact]) -> list[Step]:
    planned: dict[Path, Step] = {}
    for each in artifacts:
        for step in each.steps(planned):
            planned.setdefault(step.output, step)
    return list(planned.values())


class Planned(NamedTuple):
    """The artifacts that systems need, and why each step must run; None if its output is up to date."""

    artifacts: list[Artifact]
    reasons: dict[Step, str | None]

    @property
    def kept(self) -> list[Path]:
        """The outputs that no step makes, as they are those of an earlier run."""
        return [each.output for each in self.artifacts if each.is_kept]


def require(run: RunFolder, systems: Sequence[System], evaluate: bool = True, keep: bool = False) -> Planned:
    """What systems need. With `keep`, adapted encoders that exist need no adaptation settings.

    Raises CaiError, before any step runs, if the experiment lacks a setting that a system needs, if a step that has to
    run cannot, or if the run folder is not writable.
    """
    artifact.require_writable(run.root, marker=run.lock.name)
    experiment, needed = run.experiment, with_parts(systems)
    _require_weights(run, needed)
    if adapted := [system for system in needed if system.adapted]:
        if not keep or not artifact.read_manifest(run.adapted):
            _require_adaptation(run, adapted[0])
        needed.append(SINGLE["splade"])  # the base of the adaptation
    elif run.adaptation:
        raise CaiError(
            f"the setting adapt has no effect on these systems: name an adapted one, such as {ADAPTED}splade-idf"
        )
    for system in needed:
        for setting in system.settings:
            if getattr(experiment, setting) is None:
                description = RunSettings.model_fields[setting].description
                raise CaiError(f"{system.name} needs the setting {setting}, {description}")
        system.require(experiment)
    needs = artifacts(run, systems, evaluate)
    planned = Planned(needs, dict(steps.plan(_steps(needs))))
    for step, reason in planned.reasons.items():
        if reason is not None:
            step.require()
    has_words = any(planned.reasons.values()) and any("bm25" in system.evidence for system in needed)
    if has_words and "th" in languages_in(experiment.collection.language):
        Analyzer("th")("")  # which raises CaiError with the bundled Java
    return planned


def _require_weights(run: RunFolder, needed: Sequence[System]) -> None:
    if weights := run.experiment.weights:
        weighted = [system for system in needed if run.experiment.weights_of(system)]
        if min(weights) <= 0 or not weighted:
            raise CaiError(
                f"weights {' '.join(map(str, weights))}: give as many positive numbers as a hybrid has parts"
            )
        if fixed := [system for system in weighted if not FUSIONS[system.fusion].is_sum]:
            raise CaiError(f"weights have no effect on {fixed[0].fusion}: leave out {fixed[0].name}")


def _require_adaptation(run: RunFolder, system: System) -> None:
    """Raise CaiError if an adapted system cannot be adapted."""
    if run.adaptation is None:
        raise CaiError(f"{system.name} needs the setting adapt")
    require_trainer()
    read = load_in_languages(run.adaptation.collection)
    for name in ("passages", "language"):
        if (getattr(read, name) or 0) != (getattr(run.experiment.collection, name) or 0):
            raise CaiError(
                f"{name} with adapt: write `{name}` to a YAML file of the collection instead, as in index_configs/, "
                "so that adaptation reads the same"
            )
