"""Smooth raw SPLADE vectors: mix each with those of its nearest documents.

    s_i = (1 - weight) * v_i + weight * mean of v_j over the nearest documents j of i

In the mean, each is weighted with the fourth power of its inner product with i, a cosine where vectors have length 1.
s_i keeps its nnz(v_i) largest entries: a document gains terms of documents like it, and the index does not grow.
Documents without any weight stay as they are, and are nobody's neighbours.
"""

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import faiss
import numpy as np
from scipy.sparse import csr_matrix, vstack

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.idf.idf import load_weights
from cai_pyserini.smooth.documents import TINY, Rows, read_documents
from cai_pyserini.smooth.neighbours import DIMENSIONS, Neighbours, Positions, build_index, nearest, recall
from cai_pyserini.vectors.rows import largest
from cai_pyserini.vectors.shards import (
    NAMES,
    Matrix,
    Shard,
    Vectors,
    shard_path,
    shard_stats,
    stale_shards,
    write_shard,
)

WEIGHTS = {"dense": 0.4, "splade": 0.1}  # of the neighbours' mean, by the vectors that tell what is near
POWER = 4  # of inner products, for the weights within the mean
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

    Documents are near by their dense vectors, or else by the SPLADE vectors, weighted with the IDF in the folder `idf`.
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
    near_by = dense.manifest.digest if dense else idf and artifact.require(idf, "idf").digest
    inputs = {"vectors": vectors.manifest.digest, "near_by": near_by}
    recipe = artifact.recipe("smooth", inputs, neighbours=neighbours, weight=share)
    digest = artifact.digest(recipe)

    def write(folder: Path) -> artifact.Stats:
        documents = partial(read_documents, vectors, dense, load_weights(idf, 1.0, vectors.vocabulary) if idf else None)

        def positions(label: str) -> Iterator[Matrix]:
            return (each.positions for each in progress(documents(), vectors.shards, f"smooth: {label}", "shard"))

        work = folder / f"work-{digest}"
        _remove_stale(folder, work, vectors.shards)
        rows = Rows.open(work, vectors.width, (each.vectors for each in documents()))
        if len(rows) < 2:
            raise CaiError(f"{vectors.folder}: fewer than two documents have any weight; is this a SPLADE checkpoint?")
        index = _open_index(work / "index", positions, dense.width if dense else DIMENSIONS, len(rows))
        count = min(neighbours, len(rows) - 1)
        first = nonzeros = 0
        for number, each in enumerate(progress(documents(), vectors.shards, "smooth", "shard")):
            numbers = np.arange(first, first + len(each.rows))
            first += len(numbers)
            path = shard_path(folder, number)
            if done := shard_stats(path, digest):
                nonzeros += done.nonzeros
                continue
            start = time.perf_counter()
            smoothed = mix(rows, numbers, nearest(index, each.positions, numbers, count), share)
            smoothed = _with_blank_rows(smoothed, each.rows, len(each.ids))
            write_shard(path, Shard(each.ids, smoothed), digest, time.perf_counter() - start, 1)
            nonzeros += smoothed.nnz
        exact = isinstance(index, faiss.IndexFlat)
        found = 1.0 if dense and exact else recall(index, positions, count)
        shutil.rmtree(work)
        return {
            "vectors": len(vectors),
            "shards": vectors.shards,
            "nonzeros": nonzeros,
            "vocabulary": vectors.vocabulary,
            "encoder": vectors.encoder,
            "near_by": "dense" if dense else "hashed SPLADE",
            "search": "exact" if exact else "approximate",
            "recall": found,
        }

    return artifact.make(output, recipe, write, resumable=True, names=NAMES)


def mix(rows: Rows, numbers: np.ndarray, near: Neighbours, weight: float) -> csr_matrix:
    """Smoothed vectors (documents, vocabulary) of the documents with these numbers."""
    shares = np.where(near.numbers >= 0, np.maximum(near.products, 0), 0) ** POWER
    shares *= weight / np.maximum(shares.sum(1, keepdims=True), TINY)
    weights = np.hstack([1 - shares.sum(1, keepdims=True), shares]).astype(np.float32)
    mixed = np.hstack([numbers[:, None], near.numbers])
    batches = [slice(start, start + BATCH) for start in range(0, max(len(numbers), 1), BATCH)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return vstack(list(pool.map(lambda batch: _mix(rows, mixed[batch], weights[batch]), batches)), "csr")


def _mix(rows: Rows, numbers: np.ndarray, weights: np.ndarray) -> csr_matrix:
    """The weighted sums of documents (sums, documents), cut back to as many entries as the first of each has."""
    counted = weights > 0
    counted[:, 0] = True
    indptr = np.concatenate([[0], counted.sum(1).cumsum()])
    vectors = rows[numbers[counted]]
    mixing = csr_matrix((weights[counted], np.arange(indptr[-1]), indptr), shape=(len(numbers), indptr[-1]))
    mixed = mixing @ vectors
    mixed.sort_indices()  # a product has them in any order
    smoothed = largest(mixed, np.diff(vectors.indptr)[indptr[:-1]])
    smoothed.eliminate_zeros()
    return smoothed


def _with_blank_rows(matrix: csr_matrix, rows: np.ndarray, count: int) -> csr_matrix:
    """A matrix with `count` rows, of which `rows` are those of `matrix`, and the others are empty."""
    lengths = np.zeros(count + 1, np.int64)
    lengths[rows + 1] = np.diff(matrix.indptr)
    return csr_matrix((matrix.data, matrix.indices, lengths.cumsum()), shape=(count, matrix.shape[1]))


def _open_index(path: Path, positions: Positions, width: int, size: int) -> faiss.Index:
    """The index at `path`, which is built unless an interrupted attempt has done so."""
    if path.exists():
        return faiss.read_index(str(path))
    index = build_index(positions, width, size)
    with artifact.atomic_write(path) as unfinished:
        faiss.write_index(index, str(unfinished))
    return index


def _remove_stale(folder: Path, work: Path, shards: int) -> None:
    """Delete what other recipes have left in the folder."""
    for stale in {*folder.glob("work-*"), *stale_shards(folder, shards)} - {work}:
        artifact.remove(stale)
