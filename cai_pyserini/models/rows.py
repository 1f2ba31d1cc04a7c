"""Operations on the rows of matrices, mostly sparse ones."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix, vstack

type Matrix = csr_matrix | np.ndarray  # vectors (documents, width), sparse or dense


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """Stack matrices vertically; all must be dense, or all sparse."""
    return np.vstack(parts) if isinstance(parts[0], np.ndarray) else vstack(parts, format="csr")


def with_data(matrix: csr_matrix, data: np.ndarray) -> csr_matrix:
    """The matrix with other values of the same entries, whose places it shares."""
    return csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def largest(matrix: csr_matrix, counts: int | np.ndarray) -> csr_matrix:
    """Keep the `counts[i]` largest entries of each row i, or `counts` of every row; ties keep the earlier entry."""
    rows, order = _descending(matrix)
    ranks = np.arange(len(order)) - matrix.indptr[rows]
    return _select(matrix, rows, order[ranks < np.broadcast_to(counts, matrix.shape[0])[rows]])


def largest_of_mass(matrix: csr_matrix, share: float) -> csr_matrix:
    """Keep the fewest largest entries of each row that make up `share` of its sum; ties keep the earlier entry."""
    rows, order = _descending(matrix)
    before = np.concatenate([[0.0], np.cumsum(matrix.data[order], dtype=np.float64)])
    starts, ends = before[matrix.indptr[:-1]], before[matrix.indptr[1:]]
    return _select(matrix, rows, order[before[:-1] - starts[rows] < share * (ends - starts)[rows]])


def _descending(matrix: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """The row of every entry, and the positions of the entries by row and descending value, (nnz,) each."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return rows, np.lexsort((-matrix.data, rows))


def _select(matrix: csr_matrix, rows: np.ndarray, entries: np.ndarray) -> csr_matrix:
    """The matrix with only the entries at these positions; `rows` has the row of every entry."""
    entries = np.sort(entries)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[entries], minlength=matrix.shape[0]))])
    return csr_matrix((matrix.data[entries], matrix.indices[entries], indptr), shape=matrix.shape)


def first_not_finite(values: Matrix) -> int | None:
    """The first row of vectors (rows, width) or scores (rows,) with NaN or infinity; None if there is none."""
    data = values if isinstance(values, np.ndarray) else values.data
    if not (wrong := ~np.isfinite(data)).any():
        return None
    if isinstance(values, np.ndarray):
        return int(wrong.nonzero()[0][0])
    return int(np.searchsorted(values.indptr, wrong.argmax(), side="right")) - 1
