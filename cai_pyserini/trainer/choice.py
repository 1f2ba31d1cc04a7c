"""Decide, without labels, whether adapted encoders replace the old ones, and with which weights.

Pseudo queries that are held out of the training evaluate a candidate on the recommended systems, as these are served
(see simulated.py): by the nDCG@10 of each query's source after the query's words were deleted from it, since real
queries rarely have all words in common with a document. The queries of one source are averaged, because they are not
independent.

A candidate is eligible if every system gains significantly. Among eligible candidates, the smallest change (the sum of
the weights) that is not significantly worse than the best wins; if none is eligible, nothing is changed.

The weight w of BM25 in the fusion w * z(BM25) + z(SPLADE with IDF) + 2 * z(dense) of smooth systems is chosen likewise:
the weight nearest to the default that is not significantly worse than the best.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact, files
from cai_pyserini.trainer.adaptation_data import AdaptationData
from cai_pyserini.trainer.mixture import WEIGHTS
from cai_pyserini.trainer.simulated import SimulatedRetrieval, smoothed

BM25_WEIGHTS = (2.0, 1.0, 0.5)  # candidate weights of BM25 in the fusion; the first is that of mixture.WEIGHTS
FEW_HELD_OUT = {"held_out_share": 0.05, "held_out_kinds": ("title", "phrases")}  # enough to choose only these weights
MIN_SOURCES = 30  # with fewer, no gain is significant
STANDARD_ERRORS = 3.0  # a gain is significant from so many; the best of several candidates looks too good


class Candidate(NamedTuple):
    """The weights of the trained SPLADE and of the projection of dense vectors."""

    splade: float
    projection: float

    def __str__(self) -> str:
        parts = f"weight {self.splade:.2g} of the trained SPLADE", f"weight {self.projection:.2g} of the projection"
        return " and ".join(part for part, weight in zip(parts, self, strict=True) if weight)


class Decision(NamedTuple):
    """The chosen candidate, the reason as a sentence, and the gains of all candidates by system."""

    chosen: Candidate
    reason: str
    gains: list[dict[str, float]]


def decide(values: Mapping[Candidate, np.ndarray], sources: np.ndarray, systems: Sequence[str]) -> Decision:
    """Choose among candidates by their values (systems, queries); the smallest candidate changes nothing.

    `sources` (queries,) has the source of each query.
    """
    means = {each: mean_by_source(values[each], sources) for each in sorted(values, key=sum)}
    none, *others = means
    gains = {each: means[each] - means[none] for each in others}
    eligible = {each: means[each].mean(0) for each, gain in gains.items() if (_lower_bound(gain) > 0).all()}
    best = _smallest_change(eligible) if eligible else max(others, key=lambda each: gains[each].mean())
    by_system = zip(systems, gains[best].mean(1), _standard_error(gains[best]), strict=True)
    listed = ", ".join(f"{name} {gain:+.4f} ± {error:.4f}" for name, gain, error in by_system)
    evidence = f"{_evidence(sources)}; gains in nDCG@10: {listed}"
    reason = f"adapted: {best} ({evidence})"
    if not eligible:
        unchanged = "no projection: the dense encoder is" if none.splade else "not adapted: the encoders are"
        reason = (
            f"{unchanged} used as before, since no candidate gains significantly in each recommended system; "
            f"{best} comes closest ({evidence})"
        )
    table = [
        each._asdict() | dict(zip(systems, gain.mean(1).round(5).tolist(), strict=True)) for each, gain in gains.items()
    ]
    return Decision(best if eligible else none, reason, table)


def balance(data: AdaptationData, output: Path) -> Path:
    """Write the weights of the fusion, {"bm25": w, "splade": 1, "dense": 2}; without held-out queries, w is 2."""
    recipe = artifact.recipe("adapt: balance", data.simulation_identity, seed=data.seed, depth=data.depth)

    def write(path: Path) -> artifact.Stats:
        weights, evidence = (*WEIGHTS.values(),), "too few documents yield queries to judge by"
        if len(data.held_out):
            weights, evidence = fusion_weights(SimulatedRetrieval.for_pseudo_queries(data, data.held_out))
        files.write_text(path, json.dumps(dict(zip(WEIGHTS, weights, strict=True))) + "\n")
        shares = " : ".join(f"{weight:.2g}" for weight in weights)
        return {"decision": [f"BM25 + SPLADE + dense have the weights {shares} ({evidence})"]}

    return artifact.make(output, recipe, write, folder=False)


def fusion_weights(retrieval: SimulatedRetrieval) -> tuple[tuple[float, ...], str]:
    """The weights of BM25, SPLADE and dense in their fusion, and the evidence for them: the weights of the settings, or
    those that the held-out queries choose with the encoders before adaptation."""
    if retrieval.data.weights:
        return (*retrieval.data.weights,), "as given"
    _, *others = WEIGHTS.values()
    (queries, rows), sparse = retrieval.old_dense, retrieval.old_splade
    near = retrieval.neighbours(rows)
    bm25 = retrieval.bm25.weighting.weights(retrieval.counts, retrieval.neighbours_words(near))
    parts = retrieval.parts(sparse, smoothed(sparse.rows, near), bm25, queries, rows)
    means: dict[float, np.ndarray] = {}
    for weight in BM25_WEIGHTS:
        scores = retrieval.fused(parts, (weight, *others))
        means[weight] = mean_by_source(retrieval.ndcg(scores), retrieval.sources)
    listed = ", ".join(f"{weight:.2g}: {mean.mean():.3f}" for weight, mean in means.items())
    return (_smallest_change(means), *others), f"{_evidence(retrieval.sources)}, by weight: {listed}"


def _evidence(sources: np.ndarray) -> str:
    return f"{len(sources):,} pseudo queries from {len(set(sources)):,} documents without the queries' words"


def mean_by_source(values: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Average values (…, queries) over the queries of each source: (…, sources)."""
    _, columns, counts = np.unique(sources, return_inverse=True, return_counts=True)
    return np.asarray(values @ csr_matrix((1 / counts[columns], (np.arange(len(columns)), columns))))


def _standard_error(gains: np.ndarray) -> np.ndarray:
    """The standard error (…,) of mean gains (…, sources); infinite for fewer than MIN_SOURCES sources."""
    sources = gains.shape[-1]
    return gains.std(-1, ddof=1) / np.sqrt(sources) if sources >= MIN_SOURCES else np.full(gains.shape[:-1], np.inf)


def _lower_bound(gains: np.ndarray) -> np.ndarray:
    """The mean (…,) of gains (…, sources) minus STANDARD_ERRORS standard errors."""
    return gains.mean(-1) - STANDARD_ERRORS * _standard_error(gains)


def _smallest_change[K](values: Mapping[K, np.ndarray]) -> K:
    """The first candidate, in order of increasing change, whose values (sources,) are not significantly worse than the
    best candidate's."""
    best = max(values, key=lambda each: values[each].mean())
    return next(each for each, value in values.items() if not _lower_bound(values[best] - value) > 0)
