"""Turn raw vectors into integer impacts: IDF weighting (Iida & Okazaki 2022, eq. 6), quantization, static pruning.

    impact = round(weight * document_scale),   document_scale = (2 ** bits - 1) / range

Weights above `range` are clipped to the largest impact; impacts of 0 are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix, hstack

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.rows import first_not_finite, largest, largest_of_mass, with_data


def weighted(vectors: csr_matrix, weights: np.ndarray | None) -> csr_matrix:
    """Multiply every row of (documents, vocabulary) by `weights` (vocabulary,); None leaves it unchanged."""
    if weights is None:
        return vectors
    return with_data(vectors, vectors.data * weights[vectors.indices])


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

        Raises CaiError for a weight that is not finite; the message has the document's name if there are `names`.
        """
        if (row := first_not_finite(weights)) is not None:
            name = repr(names[row]) if names else f"number {row}"
            raise CaiError(f"document {name} has a weight that is NaN or infinite: encode it again, and check the IDF")
        values = np.minimum(np.rint(weights.data * self.scale), 2**self.bits - 1).astype(np.int32)
        impacts = with_data(weights, values).copy()
        impacts.eliminate_zeros()
        return impacts

    def loss(self, weights: csr_matrix, impacts: csr_matrix) -> np.ndarray:
        """The quantization loss as sums, which can be added over shards: squared error, squared weights, and numbers of
        entries, dropped entries and clipped entries, (5,)."""
        difference = weights - impacts / self.scale
        clipped = weights.data * self.scale >= 2**self.bits - 0.5
        squares = (np.square(difference.data).sum(), np.square(weights.data, dtype=np.float64).sum())
        return np.array([*squares, weights.nnz, weights.nnz - impacts.nnz, clipped.sum()], np.float64)


def loss_stats(sums: np.ndarray) -> dict[str, float]:
    """`relative_error`, ||w - impact / scale|| / ||w||, and the fractions of `dropped` and `clipped` entries."""
    error, square, entries, dropped, clipped = sums.tolist()
    return {
        "relative_error": float(np.sqrt(error / square)) if square else 0.0,
        "dropped": dropped / max(entries, 1),
        "clipped": clipped / max(entries, 1),
    }


def loss_text(loss: dict[str, float]) -> str:
    return (
        f"relative error {loss['relative_error']:.2%}, {loss['dropped']:.2%} of the entries became 0, "
        f"{loss['clipped']:.2%} were clipped to the range"
    )


def prune(impacts: csr_matrix, config: EncoderConfig) -> csr_matrix:
    """Keep the largest impacts of each document (documents, vocabulary), by keep_mass and keep_terms (Lassance et al.
    2023): small impacts make up most of an index, but contribute little to scores."""
    if config.keep_mass is not None:
        impacts = largest_of_mass(impacts, config.keep_mass)
    if config.keep_terms is not None:
        impacts = largest(impacts, config.keep_terms)
    return impacts


@dataclass(frozen=True)
class Weighting:
    """The settings and IDF weights that turn raw vectors into the impacts of an index."""

    config: EncoderConfig  # the encoder.yaml of the impact stage
    idf: np.ndarray | None  # (vocabulary,); None: unweighted

    @property
    def quantizer(self) -> Quantizer:
        return Quantizer.of(self.config.bits, self.config.range or 1.0)

    def impacts(
        self, vectors: csr_matrix, words: csr_matrix | None = None, names: Sequence[str] = ()
    ) -> tuple[csr_matrix, np.ndarray]:
        """The int32 impacts (documents, vocabulary) of raw vectors, and Quantizer.loss of their weights. In a joint
        index, the impacts of the BM25 weights `words` (documents, words) are appended as further columns.

        Raises CaiError for a weight that is not finite; the message has the document's name if there are `names`.
        """
        weights = weighted(vectors, self.idf)
        impacts = self.quantizer.impacts(weights, names)
        loss = self.quantizer.loss(weights, impacts)
        impacts = prune(impacts, self.config)
        if words is not None and (joint := self.config.joint):
            word_impacts = Quantizer.of(joint.bits, joint.range).impacts(words, names)
            impacts = hstack([impacts, word_impacts], format="csr")
        return impacts, loss
