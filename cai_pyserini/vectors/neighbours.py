"""The nearest documents of a document, by the inner product of their positions.

Sparse positions are hashed into DIMENSIONS: each vocabulary entry adds to one of them, or subtracts (Weinberger et al.,
"Feature hashing for large scale multitask learning", 2009); the result is scaled to length 1.

Up to EXACT documents, all are compared. More are clustered; a document is compared with those in the nearest 1/16 of
the clusters, by product quantization with 4 bits, and the best of these again, with 8 bits per dimension.
"""

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import faiss
import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.rows import stacked
from cai_pyserini.vectors.shards import Matrix

NEIGHBOURS = 40  # documents that are near one, unless another number is given
DIMENSIONS = 1024
EXACT = 50_000
TRAINING = 40  # documents per cluster, to find the clusters
CANDIDATES = 8  # candidates per neighbour that are compared again
SAMPLE = 200  # documents whose recall is measured
SEED = 42
TINY = 1e-9  # the least length of a vector, for divisions by it

type Positions = Callable[[str], Iterable[Matrix]]  # label of a progress bar -> the positions of all documents


@cache
def _signs(width: int) -> csr_matrix:
    """A ±1 for each of `width` columns, in a random one of the DIMENSIONS."""
    draw = np.random.default_rng(SEED)
    columns, signs = draw.integers(0, DIMENSIONS, width), draw.choice(np.array([-1, 1], np.float32), width)
    return csr_matrix((signs, columns, np.arange(width + 1)), shape=(width, DIMENSIONS))


def search_vectors(positions: Matrix) -> np.ndarray:
    """What is searched, float32 (documents, width): dense positions, or sparse ones hashed."""
    if isinstance(positions, np.ndarray):
        return positions
    hashed = (positions @ _signs(positions.shape[1])).toarray()
    hashed /= np.maximum(np.linalg.norm(hashed, axis=1, keepdims=True), np.float32(TINY))
    return hashed


def build_index(positions: Positions, width: int, size: int) -> faiss.Index:
    index: Any = faiss.IndexFlatIP(width)
    if size > EXACT:
        lists = int(4 * math.sqrt(size))
        codes = width // math.gcd(width, 4)  # of 4 bits
        index = faiss.index_factory(width, f"IVF{lists},PQ{codes}x4fs,Refine(SQ8)", faiss.METRIC_INNER_PRODUCT)
        index.k_factor = CANDIDATES
        clusters: Any = faiss.downcast_index(index.base_index)
        clusters.nprobe = -(-lists // 16)
        clusters.cp.niter = 10
        clusters.cp.min_points_per_centroid = 1
        index.train(search_vectors(_take(positions("clusters"), _draw(size, TRAINING * lists))))
    for matrix in positions("index"):
        index.add(search_vectors(matrix))
    return index


class Neighbours(NamedTuple):
    """The nearest documents, nearest first: `numbers` (documents, count), -1 where the index finds fewer, and the
    `products` (documents, count) of their positions with that of the document."""

    numbers: np.ndarray
    products: np.ndarray

    def matrix(self, size: int) -> csr_matrix:
        """The products above 0, in the columns of all documents (documents, size)."""
        rows, places = np.nonzero((self.numbers >= 0) & (self.products > 0))
        entries = self.products[rows, places], (rows, self.numbers[rows, places])
        return csr_matrix(entries, shape=(len(self.numbers), size))


def nearest(index: faiss.Index, positions: Matrix, numbers: np.ndarray, count: int) -> Neighbours:
    """The `count` nearest other documents of documents with these numbers."""
    products, found = index.search(search_vectors(positions), count + 1)
    others_first = np.argsort(found == numbers[:, None], axis=1, kind="stable")[:, :-1]  # or all but the last
    return Neighbours(*(np.take_along_axis(values, others_first, axis=1) for values in (found, products)))


def recall(index: faiss.Index, positions: Positions, count: int) -> float:
    """Which part of the `count` nearest documents is found, for a sample of documents that have any weight.

    Compared with the inner products of unhashed positions.
    """
    numbers = _draw(index.ntotal, SAMPLE)
    sample = _take(positions("sample"), numbers)
    weighty = np.flatnonzero(np.asarray(abs(sample).sum(1)).ravel())
    if not (count and weighty.size):
        return 1.0  # of no documents, all are found
    numbers, sample = numbers[weighty], sample[weighty]
    columns = (sample if isinstance(sample, np.ndarray) else sample.toarray()).T
    best = faiss.ResultHeap(len(numbers), count + 1, keep_max=True)
    start = 0
    for matrix in positions("recall"):
        scores = (matrix @ columns).T
        best.add_result(scores, np.broadcast_to(np.arange(start, start + matrix.shape[0]), scores.shape))
        start += matrix.shape[0]
    best.finalize()
    found = nearest(index, sample, numbers, count).numbers
    expected = [row[row != number][:count] for row, number in zip(best.I, numbers, strict=True)]
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(expected, found, strict=True)]))


def _draw(size: int, count: int) -> np.ndarray:
    """The numbers of `count` random documents, in order."""
    return np.sort(np.random.default_rng(SEED).choice(size, min(size, count), replace=False))


def _take(matrices: Iterable[Matrix], numbers: np.ndarray) -> Matrix:
    """The rows with these numbers, in order, of matrices that follow one another."""
    parts, start = [], 0
    for matrix in matrices:
        inside = numbers[(start <= numbers) & (numbers < start + matrix.shape[0])]
        parts.append(matrix[inside - start])
        start += matrix.shape[0]
    return stacked(parts)
