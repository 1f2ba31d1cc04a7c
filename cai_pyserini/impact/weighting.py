"""IDF weighting of documents (Iida & Okazaki 2022, equation 6)."""

from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.idf.idf import load_weights


def weighted(vectors: csr_matrix, weights: np.ndarray | None) -> csr_matrix:
    """Multiply every row of (documents, vocabulary) by `weights` (vocabulary,); None leaves it unchanged."""
    if weights is None:
        return vectors
    data = vectors.data * weights[vectors.indices]
    return csr_matrix((data, vectors.indices, vectors.indptr), shape=vectors.shape)


def idf_weights(config: EncoderConfig, width: int) -> np.ndarray | None:
    """An encoder's IDF weights for documents (vocabulary,); None for plain SPLADE (no idf, or idf_power 0)."""
    if config.idf is None or config.idf_power == 0:
        return None
    return load_weights(Path(config.idf), config.idf_power, width)
