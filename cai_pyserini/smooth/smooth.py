"""Smooth raw SPLADE vectors: mix each with those of its nearest documents.

    s_i = (1 - weight) * v_i + weight * mean of v_j over the nearest documents j of i

In the mean, each is weighted with the fourth power of its inner product with i, a cosine where vectors have length 1.
s_i keeps its nnz(v_i) largest entries: a document gains terms of similar documents, and the index does not grow.
Documents without any weight stay as they are, and are nobody's neighbours.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
from scipy.sparse import csr_matrix, diags, vstack
from scipy.sparse.linalg import norm

from cai_pyserini.core import artifact, files
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.rows import largest
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.idf import idf_digest, load_weights
from cai_pyserini.vectors.neighbours import DIMENSIONS, TINY, Neighbours, Positions, build_index, nearest, recall
from cai_pyserini.vectors.shards import NAMES, Matrix, Shard, Vectors, paired, write_shards

WEIGHTS = {"dense": 0.4, "splade": 0.1}  # weight of the neighbours' mean, by the vectors that find neighbours
POWER = 4  # power of the inner products that weight neighbours in the mean
BATCH = 256  # documents that a thread mixes at a time


def smooth(
    vectors: Vectors,
    output: Path,
    dense: Vectors | None = None,
    idf: Path | None = None,
    neighbours: int = 40,
    weight: float | None = None,
) -> Path:
    """Write smoothed vectors to a folder of shards, with the ids of `vectors`.

    Neighbours are found by dense vectors, or else by the SPLADE vectors, weighted with the IDF in the folder `idf`.
    `weight` is that of WEIGHTS unless given. In a small collection, all other documents are neighbours. If interrupted,
    the same call continues with the first missing shard.

    Raises CaiError for vectors of the wrong kind, dense vectors of other documents, IDF of another vocabulary, and if
    fewer than two documents have any weight.
    """
    for given, kind in ((vectors, "splade"), (dense, "dense")):
        if given and given.kind != kind:
            raise CaiError(f"{given.folder} has {given.kind} vectors: choose a folder with {kind} ones")
    if dense:
        idf = None
    share = WEIGHTS["dense" if dense else "splade"] if weight is None else weight
    near_by = dense.manifest.digest if dense else idf_digest(idf)
    inputs = {"vectors": vectors.manifest.digest, "near_by": near_by}
    recipe = artifact.recipe("smooth", inputs, neighbours=neighbours, weight=share)
    digest = artifact.digest(recipe)

    def write(folder: Path) -> artifact.Stats:
        weights = load_weights(idf, 1.0, vectors.vocabulary) if idf else None

        def documents(label: str) -> Iterable[Documents]:
            return progress(_read_documents(vectors, dense, weights), vectors.shards, label, "shard")

        def positions(label: str) -> Iterator[Matrix]:
            return (each.positions for each in documents(f"smooth: {label}"))

        work = folder / f"work-{digest}"
        for stale in {*folder.glob("work-*")} - {work}:
            files.remove(stale)
        work.mkdir(exist_ok=True)
        if not (work / "indptr").exists():  # is written last
            write_rows(work, (each.vectors for each in documents("smooth: vectors")))
        rows = Rows(work, vectors.width)
        if len(rows) < 2:
            raise CaiError(f"{vectors.folder}: fewer than two documents have any weight; is this a SPLADE checkpoint?")
        index = _open_index(work / "index", positions, dense.width if dense else DIMENSIONS, len(rows))
        count = min(neighbours, len(rows) - 1)

        def smoothed(each: Documents) -> Shard:
            near = nearest(index, each.positions, each.numbers, count)
            return Shard(each.ids, _with_blank_rows(mix(rows, each.numbers, near, share), each.rows, len(each.ids)))

        counts = write_shards(folder, digest, documents("smooth"), smoothed)
        exact = isinstance(index, faiss.IndexFlat)
        found = 1.0 if dense and exact else recall(index, positions, count)
        shutil.rmtree(work)
        return counts | {
            "vocabulary": vectors.vocabulary,
            "encoder": vectors.encoder,
            "near_by": "dense" if dense else "hashed SPLADE",
            "search": "exact" if exact else "approximate",
            "recall": found,
        }

    return artifact.make(output, recipe, write, resumable=True, names=NAMES)


class Documents(NamedTuple):
    """The documents of a shard. Those without any weight, such as blank ones, have only an id."""

    ids: list[str]
    rows: np.ndarray  # places among the ids of documents with weights
    numbers: np.ndarray  # of the same documents, among all with weights
    vectors: csr_matrix  # raw (rows, vocabulary), without explicit zeros
    positions: Matrix  # (rows, width); documents are near where the inner product of these is large


def _read_documents(vectors: Vectors, dense: Vectors | None, weights: np.ndarray | None) -> Iterator[Documents]:
    """The documents of SPLADE vectors, shard by shard.

    Their positions are their dense vectors, or else the SPLADE vectors times `weights` (vocabulary,), scaled to length
    1. Raises CaiError for dense vectors of other documents.
    """
    first = 0
    for shard, other in paired(vectors, dense) if dense else zip(vectors, repeat(None), strict=False):
        raw: csr_matrix = shard.vectors
        raw.eliminate_zeros()
        rows = np.flatnonzero(np.diff(raw.indptr))
        raw = raw[rows]
        if other:
            positions = other.vectors[rows]
        else:
            positions = raw if weights is None else raw @ diags(weights.astype(np.float32))
            positions = diags(1 / np.maximum(norm(positions, axis=1), TINY).astype(np.float32)) @ positions
        yield Documents(shard.ids, rows, np.arange(first, first + len(rows)), raw, positions)
        first += len(rows)


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
    """Smoothed vectors (documents, vocabulary) of the documents with these numbers."""
    shares = np.where(near.numbers >= 0, np.maximum(near.products, 0), 0) ** POWER
    shares *= weight / np.maximum(shares.sum(1, keepdims=True), TINY)
    weights = np.hstack([1 - shares.sum(1, keepdims=True), shares]).astype(np.float32)
    mixed = np.hstack([numbers[:, None], near.numbers])
    batches = [slice(start, start + BATCH) for start in range(0, max(len(numbers), 1), BATCH)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return vstack(list(pool.map(lambda batch: _mix(rows, mixed[batch], weights[batch]), batches)), "csr")


def _mix(rows: Rows | csr_matrix, numbers: np.ndarray, weights: np.ndarray) -> csr_matrix:
    """The weighted sums of documents (sums, documents), cut back to as many entries as the first of each has."""
    counted = weights > 0
    counted[:, 0] = True
    indptr = np.concatenate([[0], counted.sum(1).cumsum()])
    vectors = rows[numbers[counted]]
    mixing = csr_matrix((weights[counted], np.arange(indptr[-1]), indptr), shape=(len(numbers), indptr[-1]))
    mixed = mixing @ vectors
    mixed.sort_indices()  # the product has them in any order
    smoothed = largest(mixed, np.diff(vectors.indptr)[indptr[:-1]])
    smoothed.eliminate_zeros()
    return smoothed


def _with_blank_rows(matrix: csr_matrix, rows: np.ndarray, count: int) -> csr_matrix:
    """A matrix with `count` rows: those of `matrix` at the places `rows`, and empty ones."""
    lengths = np.zeros(count + 1, np.int64)
    lengths[rows + 1] = np.diff(matrix.indptr)
    return csr_matrix((matrix.data, matrix.indices, lengths.cumsum()), shape=(count, matrix.shape[1]))


def _open_index(path: Path, positions: Positions, width: int, size: int) -> faiss.Index:
    """The index at `path`, which is built unless an interrupted attempt has done so."""
    if path.exists():
        return faiss.read_index(str(path))
    index = build_index(positions, width, size)
    with files.atomic_write(path) as unfinished:
        faiss.write_index(index, str(unfinished))
    return index
