"""Fusion methods. A new one is an entry in FUSIONS, and a test.

Every method normalizes the scores of each run, query by query, and then adds or multiplies the values that a document
has in the runs. A document that is missing from a run has 0 there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

RRF_K = 60  # Cormack et al. 2009


@dataclass(frozen=True)
class Fusion:
    """How scores are normalized and combined.

    `normalize` takes the scores of a run, float64 (hits,), best first within a query, and the row at which each query
    starts, (queries,); it returns what each hit contributes, (hits,). `uses_scores` is false if only ranks count: such
    a method has no `-exact` hybrids.
    """

    description: str
    normalize: Callable[[np.ndarray, np.ndarray], np.ndarray]
    combine: Literal["sum", "product"] = "sum"
    uses_scores: bool = True


def _unchanged(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return scores


def _minmax(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """(score - min) / (max - min) per query; 1 where all scores of a query are equal."""
    low, high = (_per_hit(extreme.reduceat(scores, starts), starts, scores) for extreme in (np.minimum, np.maximum))
    spread = high - low
    return np.divide(scores - low, spread, out=np.ones_like(scores), where=spread > 0)


def _reciprocal_rank(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """1 / (60 + rank)."""
    return 1 / (RRF_K + 1 + np.arange(len(scores)) - _per_hit(starts, starts, scores))


def _per_hit(values: np.ndarray, starts: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Repeat values per query (queries,) for every hit (hits,)."""
    return np.repeat(values, np.diff(starts, append=len(scores)))


FUSIONS = {
    "sum": Fusion("sum of the scores", _unchanged),
    "minmax": Fusion("sum of the scores scaled to [0, 1] per query", _minmax),
    "rrf": Fusion("reciprocal rank fusion: sum of 1 / (60 + rank)", _reciprocal_rank, uses_scores=False),
    "product": Fusion("product of the scores (LaPraDoR, Xu et al. 2022)", _unchanged, combine="product"),
}
DEPTH = 100  # documents per query of each run that are fused or reranked, unless told otherwise
DEFAULT = "sum"  # the paper's (section 3.3)
