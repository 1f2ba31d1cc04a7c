"""Results: what the stages of an experiment have measured, and whether it is as expected."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cai_pyserini.beir.experiment import Experiment
from cai_pyserini.beir.systems import ADAPTED, System, with_parts
from cai_pyserini.collection.contract import Qrels
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, IndexConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.evaluate.measures import MEASURES, PerQuery, mean
from cai_pyserini.evaluate.significance import compare, compare_pairs

BASELINE = "bm25"
NEEDS: dict[str, set[str]] = {  # at query time
    "without a model": set(),
    "with SPLADE": {"splade"},
    "with any model": {"splade", "dense", "cross-encoder"},
}
COUNTS = ("documents", "passages", "queries", "judgments")
OTHER_COUNTS = ("cut", "lost", "empty_queries", "left_out_queries", "left_out_judgments")


@dataclass
class Results:
    """The results of an experiment, as in results.json; `systems` maps a name to means over queries.

    Without qrels, there are no measures among these means; without queries, there are no systems.
    """

    collection: str
    encoder: str
    split: str
    systems: dict[str, dict[str, float]]
    comparisons: dict[str, dict[str, float | None]]  # against the baseline: difference and p
    timings_s: dict[str, float]  # stage -> seconds
    index_bytes: dict[str, int]
    searches: dict[str, str]  # index -> a system that searches it
    nonzeros_per_document: float | None  # of SPLADE's raw vectors
    best: dict[str, str]  # what is needed at query time -> the best system
    alpha: dict[str, dict[str, float]]  # joint index -> weight of BM25 by the representation of queries
    gains: dict[str, dict[str, float | None]]  # adapted system -> difference to the same before adaptation, and p
    decision: list[str]  # what the documents decided: weights, and what of an adaptation is used
    counts: dict[str, float]
    settings: dict[str, Any]
    versions: dict[str, str]
    published: list[dict[str, Any]]

    @property
    def scored(self) -> bool:
        """Whether there are scores."""
        return any(MEASURES[0] in row for row in self.systems.values())


def gather(
    experiment: Experiment, systems: Sequence[System], qrels: Qrels | None, timings: dict[str, float]
) -> Results:
    """Collect the results of all stages from the run folder."""
    layout, config = experiment.layout, experiment.collection
    check = artifact.require(layout.collection, "beir")
    values: dict[str, PerQuery] = {}
    if qrels:
        values = {system.name: json.loads(layout.evaluation(system).read_text(encoding="utf-8")) for system in systems}
    rows: dict[str, dict[str, float]] = {}
    for system in systems if "queries" in check.stats else []:
        rows[system.name] = {name: mean(per_query) for name, per_query in values.get(system.name, {}).items()}
        rows[system.name]["queries"] = check.stats["queries"]
        run = artifact.require(layout.run(system), "search", "fusion fuse", "fusion rerank")
        rows[system.name]["ms_per_query"] = run.stats["ms_per_query"]
    main_measure = {name: measured[MEASURES[0]] for name, measured in values.items()}
    pairs = {
        name: (main_measure[plain], measured)
        for name, measured in main_measure.items()
        if name.startswith(ADAPTED) and (plain := name.removeprefix(ADAPTED)) in main_measure
    }
    baseline = main_measure.pop(BASELINE, None)
    comparisons = compare(baseline, main_measure) if baseline and main_measure else {}

    needed = with_parts(systems)
    indexes = {s.index: artifact.require(layout.index(s), "index") for s in needed if layout.index(s).is_dir()}
    splade = [system for system in needed if system.kind == "splade"]
    adaptation = artifact.read_manifest(layout.adapted) if any(system.adapted for system in needed) else None
    weights = artifact.read_manifest(layout.weights) if any(map(experiment.balances, needed)) else None
    raw = None
    if splade:
        first = min(splade, key=lambda system: system.adapted)
        raw = layout.vectors(replace(first, smooth=False), "documents", experiment.split)
    vectors = raw and artifact.require(raw, "encode")
    return Results(
        collection=config.name,
        encoder=experiment.encoder.name,
        split=experiment.split,
        systems=rows,
        comparisons={name: comparison._asdict() for name, comparison in comparisons.items()},
        timings_s=timings,
        index_bytes={name: manifest.stats["bytes"] for name, manifest in indexes.items()},
        searches={name: next(s.name for s in needed if s.parts == () and s.index == name) for name in indexes},
        best=_best(systems, rows) if qrels else {},
        alpha={
            system.index: artifact.require(layout.impacts(system), "impact").stats["alpha"]
            for system in splade
            if system.joint
        },
        gains={name: gain._asdict() for name, gain in compare_pairs(pairs).items()},
        decision=[line for manifest in (weights, adaptation) if manifest for line in manifest.stats["decision"]],
        nonzeros_per_document=vectors.stats["nonzeros"] / vectors.stats["vectors"] if vectors else None,
        counts={key: check.stats[key] for key in COUNTS + OTHER_COUNTS if key in check.stats},
        settings={
            "collection": {
                "source": _location(config),
                **config.model_dump(include={"fields", "columns", "query_columns", "passages", "passage_overlap"}),
            },
            "encoder": _without_none(experiment.encoder),
            "dense": experiment.dense and _without_none(experiment.dense),
            "cross_encoder": experiment.cross_encoder,
            "generated": experiment.generated,
            "precision": vectors and vectors.recipe["precision"],
            "bm25": {"k1": config.k1, "b": config.b},
            "hits": config.hits,
            "depth": experiment.depth,
            "remove_query": config.remove_query,
            "quantization_loss": {
                system.index: artifact.require(layout.impacts(system), "impact").stats["loss"] for system in splade
            },
        },
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


def _location(config: IndexConfig) -> str:
    """The source of a collection; a folder or file as an absolute path."""
    path = Path(config.source)
    return str(path.resolve()) if config.source != "hpo" and path.exists() else config.source


def _without_none(config: EncoderConfig) -> dict[str, Any]:
    return config.model_dump(exclude_none=True)


def verify(results: Results, config: IndexConfig) -> str:
    """Compare results with the scores that the index config expects. Returns the lines to print.

    Raises CaiError with these lines if a score differs by more than the tolerance; also if no scores are expected.
    """
    expected = config.expected.get("any", {}) | config.expected.get(results.encoder, {})
    expected = {name: score for name, score in expected.items() if results.scored and name in results.systems}
    if not expected:
        raise CaiError(
            f"index config {config.name} expects no scores of these systems with {results.encoder}: nothing to verify"
        )
    lines, wrong = [], []
    for name, score in expected.items():
        measured = results.systems[name]["nDCG@10"]
        agrees = round(abs(measured - score), 9) <= config.tolerance
        wrong += [] if agrees else [name]
        verdict = "ok  " if agrees else "FAIL"
        lines.append(f"{verdict} {name}: nDCG@10 {measured:.4f}, expected {score:.4f} ± {config.tolerance}")
    if wrong:
        lines.append(
            f"{len(wrong)} of {len(expected)} scores differ by more than {config.tolerance}: {', '.join(wrong)}"
        )
        raise CaiError("\n".join(lines))
    return "\n".join(lines)
