"""An order of documents in which alike ones are near each other (recursive graph bisection, Dhulipala et al. 2016).

Lucene skips blocks of postings that cannot hold a hit by the largest impact of each block; the more alike its documents
are, the more it skips. Documents are split into halves, and swapped between them as long as that lowers

    Σ over terms t, halves h:  d * log2(n / (d + 1)),   d = documents of h with t, n = documents of h,

the estimated logarithm of the gaps between documents with the same term; then each half in the same way. As Mackenzie
et al. (2021) do, iteration i swaps only where it gains more than i, which keeps swaps from going back and forth.
"""

import numpy as np
from scipy.sparse import csr_matrix

SMALLEST = 32  # documents that are not split further
ITERATIONS = 20


def bisect(documents: csr_matrix) -> np.ndarray:
    """The rows of documents (documents, terms) in their new order, (documents,); values other than 0 are all alike."""
    order = np.arange(documents.shape[0])
    ones = np.ones(documents.nnz, np.float32)
    pending = [(0, csr_matrix((ones, documents.indices, documents.indptr), documents.shape))]
    while pending:
        start, matrix = pending.pop()
        if matrix.shape[0] < 2 * SMALLEST:
            continue
        matrix = _shared(matrix)
        sides = _split(matrix)
        part = order[start : start + matrix.shape[0]]
        part[:] = np.concatenate([part[~sides], part[sides]])
        pending += [(start, matrix[~sides]), (start + int((~sides).sum()), matrix[sides])]
    return order


def _shared(matrix: csr_matrix) -> csr_matrix:
    """Without the terms that make no difference: those of one document, or of none."""
    counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
    kept = counts > 1
    columns = np.cumsum(kept, dtype=np.int32) - 1
    entries = kept[matrix.indices]
    indptr = np.concatenate([[0], np.cumsum(entries)])[matrix.indptr]
    return csr_matrix((matrix.data[entries], columns[matrix.indices[entries]], indptr), (matrix.shape[0], kept.sum()))


def _split(matrix: csr_matrix) -> np.ndarray:
    """Whether each document (documents,) belongs to the second half."""
    half = matrix.shape[0] // 2
    sides = np.arange(matrix.shape[0]) >= half
    degrees = np.arange(half + 3)
    cost = np.diff(degrees * np.log2(half / (degrees + 1)), prepend=0).astype(np.float32)  # of a term's last document
    transposed, frequencies = matrix.T, np.bincount(matrix.indices, minlength=matrix.shape[1])
    for iteration in range(ITERATIONS):
        second = (transposed @ sides.astype(np.float32)).astype(np.intp)
        first = frequencies - second
        there = matrix @ (cost[first] - cost[second + 1])  # what each document gains in the second half
        back = matrix @ (cost[second] - cost[first + 1])
        leaving, coming = np.flatnonzero(~sides), np.flatnonzero(sides)
        leaving = leaving[np.argsort(-there[leaving], kind="stable")]
        coming = coming[np.argsort(-back[coming], kind="stable")][:half]
        swaps = int((there[leaving] + back[coming] > iteration).sum())
        if not swaps:
            break
        sides[leaving[:swaps]], sides[coming[:swaps]] = True, False
    return sides
