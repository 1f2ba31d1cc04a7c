"""Mix raw SPLADE vectors with those of near documents.

    s_i = (1 - weight) * v_i + weight * mean_i,    mean_i = weighted mean of v_j over the neighbours j of document i

In the mean, the weight of j is the fourth power of its inner product with i, a cosine if vectors have length 1. s_i
keeps its nnz(v_i) largest entries: a document gains terms of similar documents, and the index does not grow. Documents
without any weight are unchanged, and are nobody's neighbours.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, diags_array, vstack

from cai_pyserini.core import artifact, files
from cai_pyserini.core.processes import processors
from cai_pyserini.models.rows import largest
from cai_pyserini.vectors.neighbours import TINY
from cai_pyserini.vectors.shards import SHARD_NAMES, Shard, Vectors, paired, shard_progress, work_folder, write_shards

WEIGHT = 0.4  # weight of the neighbours' mean
POWER = 4  # inner products are raised to it
BATCH = 256  # documents per task of a thread


def mix_near(vectors: Vectors, near: Vectors, output: Path, weight: float = WEIGHT) -> Path:
    """Write mixed vectors to a folder of shards, with the ids of `vectors`.

    `near` was written by the near stage. If interrupted, the same call continues with the first missing shard.

    Raises CaiError for vectors other than SPLADE's, and if `near` has other documents.
    """
    vectors.require("splade", "choose a folder with splade ones")
    inputs = {"vectors": vectors.manifest.digest, "near": near.manifest.digest}
    recipe = artifact.recipe("smooth", inputs, weight=weight)
    digest = artifact.digest(recipe)

    def write(folder: Path) -> artifact.Stats:
        def documents(label: str) -> Iterator[tuple[list[str], csr_matrix, csr_matrix]]:
            for shard, products in shard_progress(paired(vectors, near), len(vectors), label):
                raw: csr_matrix = shard.vectors
                raw.eliminate_zeros()
                yield shard.ids, raw, products.vectors

        work = work_folder(folder, digest)
        rows = stored_rows(work, vectors.width, lambda: (raw for _, raw, _ in documents("near: vectors")))

        def mixed(part: tuple[list[str], csr_matrix, csr_matrix]) -> Shard:
            ids, raw, products = part
            return Shard(ids, mix(rows, raw, products, weight))

        counts = write_shards(folder, digest, documents("near"), mixed)
        shutil.rmtree(work)
        stats = {"vocabulary": vectors.vocabulary, "encoder": vectors.encoder}
        return counts | stats | {"documents_digest": vectors.documents_digest}

    return artifact.make(output, recipe, write, resumable=True, names=SHARD_NAMES)


class Rows:
    """A CSR matrix (documents, width) in memory-mapped files; indexing reads only the requested rows."""

    def __init__(self, folder: Path, width: int):
        self._width = width
        self._indptr = np.fromfile(folder / "indptr", np.int64)
        self._data = np.asarray(np.memmap(folder / "data", np.float32, "r"))
        self._indices = np.asarray(np.memmap(folder / "indices", np.int32, "r"))

    def __getitem__(self, numbers: np.ndarray) -> csr_matrix:
        starts = self._indptr[numbers]
        lengths = self._indptr[numbers + 1] - starts
        indptr = np.concatenate([[0], lengths.cumsum()])
        entries = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        return csr_matrix((self._data[entries], self._indices[entries], indptr), shape=(len(numbers), self._width))


def stored_rows(folder: Path, width: int, matrices: Callable[[], Iterable[csr_matrix]]) -> Rows:
    """The rows of consecutive matrices, from files in a folder, which are written if they are missing."""
    if not (folder / "indptr").exists():  # written last
        lengths = [np.zeros(1, np.int64)]
        with (folder / "data").open("wb") as data, (folder / "indices").open("wb") as indices:
            for matrix in matrices():
                data.write(matrix.data.astype(np.float32))
                indices.write(matrix.indices.astype(np.int32))
                lengths.append(np.diff(matrix.indptr).astype(np.int64))
            data.write(np.zeros(1, np.float32))  # an empty file cannot be mapped
            indices.write(np.zeros(1, np.int32))
        files.sync(folder / "data", folder / "indices")
        with files.atomic_write(folder / "indptr") as partial:
            partial.write_bytes(np.concatenate(lengths).cumsum())
    return Rows(folder, width)


def mix(rows: Rows | csr_matrix, own: csr_matrix, near: csr_matrix, weight: float) -> csr_matrix:
    """(1 - weight) * own_i + weight * mean_i, (documents, width), pruned to the nnz(own_i) largest entries. `near` has
    inner products (documents, rows). Documents without neighbours are unchanged."""
    nnz = np.diff(own.indptr)

    def mixed(batch: slice, means: csr_matrix) -> csr_matrix:
        own_weights = diags_array(np.where(np.diff(means.indptr), 1 - weight, 1).astype(np.float32))
        sums = csr_matrix(own_weights @ own[batch] + weight * means)
        sums.sort_indices()
        return largest(sums, nnz[batch])

    return _in_batches(rows, near, mixed)


def neighbour_means(rows: Rows | csr_matrix, near: csr_matrix, entries: int) -> csr_matrix:
    """mean_i (documents, width), pruned to the `entries` largest each; `near` has inner products (documents, rows)."""
    return _in_batches(rows, near, lambda _, means: largest(means, entries))


def _in_batches(
    rows: Rows | csr_matrix, near: csr_matrix, finish: Callable[[slice, csr_matrix], csr_matrix]
) -> csr_matrix:
    """Stack the results of `finish` for batches of documents and their means, computed by threads."""

    def finished_batch(batch: slice) -> csr_matrix:
        finished = finish(batch, _means(rows, near[batch]))
        finished.eliminate_zeros()
        return finished

    batches = [slice(start, start + BATCH) for start in range(0, max(near.shape[0], 1), BATCH)]
    with ThreadPoolExecutor(processors()) as pool:
        return vstack(list(pool.map(finished_batch, batches)), "csr")


def _means(rows: Rows | csr_matrix, near: csr_matrix) -> csr_matrix:
    numbers, places = np.unique(near.indices, return_inverse=True)
    vectors = rows[numbers]
    weights = near.data**POWER * (np.diff(vectors.indptr) > 0)[places]
    mixing = csr_matrix((weights, places, near.indptr), shape=(near.shape[0], len(numbers)))
    means = csr_matrix(diags_array(1 / np.maximum(mixing.sum(1).A1, TINY).astype(np.float32)) @ mixing @ vectors)
    means.eliminate_zeros()
    means.sort_indices()
    return means
