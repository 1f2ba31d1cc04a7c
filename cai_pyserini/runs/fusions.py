"""Fusion methods. To add one, add it to FUSIONS, and a worked example to tests/runs/test_fusions.py.

Every method normalizes the scores of each run per query, then combines a document's values, most by their sum. The
candidates of a query are the best `depth` documents of every run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Normalize = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
Combine = Callable[[np.ndarray], np.ndarray]

RRF_K = 60  # Cormack et al. 2009
DEPTH = 100  # documents per query of each run to fuse or rerank, by default
DEFAULT = "sum"  # as in the paper (section 3.3)


def _sum(values: np.ndarray) -> np.ndarray:
    return np.asarray(values.sum(axis=0))


def _product(values: np.ndarray) -> np.ndarray:
    return np.asarray(values.prod(axis=0))


@dataclass(frozen=True)
class Fusion:
    """How scores are normalized and combined.

    `normalize` takes the scores of a run, float64 (hits,), best first within a query, the row at which each query
    starts, (queries,), and the depth; it returns the contribution of each hit, (hits,).

    `combine` takes the contributions of all runs, (runs, documents), and returns the fused scores, (documents,).

    `missing` is the value of a candidate that is not among a run's best `depth`. "zero": 0, and `normalize` gets only
    these best. "last": `normalize` gets the whole run, and a candidate has its own value there, or else that of the
    query's last hit, or 0 if the run has no hit for the query.

    `negative_warning` describes the effect of scores below 0, for the warning about a run that has them.
    """

    description: str
    normalize: Normalize
    combine: Combine = _sum
    missing: Literal["zero", "last"] = "zero"
    negative_warning: str = ""

    @property
    def is_sum(self) -> bool:
        """Whether contributions are added: only then do weights have an effect."""
        return self.combine is _sum

    def combined(self, values: np.ndarray) -> np.ndarray:
        """The fused scores, (documents,), of the contributions of all runs, (runs, documents)."""
        return self.combine(values) + 0.0  # -0 becomes 0


def _unchanged(scores: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    return scores


def _minmax(scores: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    low, high = (_per_hit(extreme.reduceat(scores, starts), starts, scores) for extreme in (np.minimum, np.maximum))
    spread = high - low
    return np.divide(scores - low, spread, out=np.ones_like(scores), where=spread > 0)


def _reciprocal_rank(scores: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    return 1 / (RRF_K + ranks_within(scores, starts))


def _nonnegative(scores: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    # LaPraDoR multiplies the raw scores, BM25's and a cosine. Two negative scores would have a high product, and with
    # one of them, the product would fall as the other score rises.
    return scores - np.minimum(_per_hit(np.minimum.reduceat(scores, starts), starts, scores), 0)


def _zscore(scores: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    best = ranks_within(scores, starts) <= depth
    hits = np.add.reduceat(best, starts, dtype=np.int64)

    def mean(values: np.ndarray) -> np.ndarray:
        return _per_hit(np.add.reduceat(values * best, starts) / hits, starts, scores)

    centered = scores - _per_hit(scores[starts], starts, scores)  # exactly 0 if all scores are equal
    centered -= mean(centered)
    deviation = np.sqrt(mean(centered**2))
    return np.divide(centered, deviation, out=np.zeros_like(scores), where=deviation > 0)


def ranks_within(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The rank of every hit within its query, from 1, (hits,)."""
    return 1 + np.arange(len(scores)) - _per_hit(starts, starts, scores)


def _per_hit(values: np.ndarray, starts: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Repeat values per query (queries,) for every hit (hits,)."""
    return np.repeat(values, np.diff(starts, append=len(scores)))


FUSIONS = {
    "sum": Fusion(
        "sum of the scores",
        _unchanged,
        negative_warning="documents that are missing from it count 0, which is higher; "
        "minmax and zscore rank them last",
    ),
    "minmax": Fusion("sum of the scores scaled to [0, 1] per query", _minmax),
    "rrf": Fusion("reciprocal rank fusion: sum of 1 / (60 + rank)", _reciprocal_rank),
    "product": Fusion(
        "product of the scores (LaPraDoR, Xu et al. 2022), less the lowest of a query where that is below 0",
        _nonnegative,
        combine=_product,
        negative_warning="a product subtracts the lowest score of a query",
    ),
    "zscore": Fusion(
        "sum of (score - mean) / standard deviation, both of the best documents per query", _zscore, missing="last"
    ),
}
