"""Nearest-neighbour search over documents, by the inner product of their vectors, called positions.

Sparse positions are hashed into DIMENSIONS: each vocabulary entry is added to, or subtracted from, one of them
(Weinberger et al., "Feature hashing for large scale multitask learning", 2009); the result is scaled to length 1.

The search is exact up to EXACT documents. Beyond that, it compares a document with those in the nearest 1/16 of
clusters, using product quantization with 4 bits, and reranks the best with 8 bits per dimension.
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

NEIGHBOURS = 40  # per document, by default
DIMENSIONS = 1024
EXACT = 50_000
TRAINING = 40  # documents per cluster in the training set
CANDIDATES = 8  # reranked candidates per neighbour
SAMPLE = 200  # documents with which recall is measured
SEED = 42
TINY = 1e-9  # avoids divisions by a length of 0

type Positions = Callable[[str], Iterable[Matrix]]  # label of a progress bar -> the positions of all documents


@cache
def _signs(width: int) -> csr_matrix:
    """The hashing matrix (width, DIMENSIONS): one ±1 per row, in a random column."""
    draw = np.random.default_rng(SEED)
    columns, signs = draw.integers(0, DIMENSIONS, width), draw.choice(np.array([-1, 1], np.float32), width)
    return csr_matrix((signs, columns, np.arange(width + 1)), shape=(width, DIMENSIONS))


def search_vectors(positions: Matrix) -> np.ndarray:
    """The vectors to index and search, float32 (documents, width): dense positions unchanged, sparse ones hashed."""
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
    """The neighbours of documents, nearest first."""

    numbers: np.ndarray  # (documents, count); -1 where the index finds fewer
    products: np.ndarray  # (documents, count), inner products

    def matrix(self, size: int) -> csr_matrix:
        """The positive products as a matrix (documents, size), with a column for every document of the collection."""
        rows, places = np.nonzero((self.numbers >= 0) & (self.products > 0))
        entries = self.products[rows, places], (rows, self.numbers[rows, places])
        return csr_matrix(entries, shape=(len(self.numbers), size))


def nearest(index: faiss.Index, positions: Matrix, numbers: np.ndarray, count: int) -> Neighbours:
    """The `count` nearest other documents of the documents with these numbers and positions."""
    products, found = index.search(search_vectors(positions), count + 1)
    # Drop the document itself, or the last hit if it was not found.
    others_first = np.argsort(found == numbers[:, None], axis=1, kind="stable")[:, :-1]
    return Neighbours(*(np.take_along_axis(values, others_first, axis=1) for values in (found, products)))


def recall(index: faiss.Index, positions: Positions, count: int) -> float:
    """The fraction of the `count` nearest documents, by exact inner products of unhashed positions, that the index
    finds, averaged over a sample of documents with non-zero vectors."""
    numbers = _draw(index.ntotal, SAMPLE)
    sample = _take(positions("sample"), numbers)
    nonzero = np.flatnonzero(np.asarray(abs(sample).sum(1)).ravel())
    if not (count and nonzero.size):
        return 1.0
    numbers, sample = numbers[nonzero], sample[nonzero]
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
    return float(np.mean([np.isin(true, hits).mean() for true, hits in zip(expected, found, strict=True)]))


def _draw(size: int, count: int) -> np.ndarray:
    """The numbers of `count` random documents, sorted."""
    return np.sort(np.random.default_rng(SEED).choice(size, min(size, count), replace=False))


def _take(matrices: Iterable[Matrix], numbers: np.ndarray) -> Matrix:
    """The rows with these sorted numbers, of consecutive matrices."""
    parts, start = [], 0
    for matrix in matrices:
        inside = numbers[(start <= numbers) & (numbers < start + matrix.shape[0])]
        parts.append(matrix[inside - start])
        start += matrix.shape[0]
    return stacked(parts)
