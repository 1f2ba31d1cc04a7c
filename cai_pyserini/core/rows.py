"""Operations on the rows of matrices, most of them sparse."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix, vstack

type Matrix = csr_matrix | np.ndarray  # vectors (documents, width), sparse or dense


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """Matrices that follow one another, all dense or all sparse, as one."""
    return np.vstack(parts) if isinstance(parts[0], np.ndarray) else vstack(parts, format="csr")


def largest(matrix: csr_matrix, counts: int | np.ndarray) -> csr_matrix:
    """The `counts[i]` largest entries of each row i, or as many of all rows; ties keep the earlier entry."""
    rows, order = _ranked(matrix)
    ranks = np.arange(len(order)) - matrix.indptr[rows]
    return _only(matrix, rows, order[ranks < np.broadcast_to(counts, matrix.shape[0])[rows]])


def largest_of_mass(matrix: csr_matrix, share: float) -> csr_matrix:
    """The largest entries of each row, as few as make up `share` of its sum; ties keep the earlier entry."""
    rows, order = _ranked(matrix)
    before = np.concatenate([[0.0], np.cumsum(matrix.data[order], dtype=np.float64)])
    starts, ends = before[matrix.indptr[:-1]], before[matrix.indptr[1:]]
    return _only(matrix, rows, order[before[:-1] - starts[rows] < share * (ends - starts)[rows]])


def _ranked(matrix: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """The row of every entry, and the entries of each row in descending order, (entries,) each."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return rows, np.lexsort((-matrix.data, rows))


def _only(matrix: csr_matrix, rows: np.ndarray, kept: np.ndarray) -> csr_matrix:
    """The matrix with only the entries `kept`; `rows` has the row of every entry."""
    kept = np.sort(kept)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=matrix.shape[0]))])
    return csr_matrix((matrix.data[kept], matrix.indices[kept], indptr), shape=matrix.shape)


def first_not_finite(values: Matrix) -> int | None:
    """The first row of vectors (rows, width) or scores (rows,) that has NaN or infinity; None if there is none."""
    data = values if isinstance(values, np.ndarray) else values.data
    if not (wrong := ~np.isfinite(data)).any():
        return None
    if isinstance(values, np.ndarray):
        return int(wrong.nonzero()[0][0])
    return int(np.searchsorted(values.indptr, wrong.argmax(), side="right")) - 1
