"""Sums of the vectors of near documents.

    mean_i = mean of v_j over the nearest documents j of i

In it, each is weighted with the fourth power of its inner product with i, a cosine where vectors have length 1.
Documents without any weight are nobody's neighbours, and have none.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
from scipy.sparse import csr_matrix, vstack

from cai_pyserini.core import files
from cai_pyserini.core.rows import largest
from cai_pyserini.vectors.neighbours import TINY, Neighbours, build_index, nearest, recall
from cai_pyserini.vectors.shards import Matrix

NEIGHBOURS = 40
POWER = 4  # power of the inner products that weight neighbours in the mean
BATCH = 256  # documents that a thread mixes at a time


class Documents(NamedTuple):
    """The documents of a shard. Those without any weight, such as blank ones, have only an id."""

    ids: list[str]
    rows: np.ndarray  # places among the ids of documents with weights
    numbers: np.ndarray  # of the same documents, among all with weights
    vectors: csr_matrix  # (rows, width), without explicit zeros
    positions: Matrix  # (rows, dimensions); documents are near where the inner product of these is large

    def spread(self, matrix: csr_matrix) -> csr_matrix:
        """The rows of a matrix (rows, width) among empty ones, (ids, width)."""
        lengths = np.zeros(len(self.ids) + 1, np.int64)
        lengths[self.rows + 1] = np.diff(matrix.indptr)
        return csr_matrix((matrix.data, matrix.indices, lengths.cumsum()), shape=(len(self.ids), matrix.shape[1]))


def work_folder(folder: Path, digest: str) -> Path:
    """The folder of unfinished work in `folder` for a recipe with this digest; those of other recipes are removed."""
    work = folder / f"work-{digest}"
    for stale in {*folder.glob("work-*")} - {work}:
        files.remove(stale)
    work.mkdir(exist_ok=True)
    return work


type Collection = Callable[[str], Iterable[Documents]]  # label of a progress bar -> all documents, shard by shard


class Neighbourhood:
    """All documents, and an index that finds near ones, both in files of the folder `work`; what an interrupted attempt
    has left there is used. `dimensions` are those of positions in the index."""

    def __init__(self, work: Path, documents: Collection, width: int, dimensions: int, neighbours: int = NEIGHBOURS):
        if not (work / "indptr").exists():  # is written last
            write_rows(work, (each.vectors for each in documents("near documents: vectors")))
        self.rows = Rows(work, width)
        self._documents, self._count = documents, min(neighbours, max(len(self.rows) - 1, 0))
        path = work / "index"
        if path.exists():
            self._index = faiss.read_index(str(path))
        else:
            self._index = build_index(self._positions, dimensions, len(self.rows))
            with files.atomic_write(path) as unfinished:
                faiss.write_index(self._index, str(unfinished))

    def of(self, documents: Documents) -> Neighbours:
        """The nearest other documents of the documents of a shard."""
        return nearest(self._index, documents.positions, documents.numbers, self._count)

    @property
    def is_exact(self) -> bool:
        return isinstance(self._index, faiss.IndexFlat)

    def recall(self) -> float:
        return recall(self._index, self._positions, self._count)

    def _positions(self, label: str) -> Iterable[Matrix]:
        return (each.positions for each in self._documents(f"near documents: {label}"))


class Rows:
    """A CSR matrix (documents, width) in memory-mapped files, of which only the rows asked for are read."""

    def __init__(self, folder: Path, width: int):
        self._width = width
        self._indptr = np.fromfile(folder / "indptr", np.int64)
        self._data = np.asarray(np.memmap(folder / "data", np.float32, "r"))
        self._indices = np.asarray(np.memmap(folder / "indices", np.int32, "r"))

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def __getitem__(self, numbers: np.ndarray) -> csr_matrix:
        starts = self._indptr[numbers]
        lengths = self._indptr[numbers + 1] - starts
        indptr = np.concatenate([[0], lengths.cumsum()])
        entries = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        return csr_matrix((self._data[entries], self._indices[entries], indptr), shape=(len(numbers), self._width))


def write_rows(folder: Path, matrices: Iterable[csr_matrix]) -> None:
    """Write the files of Rows; the matrices follow one another."""
    lengths = [np.zeros(1, np.int64)]
    with (folder / "data").open("wb") as data, (folder / "indices").open("wb") as indices:
        for matrix in matrices:
            matrix.data.astype(np.float32).tofile(data)
            matrix.indices.astype(np.int32).tofile(indices)
            lengths.append(np.diff(matrix.indptr).astype(np.int64))
        np.zeros(1, np.float32).tofile(data)  # an empty file cannot be mapped
        np.zeros(1, np.int32).tofile(indices)
    files.sync(folder / "data", folder / "indices")
    with files.atomic_write(folder / "indptr") as partial:
        np.concatenate(lengths).cumsum().tofile(partial)


def mix(rows: Rows | csr_matrix, numbers: np.ndarray, near: Neighbours, weight: float) -> csr_matrix:
    """(1 - weight) * v_i + weight * mean_i for the documents with these numbers, (documents, width): as many entries of
    each as it has in `rows`, the largest."""
    shares = _shares(near)
    shares *= weight / np.maximum(shares.sum(1, keepdims=True), TINY)
    weights = np.hstack([1 - shares.sum(1, keepdims=True), shares]).astype(np.float32)
    return _in_batches(rows, np.hstack([numbers[:, None], near.numbers]), weights, None)


def mean_of_near(rows: Rows | csr_matrix, near: Neighbours, entries: int) -> csr_matrix:
    """mean_i (documents, width): the largest `entries` entries of each."""
    shares = _shares(near)
    shares /= np.maximum(shares.sum(1, keepdims=True), TINY)
    return _in_batches(rows, near.numbers, shares.astype(np.float32), entries)


def _shares(near: Neighbours) -> np.ndarray:
    return np.where(near.numbers >= 0, np.maximum(near.products, 0), 0) ** POWER


def _in_batches(rows: Rows | csr_matrix, numbers: np.ndarray, weights: np.ndarray, entries: int | None) -> csr_matrix:
    batches = [slice(start, start + BATCH) for start in range(0, max(len(numbers), 1), BATCH)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sums = pool.map(lambda batch: _sums(rows, numbers[batch], weights[batch], entries), batches)
        return vstack(list(sums), "csr")


def _sums(rows: Rows | csr_matrix, numbers: np.ndarray, weights: np.ndarray, entries: int | None) -> csr_matrix:
    """The weighted sums of documents (sums, documents), cut back to so many entries; None: as many as the first of each
    has."""
    counted = weights > 0
    if entries is None:
        counted[:, 0] = True
    indptr = np.concatenate([[0], counted.sum(1).cumsum()])
    vectors = rows[numbers[counted]]
    mixing = csr_matrix((weights[counted], np.arange(indptr[-1]), indptr), shape=(len(numbers), indptr[-1]))
    sums = mixing @ vectors
    sums.sort_indices()  # the product has them in any order
    kept = largest(sums, np.diff(vectors.indptr)[indptr[:-1]] if entries is None else entries)
    kept.eliminate_zeros()
    return kept
