"""Execute an experiment, and collect its results from the run folder."""

import json
from collections.abc import Sequence
from dataclasses import replace

from cai_pyserini.adapt.settings import AdaptSettings
from cai_pyserini.beir.plan import plan, require
from cai_pyserini.beir.report import write
from cai_pyserini.beir.run_folder import BASELINE, COUNTS, Results, RunFolder, current
from cai_pyserini.beir.systems import ADAPTED, System, with_parts
from cai_pyserini.beir.versions import publish
from cai_pyserini.core import artifact, steps
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import locked
from cai_pyserini.evaluate.measures import MEASURES, PerQuery, mean
from cai_pyserini.evaluate.significance import compare, compare_pairs

NEEDS: dict[str, set[str]] = {  # the models needed at query time
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
    """Run the steps that are not up to date (see plan), write results.json and report.md, and return the results."""
    require(run, systems, adaptation, keep=earlier is not None)
    planned = plan(run, systems, adaptation, evaluate, earlier)
    artifact.require_writable(run.root, marker=run.lock.name)
    run.root.mkdir(parents=True, exist_ok=True)
    with locked(run.lock, run.root, {}):
        if current(run.root).resolve() != run.folder.resolve():
            raise CaiError(f"{run.root} has just been updated: run the command again")
        results = gather(run, systems, steps.run(planned), evaluate)
        write(results, run)
        publish(run.root)
    return results


def gather(run: RunFolder, systems: Sequence[System], timings: dict[str, float], evaluate: bool = True) -> Results:
    """Collect the results of all steps from the run folder; without `evaluate`, systems have no values."""
    experiment, config, qrels = run.experiment, run.experiment.collection, run.qrels if evaluate else None
    check = artifact.require(run.checked, "beir")
    values: dict[str, PerQuery] = {}
    if qrels:
        values = {system.name: json.loads(run.evaluation(system).read_text(encoding="utf-8")) for system in systems}
    rows: dict[str, dict[str, float]] = {}
    for system in systems if "queries" in check.stats else []:
        row = rows[system.name] = {name: mean(per_query) for name, per_query in values.get(system.name, {}).items()}
        if evaluate:
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
    decided = [manifest for manifest in (weights, adaptation, *reranked) if manifest]
    raw = None
    if splade:
        first = min(splade, key=lambda system: system.adapted)
        raw = run.vectors_of(replace(first, smooth=False))
    vectors = artifact.require(raw, "encode") if raw else None
    return Results(
        collection=config.name,
        encoder=experiment.encoder.name,
        split=config.split,
        systems=rows,
        comparisons={name: comparison._asdict() for name, comparison in comparisons.items()},
        timings_s=timings,
        index_bytes={name: manifest.stats["bytes"] for name, manifest in indexes.items()},
        searches={name: next(s.name for s in needed if s.parts == () and s.index == name) for name in indexes},
        best=_best(systems, rows) if qrels else {},
        alpha={s.index: artifact.require(run.impacts(s), "impact").stats["alpha"] for s in splade if s.joint},
        gains={name: gain._asdict() for name, gain in compare_pairs(pairs).items()},
        decision=[line for manifest in decided for line in manifest.stats["decision"]],
        nonzeros_per_document=vectors.stats["nonzeros"] / vectors.stats["vectors"] if vectors else None,
        counts={key: check.stats[key] for key in COUNTS + OTHER_COUNTS if key in check.stats},
        settings=experiment.record(),
        precision=vectors.stats["encoder"]["precision"] if vectors else None,
        quantization_loss={s.index: artifact.require(run.impacts(s), "impact").stats["loss"] for s in splade},
        versions=check.versions,
        published=[score.model_dump() for score in config.published],
    )


def _best(systems: Sequence[System], rows: dict[str, dict[str, float]]) -> dict[str, str]:
    """The best system of those that need no more than each of NEEDS at query time."""
    found = {}
    for label, models in NEEDS.items():
        if names := [system.name for system in systems if system.models <= models]:
            found[label] = max(names, key=lambda name: rows[name][MEASURES[0]])
    return found
