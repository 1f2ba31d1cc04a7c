"""Operations on the rows of sparse matrices."""

import numpy as np
from scipy.sparse import csr_matrix


def lengths(matrix: csr_matrix) -> np.ndarray:
    """The Euclidean length of every row, (rows,)."""
    return np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())


def largest(matrix: csr_matrix, counts: np.ndarray) -> csr_matrix:
    """The `counts[i]` largest entries of each row i; of equal ones, the first."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((-matrix.data, rows))
    ranks = np.arange(len(order)) - matrix.indptr[rows]  # rows are still in order
    kept = np.sort(order[ranks < counts[rows]])
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=matrix.shape[0]))])
    return csr_matrix((matrix.data[kept], matrix.indices[kept], indptr), shape=matrix.shape)
