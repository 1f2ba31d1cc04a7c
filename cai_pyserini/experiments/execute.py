"""Execute an experiment and collect its results from the run folder."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from cai_pyserini.core import artifact, steps
from cai_pyserini.core.bars import step_line
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import json_text, remove_leftovers, write_text
from cai_pyserini.core.lock import locked
from cai_pyserini.core.notes import progress_line
from cai_pyserini.experiments.estimate import describe, estimate
from cai_pyserini.experiments.plan import plan, require
from cai_pyserini.experiments.provenance import encoding_precision, manifests_of, provenance, versions
from cai_pyserini.experiments.report import write
from cai_pyserini.experiments.report_page import write_page
from cai_pyserini.experiments.run_folder import BASELINE, COUNTS, Results, RunFolder, begun, current
from cai_pyserini.experiments.space import describe_space
from cai_pyserini.experiments.systems import ADAPTED, System, parse_system, with_parts
from cai_pyserini.experiments.versions import publish
from cai_pyserini.runs.measures import MEASURES, PerQuery, mean
from cai_pyserini.runs.significance import compare, compare_pairs
from cai_pyserini.trainer.settings import AdaptSettings
from cai_pyserini.vectors.shards import Vectors

MODELS_AT_QUERY_TIME: dict[str, set[str]] = {  # rows of "best": label -> the models a system may use
    "without a model": set(),
    "with SPLADE": {"splade"},
    "with any model": {"splade", "dense", "cross-encoder"},
}
OTHER_COUNTS = ("cut", "lost", "empty_queries", "left_out_queries", "left_out_judgments")


def execute(
    run: RunFolder,
    systems: Sequence[System],
    adaptation: AdaptSettings | None = None,
    evaluate: bool = True,
    earlier: RunFolder | None = None,
) -> Results:
    """Run the steps of `plan` that are not up to date, write results.json and both reports, and return the results."""
    experiment, needed = run.experiment, with_parts(systems)
    require(run, systems, adaptation, keep=earlier is not None)
    planned = plan(run, systems, adaptation, evaluate, earlier)
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
        results = gather(run, systems, timings, evaluate)
        reopened = RunFolder(run.root, experiment, before=run)  # reads the collection again
        with step_line("whether inputs have changed", None, None):
            for step, reason in steps.plan(plan(reopened, systems, adaptation, evaluate, earlier)):
                if reason is not None:
                    raise CaiError(f"{run.root}: the input of {step.name} changed meanwhile ({reason}): run it again")
        outputs = []
        if any(map(experiment.balances, needed)):
            outputs.append(run.weights)  # kept from `earlier` without a step, see Plan; so is the next
        if any(system.adapted for system in needed):
            outputs.append(run.adapted)
        results.made = _digests(run, [*outputs, *(step.output for step in planned)])
        manifests = manifests_of(planned)
        results.provenance = provenance(run, earlier, manifests)
        results.settings["precision"] = encoding_precision(manifests) or experiment.precision  # `auto`, resolved
        if previous:
            _add_others(results, previous, reopened, systems, evaluate)
        write(results, run)
        write_page(run)
        run.started_file.unlink(missing_ok=True)
        remove_leftovers(run.folder, re.escape(run.started_file.name))
        publish(run.root)
    return results


def _run_steps(
    run: RunFolder, systems: Sequence[System], planned: Sequence[steps.Step], previous: Results | None, evaluate: bool
) -> dict[str, float]:
    """Run steps, after saying how long they take, and return their seconds. Meanwhile, what has been made is recorded,
    so that it can be searched."""
    with step_line("what must run", None, None):
        reasons = {step.output: reason for step, reason in steps.plan(planned)}
        must_run = [step for step in planned if reasons[step.output] is not None]
        estimates = estimate(must_run)
    if not must_run:
        return steps.run(planned, {})
    for line in (*describe(must_run, estimates, run.experiment), *describe_space(run, must_run)):
        progress_line(line)
    started = begun(run.experiment, systems)
    kept = {run.weights, run.adapted} - reasons.keys()
    started.made = _digests(run, [*kept, *(output for output, reason in reasons.items() if reason is None)])
    if previous:
        adapts = reasons.get(run.adapted) is not None
        _add_others(started, previous, run, systems, evaluate, adapts)

    def record(*made: steps.Step) -> None:
        started.made |= _digests(run, [step.output for step in made])
        write_text(run.started_file, json_text(asdict(started)))

    record()
    return steps.run(planned, estimates, record)


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
            system = [parse_system(name)]
            require(run, system, keep=True)
            planned = steps.plan(plan(run, system, evaluate=evaluate))
            results.made |= _digests(run, [step.output for step, reason in planned if reason is None])
    searches = {index: name for index, name in previous.searches.items() if f"indexes/{index}" in results.made}
    results.searches = searches | results.searches


def gather(run: RunFolder, systems: Sequence[System], timings: dict[str, float], evaluate: bool = True) -> Results:
    """Collect the results of all steps from the run folder; without `evaluate`, systems have no scores."""
    experiment, qrels = run.experiment, run.qrels if evaluate else None
    check = artifact.require(run.checked, "beir")
    values: dict[str, PerQuery] = {}
    if qrels:
        values = {system.name: json.loads(run.evaluation(system).read_text(encoding="utf-8")) for system in systems}
    rows: dict[str, dict[str, float]] = {}
    for system in systems:
        row = rows[system.name] = {name: mean(per_query) for name, per_query in values.get(system.name, {}).items()}
        if evaluate and "queries" in check.stats:
            ranking = artifact.require(run.run(system), "search", "fusion fuse", "fusion rerank")
            row["queries"], row["ms_per_query"] = check.stats["queries"], ranking.stats["ms_per_query"]
    main_measure = {name: measured[MEASURES[0]] for name, measured in values.items()}
    pairs = {
        name: (main_measure[plain], measured)
        for name, measured in main_measure.items()
        if name.startswith(ADAPTED) and (plain := name.removeprefix(ADAPTED)) in main_measure
    }
    baseline = main_measure.pop(BASELINE, None)
    comparisons = compare(baseline, main_measure) if baseline and main_measure else {}

    needed = with_parts(systems)
    indexes = {s.index: artifact.require(run.index(s), "index") for s in needed if run.index(s).is_dir()}
    splade = [system for system in needed if system.kind == "splade"]
    adaptation = artifact.read_manifest(run.adapted) if any(system.adapted for system in needed) else None
    weights = artifact.read_manifest(run.weights) if any(map(experiment.balances, needed)) else None
    reranked = [artifact.read_manifest(run.run(s)) for s in needed if s.kind == "cross-encoder"]
    with_decisions = [manifest for manifest in (weights, adaptation, *reranked) if manifest]
    raw = None
    if splade:
        first = min(splade, key=lambda system: system.adapted)
        raw = run.vectors_of(replace(first, smooth=False))
    vectors = Vectors(raw) if raw else None
    return replace(
        begun(run.experiment, systems),
        systems=rows,
        comparisons={name: comparison._asdict() for name, comparison in comparisons.items()},
        timings_s=timings,
        index_bytes={name: manifest.stats["bytes"] for name, manifest in indexes.items()},
        best=_best(systems, rows) if qrels else {},
        alpha={s.index: artifact.require(run.impacts(s), "impact").stats["alpha"] for s in splade if s.joint},
        gains={name: gain._asdict() for name, gain in compare_pairs(pairs).items()},
        decision=[line for manifest in with_decisions for line in manifest.stats["decision"]],
        nonzeros_per_document=vectors.manifest.stats["nonzeros"] / len(vectors) if vectors else None,
        counts={key: check.stats[key] for key in COUNTS + OTHER_COUNTS if key in check.stats},
        precision=vectors.encoder["precision"] if vectors else None,
        quantization_loss={s.index: artifact.require(run.impacts(s), "impact").stats["loss"] for s in splade},
        versions=versions(),
    )


def _best(systems: Sequence[System], rows: dict[str, dict[str, float]]) -> dict[str, str]:
    """The best system under each limit of MODELS_AT_QUERY_TIME."""
    best = {}
    for label, models in MODELS_AT_QUERY_TIME.items():
        if names := [system.name for system in systems if system.models <= models]:
            best[label] = max(names, key=lambda name: rows[name][MEASURES[0]])
    return best
