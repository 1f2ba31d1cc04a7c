"""Quantization: weights -> integer impacts.

    impact = round(weight * document_scale),   document_scale = (2 ** bits - 1) / range

Weights above `range` get the largest impact; entries that become 0 are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.finite import first_not_finite


@dataclass(frozen=True)
class Quantizer:
    """Weights -> impacts: round(weight * scale), at most 2 ** bits - 1."""

    scale: float
    bits: int

    @classmethod
    def of(cls, bits: int, range: float) -> "Quantizer":
        """The quantizer that maps the weight `range` to the largest impact."""
        return cls((2**bits - 1) / range, bits)

    def impacts(self, weights: csr_matrix, names: Sequence[str] = ()) -> csr_matrix:
        """int32 impacts (documents, vocabulary), without zeros.

        Raises CaiError for a weight that is not finite, with the document's name if there are `names`.
        """
        if (row := first_not_finite(weights)) is not None:
            name = repr(names[row]) if names else f"number {row}"
            raise CaiError(f"document {name} has a weight that is NaN or infinite: encode it again, and check the IDF")
        values = np.minimum(np.rint(weights.data * self.scale), 2**self.bits - 1).astype(np.int32)
        impacts = csr_matrix((values, weights.indices, weights.indptr), shape=weights.shape, copy=True)
        impacts.eliminate_zeros()
        return impacts


class QuantizationLoss:
    """The loss from quantization, summed over shards: squared error, and dropped and clipped entries."""

    def __init__(self, quantizer: Quantizer):
        self.quantizer = quantizer
        self._error = self._square = 0.0
        self._entries = self._dropped = self._clipped = 0

    def add(self, weights: csr_matrix, impacts: csr_matrix) -> None:
        """Add one shard."""
        difference = weights - impacts / self.quantizer.scale
        self._error += float(np.square(difference.data).sum())
        self._square += float(np.square(weights.data, dtype=np.float64).sum())
        self._entries += weights.nnz
        self._dropped += weights.nnz - impacts.nnz
        self._clipped += int((weights.data * self.quantizer.scale >= 2**self.quantizer.bits - 0.5).sum())

    def update(self, other: "QuantizationLoss") -> None:
        """Add the loss of other shards."""
        self._error += other._error
        self._square += other._square
        self._entries += other._entries
        self._dropped += other._dropped
        self._clipped += other._clipped

    def stats(self) -> dict[str, float]:
        """`relative_error`: ||w - impact / scale|| / ||w||; `dropped`, `clipped`: fractions of the entries."""
        entries = max(self._entries, 1)
        return {
            "relative_error": float(np.sqrt(self._error / self._square)) if self._square else 0.0,
            "dropped": self._dropped / entries,
            "clipped": self._clipped / entries,
        }


def loss_text(loss: dict[str, float]) -> str:
    """QuantizationLoss.stats in words."""
    return (
        f"relative error {loss['relative_error']:.2%}, {loss['dropped']:.2%} of the entries became 0, "
        f"{loss['clipped']:.2%} were clipped to the range"
    )
