"""IDF weighting of documents (Iida & Okazaki 2022, equation 6)."""

import numpy as np
from scipy.sparse import csr_matrix


def weighted(vectors: csr_matrix, weights: np.ndarray | None) -> csr_matrix:
    """Multiply every row of (documents, vocabulary) by `weights` (vocabulary,); None leaves it unchanged."""
    if weights is None:
        return vectors
    data = vectors.data * weights[vectors.indices]
    return csr_matrix((data, vectors.indices, vectors.indptr), shape=vectors.shape)
