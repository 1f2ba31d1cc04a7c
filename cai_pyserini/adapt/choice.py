"""What decides, without labels, whether adapted encoders replace the old ones, and how far.

The judges are pseudo queries that were held out of the training. A candidate is judged by the recommended systems, as
they are served (adapt.served): by the nDCG@10 of the judges' sources and of their remainders. The judges of one source
are not independent, so its value is their mean, and tests compare sources.

A candidate is eligible if every system gains significantly more than MARGIN: what is learned from pseudo queries helps
to find pseudo queries first of all. Of the eligible ones, the smallest change wins that is not significantly worse than
the best. Without any, nothing is changed.

The weight of BM25 in three ways is chosen in the same way, from the remainders alone: a source as it is has all words
of its query, more than documents have of what people type, and would speak for BM25.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.served import Served

BM25_WEIGHTS = (2.0, 1.0, 0.5)  # candidates for its weight in three ways; the first is that of mixture.WEIGHTS
MARGIN = 0.005  # of nDCG@10
SIGNIFICANT = 2.0  # standard errors


class Candidate(NamedTuple):
    """The weights of the trained SPLADE and of the projection of dense vectors."""

    splade: float
    projection: float

    def __str__(self) -> str:
        parts = f"weight {self.splade:.2g} of the trained SPLADE", f"weight {self.projection:.2g} of the projection"
        return " and ".join(part for part, weight in zip(parts, self, strict=True) if weight)


class Decision(NamedTuple):
    """The candidate that is chosen; why, for people; and the gains of all candidates, by system."""

    chosen: Candidate
    why: str
    gains: list[dict[str, float]]


@dataclass(frozen=True)
class Choice:
    """The judges of an adaptation."""

    material: Material

    @cached_property
    def served(self) -> Served:
        """What the judges search."""
        return Served(self.material, self.material.held_out)

    @cached_property
    def _judges(self) -> str:
        return f"{len(self.served.sources):,} pseudo queries of {len(set(self.served.sources)):,} documents"

    def decide(self, values: Mapping[Candidate, np.ndarray]) -> Decision:
        """The choice among candidates by their values (systems, 2, judges). The smallest one changes nothing."""
        means = {each: self._by_source(values[each].mean(1)) for each in sorted(values, key=sum)}
        none, *others = means
        gains = {each: means[each] - means[none] for each in others}
        eligible = {each: means[each].mean(0) for each, gain in gains.items() if (_least(gain) > MARGIN).all()}
        shown = _smallest(eligible) if eligible else max(others, key=lambda each: gains[each].mean())
        mean = {
            each: dict(zip(self.served.systems, gain.mean(1).tolist(), strict=True)) for each, gain in gains.items()
        }
        gained = ", ".join(f"{name} {gain:+.4f}" for name, gain in mean[shown].items())
        evidence = f"{self._judges}; gains in nDCG@10: {gained}"
        why = f"adapted: {shown} ({evidence})"
        if not eligible:
            kept = "no projection: the dense encoder is" if none.splade else "not adapted: the encoders are"
            why = (
                f"{kept} used as before, since no candidate gains significantly more than {MARGIN} in each recommended "
                f"system; {shown} comes closest ({evidence})"
            )
        rounded = [{name: round(float(gain), 5) for name, gain in mean[each].items()} for each in others]
        table = [each._asdict() | found for each, found in zip(others, rounded, strict=True)]
        return Decision(shown if eligible else none, why, table)

    def weight_of_bm25(self) -> tuple[float, str]:
        """The weight of BM25 in three ways with the encoders as they are, and the evidence, for people."""
        served = self.served
        splade, _ = served.scores(served.old_splade, next(iter(served.old_splade.queries)), served.old_splade.rows)
        mixed = {weight: served.three_ways(weight, splade, served.old_dense) for weight in BM25_WEIGHTS}
        found = {weight: served.found(scores)[1] for weight, scores in mixed.items()}
        means = {weight: self._by_source(values) for weight, values in found.items()}
        tried = ", ".join(f"{weight:.2g}: {mean.mean():.3f}" for weight, mean in means.items())
        return _smallest(means), f"sources of {self._judges} found without their words, by weight: {tried}"

    def _by_source(self, values: np.ndarray) -> np.ndarray:
        """The mean values (…, sources) of the judges of each source, from values (…, judges)."""
        _, places, counts = np.unique(self.served.sources, return_inverse=True, return_counts=True)
        return np.asarray(values @ csr_matrix((1 / counts[places], (np.arange(len(places)), places))))


def _least(gains: np.ndarray) -> np.ndarray:
    """The least mean gain (…,) that gains of sources (…, sources) are significantly above."""
    deviations = gains.std(-1, ddof=1) if gains.shape[-1] > 1 else np.inf
    return gains.mean(-1) - SIGNIFICANT * deviations / np.sqrt(gains.shape[-1])


def _smallest[K](values: Mapping[K, np.ndarray]) -> K:
    """The first of candidates, smallest change first, that is not significantly worse than the best; from the values
    of sources (sources,)."""
    best = max(values, key=lambda each: values[each].mean())
    return next(each for each, value in values.items() if not _least(values[best] - value) > 0)
