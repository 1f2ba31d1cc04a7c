"""Decide, without labels, whether adapted encoders replace the old ones, and with which weights.

The judges are pseudo queries that were held out of the training. They judge a candidate by the recommended systems, as
these are served (adapt.served): by the nDCG@10 with which they find a judge's source after the judge's words were
deleted there. With them, the source would match every term, which documents rarely do for what people type, and gains
would say nothing about other queries. The judges of one source are not independent: they are averaged, and tests
compare sources.

A candidate is eligible if every system gains significantly. Of the eligible ones, the smallest change (the sum of the
weights) wins that is not significantly worse than the best; without any, nothing is changed.

The weight w of BM25 in the fusion w * z(BM25) + z(SPLADE with IDF) + 2 * z(dense) of smooth parts is chosen likewise:
the one nearest to the default that is not significantly worse than the best. What people type has more words in common
with documents in one collection than in another. How many, nobody knows without labels; but where documents find each
other by other words, so do queries.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import WEIGHTS
from cai_pyserini.adapt.served import Served, smoothed
from cai_pyserini.core import artifact, files
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.models.dense import load_projection

BM25_WEIGHTS = (2.0, 1.0, 0.5)  # candidate weights of BM25 in the fusion; the first is that of mixture.WEIGHTS
FEWEST = 30  # the fewest sources that can make a gain significant
SIGNIFICANT = 3.0  # standard errors: the best of several candidates looks better than it is


class Candidate(NamedTuple):
    """The weights of the trained SPLADE and of the projection of dense vectors."""

    splade: float
    projection: float

    def __str__(self) -> str:
        parts = f"weight {self.splade:.2g} of the trained SPLADE", f"weight {self.projection:.2g} of the projection"
        return " and ".join(part for part, weight in zip(parts, self, strict=True) if weight)


class Decision(NamedTuple):
    """The chosen candidate, the reason in words, and the gains of all candidates by system."""

    chosen: Candidate
    why: str
    gains: list[dict[str, float]]


def decide(values: Mapping[Candidate, np.ndarray], sources: np.ndarray, systems: Sequence[str]) -> Decision:
    """Choose among candidates by their values (systems, judges); the smallest candidate changes nothing.

    `sources` (judges,) are those of the judges.
    """
    means = {each: _by_source(values[each], sources) for each in sorted(values, key=sum)}
    none, *others = means
    gains = {each: means[each] - means[none] for each in others}
    eligible = {each: means[each].mean(0) for each, gain in gains.items() if (_least(gain) > 0).all()}
    shown = _smallest(eligible) if eligible else max(others, key=lambda each: gains[each].mean())
    of_systems = zip(systems, gains[shown].mean(1), _error(gains[shown]), strict=True)
    gained = ", ".join(f"{name} {gain:+.4f} ± {error:.4f}" for name, gain, error in of_systems)
    evidence = f"{_evidence(sources)}; gains in nDCG@10: {gained}"
    why = f"adapted: {shown} ({evidence})"
    if not eligible:
        kept = "no projection: the dense encoder is" if none.splade else "not adapted: the encoders are"
        why = (
            f"{kept} used as before, since no candidate gains significantly in each recommended system; "
            f"{shown} comes closest ({evidence})"
        )
    table = [
        each._asdict() | dict(zip(systems, gain.mean(1).round(5).tolist(), strict=True)) for each, gain in gains.items()
    ]
    return Decision(shown if eligible else none, why, table)


def balance(material: Material, output: Path) -> Path:
    """Write the weights of the fusion, {"bm25": w, "splade": 1, "dense": 2}; without queries that judge, w is 2."""
    recipe = artifact.recipe("adapt: balance", material.judged_identity, seed=material.seed, depth=material.depth)

    def write(path: Path) -> artifact.Stats:
        weights, evidence = (*WEIGHTS.values(),), "no document yields a query to judge by"
        if material.pseudo_queries and len(material.held_out):
            weights, evidence = fusion_weights(Served.judges(material, material.held_out))
        files.write_text(path, json.dumps(dict(zip(WEIGHTS, weights, strict=True))) + "\n")
        shares = " : ".join(f"{weight:.2g}" for weight in weights)
        return {"decision": [f"BM25 + SPLADE + dense have the weights {shares} ({evidence})"]}

    return artifact.make(output, recipe, write, folder=False)


def fusion_weights(served: Served) -> tuple[tuple[float, ...], str]:
    """The weights of BM25, SPLADE and dense in their fusion: those given, or those that the judges choose with the
    encoders as they are; and the evidence."""
    if served.material.weights:
        return (*served.material.weights,), "as given"
    _, *others = WEIGHTS.values()
    (queries, rows), sparse = served.old_dense, served.old_splade
    near = served.near(rows)
    parts = served.parts(sparse, smoothed(sparse.rows, near), served.with_near(near), queries, rows)
    mixed = {weight: served.fused(parts, (weight, *others)) for weight in BM25_WEIGHTS}
    means = {weight: _by_source(served.found(scores), served.sources) for weight, scores in mixed.items()}
    tried = ", ".join(f"{weight:.2g}: {mean.mean():.3f}" for weight, mean in means.items())
    return (_smallest(means), *others), f"{_evidence(served.sources)}, by weight: {tried}"


def gains_of(material: Material, splade: Encoder, dense: Encoder | None) -> dict[str, tuple[float, float]]:
    """The gain in nDCG@10 of adapted encoders over those of the material, by recommended system, and its standard
    error; none without queries that judge."""
    if not (material.pseudo_queries and len(material.held_out)):
        return {}
    served = Served.judges(material, material.held_out)
    weights = fusion_weights(served)[0] if dense else ()
    matrix = load_projection(dense.projection, served.old_dense[1].shape[1]) if dense and dense.projection else None
    vectors = [[served.dense(each)] if dense else [] for each in (None, matrix)]
    before, after = served.old_splade, served.splade(splade)
    values = [next(served.values(*each, weights)) for each in zip((before, after), vectors, strict=True)]
    gained = _by_source(values[1] - values[0], served.sources)
    return dict(zip(served.systems, zip(gained.mean(1).tolist(), _error(gained).tolist(), strict=True), strict=True))


def _evidence(sources: np.ndarray) -> str:
    return f"sources of {len(sources):,} pseudo queries of {len(set(sources)):,} documents found without their words"


def _by_source(values: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """The mean values (…, sources) of the judges of each source, from values (…, judges)."""
    _, places, counts = np.unique(sources, return_inverse=True, return_counts=True)
    return np.asarray(values @ csr_matrix((1 / counts[places], (np.arange(len(places)), places))))


def _error(gains: np.ndarray) -> np.ndarray:
    """The standard error (…,) of the mean of gains of sources (…, sources); infinite for too few sources."""
    sources = gains.shape[-1]
    return gains.std(-1, ddof=1) / np.sqrt(sources) if sources >= FEWEST else np.full(gains.shape[:-1], np.inf)


def _least(gains: np.ndarray) -> np.ndarray:
    """The mean gain (…,) of sources (…, sources), less SIGNIFICANT standard errors."""
    return gains.mean(-1) - SIGNIFICANT * _error(gains)


def _smallest[K](values: Mapping[K, np.ndarray]) -> K:
    """The first candidate, smallest change first, that is not significantly worse than the best one, by the values of
    sources (sources,)."""
    best = max(values, key=lambda each: values[each].mean())
    return next(each for each, value in values.items() if not _least(values[best] - value) > 0)
