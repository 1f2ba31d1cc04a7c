"""Execute an experiment and collect its results from the run folder."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from cai_pyserini.collections.file_listing import list_files
from cai_pyserini.core import artifact, steps
from cai_pyserini.core.bars import progress_line, step_line
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import json_text, remove_leftovers, write_text
from cai_pyserini.core.lock import locked
from cai_pyserini.experiments.artifacts import Artifact
from cai_pyserini.experiments.estimate import describe, estimate
from cai_pyserini.experiments.experiment import BASELINE, COUNTS, Results, begun
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.plan import Planned, plan, require
from cai_pyserini.experiments.provenance import encoding_precision, manifests_of, provenance, versions
from cai_pyserini.experiments.ranking_artifacts import Evaluation, ranking_of
from cai_pyserini.experiments.report import write, write_page
from cai_pyserini.experiments.run_folder import RunFolder, current
from cai_pyserini.experiments.systems import ADAPTED, System
from cai_pyserini.experiments.versions import publish
from cai_pyserini.runs.compared import Compared
from cai_pyserini.runs.measures import PerQuery, mean
from cai_pyserini.runs.significance import Significance

MODELS_AT_QUERY_TIME: dict[str, set[str]] = {  # rows of "best": label -> the models a system may use
    "without a model": set(),
    "with SPLADE": {"splade"},
    "with any model": {"splade", "dense", "cross-encoder"},
}
OTHER_COUNTS = ("cut", "lost", "empty_queries", "left_out_queries", "left_out_judgments")


def execute(run: RunFolder, systems: Sequence[System], evaluate: bool = True) -> Results:
    """Run the steps of `plan` that are not up to date, write results.json and both reports, and return the results."""
    with step_line("what must run", None, None):
        planned = require(run, systems, evaluate, keep=run.earlier is not None)
    run.root.mkdir(parents=True, exist_ok=True)
    with locked(run.lock, run.root, {}):
        if current(run.root).resolve() != run.folder.resolve():
            raise CaiError(f"{run.root} has just been updated: run the command again")
        previous: Results | None = None
        with suppress(CaiError):  # no run, or one of another version
            previous = RunFolder(run.root).results
        if previous:
            _require_same_collection(run, previous)
        timings = _run_steps(run, systems, planned, previous, evaluate)
        results = gather(run, systems, planned.artifacts, timings, evaluate)
        reopened = run.reopened()
        with step_line("whether inputs have changed", None, None):
            for step, reason in steps.plan(plan(reopened, systems, evaluate)):
                if reason is not None:
                    raise CaiError(f"{run.root}: the input of {step.name} changed meanwhile ({reason}): run it again")
        results.made = _digests(run, [*planned.kept, *(step.output for step in planned.reasons)])
        manifests = manifests_of([*planned.reasons])
        results.provenance = provenance(run, manifests)
        results.settings["precision"] = encoding_precision(manifests) or run.experiment.precision  # `auto`, resolved
        if previous:
            _add_others(results, previous, reopened, systems, evaluate)
        list_files(run.collection, run.files)
        write(results, run)
        if not previous or results.shown != previous.shown or not run.page.exists():
            write_page(run)  # whose charts take seconds
        run.started_file.unlink(missing_ok=True)
        remove_leftovers(run.folder, re.escape(run.started_file.name))
        publish(run.root)
    return results


def _run_steps(
    run: RunFolder, systems: Sequence[System], planned: Planned, previous: Results | None, evaluate: bool
) -> dict[str, float]:
    """Run steps, after saying how long they take, and return their seconds. Meanwhile, what has been made is recorded,
    so that it can be searched."""
    must_run = [step for step, reason in planned.reasons.items() if reason is not None]
    if not must_run:
        return steps.run([*planned.reasons], {})
    with step_line("how long it takes", None, None):
        estimates = estimate(must_run)
    for line in describe(must_run, estimates):
        progress_line(line)
    started = begun(run.experiment, systems)
    up_to_date = [step.output for step, reason in planned.reasons.items() if reason is None]
    started.made = _digests(run, [*planned.kept, *up_to_date])
    if previous:
        adapts = any(step.output == run.adapted for step in must_run)
        _add_others(started, previous, run, systems, evaluate, adapts)

    def record(*made: steps.Step) -> None:
        started.made |= _digests(run, [step.output for step in made])
        write_text(run.started_file, json_text(asdict(started)))

    record()
    return steps.run([*planned.reasons], estimates, record)


def _require_same_collection(run: RunFolder, previous: Results) -> None:
    """Raise CaiError if the folder has the run of another collection of the same name."""
    old, new = previous.settings["collection"]["source"], run.experiment.source
    is_moved = Path(old).is_absolute() and not Path(old).exists()
    if old != new and not is_moved:
        raise CaiError(f"{run.root} has the run of {old}: choose another output for {new}, or delete it")


def _digests(run: RunFolder, outputs: Iterable[Path]) -> dict[str, str]:
    """Recipe digests of the outputs that exist, by name, as in Results.made."""
    manifests = {path: artifact.read_manifest(path) for path in outputs}
    return {run.name_of(path): manifest.digest for path, manifest in manifests.items() if manifest}


def _add_others(
    results: Results, previous: Results, run: RunFolder, systems: Sequence[System], evaluate: bool, adapts: bool = False
) -> None:
    """Add the up-to-date outputs of other systems that previous runs in the folder made. With `adapts`, the encoders of
    adapted systems are about to change, so that no output of theirs is up to date, and none may be opened yet."""
    others = {*previous.systems, *previous.searches.values()} - {system.name for system in systems}
    others = {name for name in others if not (adapts and name.startswith(ADAPTED))}
    for name in sorted(others):
        with suppress(CaiError):  # the experiment lacks a setting that the system needs
            reasons = require(run, [parse_system(name)], evaluate, keep=True).reasons
            results.made |= _digests(run, [step.output for step, reason in reasons.items() if reason is None])
    searches = {index: name for index, name in previous.searches.items() if f"indexes/{index}" in results.made}
    results.searches = searches | results.searches


def gather(
    run: RunFolder,
    systems: Sequence[System],
    artifacts: Iterable[Artifact],
    timings: dict[str, float],
    evaluate: bool = True,
) -> Results:
    """Collect the results of all steps from the run folder; without `evaluate`, systems have no scores."""
    check = artifact.require(run.checked, "beir")
    rows: dict[str, dict[str, float]] = {system.name: {} for system in systems}
    per_query: dict[str, PerQuery] = {}
    if evaluate and run.qrels:
        for system in systems:
            per_query[system.name] = json.loads(Evaluation(system, run).output.read_text(encoding="utf-8"))
            rows[system.name] = {name: mean(values) for name, values in per_query[system.name].items()}
    if evaluate and "queries" in check.stats:
        for system in systems:
            stats = artifact.require(ranking_of(system, run).output, "search", "fusion fuse", "fusion rerank").stats
            rows[system.name] |= {"queries": check.stats["queries"], "ms_per_query": stats["ms_per_query"]}
    results = begun(run.experiment, systems)
    results.systems, results.timings_s, results.versions = rows, timings, versions()
    if per_query:
        _compare(results, Compared.of(per_query, BASELINE))
        results.best = _best(systems, rows, results.measure)
    results.counts = {key: check.stats[key] for key in COUNTS + OTHER_COUNTS if key in check.stats}
    for each in artifacts:
        if manifest := artifact.read_manifest(each.output):
            each.collect(results, manifest)
    return results


def _compare(results: Results, compared: Compared) -> None:
    """Add what tells whether the systems differ by more than chance."""
    results.evaluated_queries, results.intervals = compared.queries, compared.intervals
    results.comparisons, results.pairs = compared.comparisons, compared.pairs
    values = {name: by_measure[results.measure] for name, by_measure in compared.per_query.items()}
    plain = {name: name.removeprefix(ADAPTED) for name in values if name.startswith(ADAPTED)}
    gains = Significance(values).compare([(before, name) for name, before in plain.items() if before in values])
    results.gains = {name: found for (_, name), found in gains.items()}


def _best(systems: Sequence[System], rows: dict[str, dict[str, float]], measure: str) -> dict[str, str]:
    """The best system under each limit of MODELS_AT_QUERY_TIME."""
    best = {}
    for label, models in MODELS_AT_QUERY_TIME.items():
        if names := [system.name for system in systems if system.models <= models]:
            best[label] = max(names, key=lambda name: rows[name][measure])
    return best
