"""The documents that are smoothed: their vectors shard by shard, and on disk where any of them can be read."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import norm

from cai_pyserini.core.artifact import atomic_write, sync
from cai_pyserini.core.errors import CaiError
from cai_pyserini.vectors.shards import Matrix, Vectors

TINY = 1e-9  # the length of a vector is at least this before a division by it


class Documents(NamedTuple):
    """The documents of a shard. Those without any weight, such as blank ones, have an id but no vectors."""

    ids: list[str]
    rows: np.ndarray  # of the vectors, among the ids
    vectors: csr_matrix  # raw (rows, vocabulary), without explicit zeros
    positions: Matrix  # (rows, width); documents are near where the inner product of these is large


def read_documents(vectors: Vectors, dense: Vectors | None, weights: np.ndarray | None) -> Iterator[Documents]:
    """The documents of SPLADE vectors, shard by shard.

    Their positions are their dense vectors. Without those, they are the SPLADE vectors times `weights` (vocabulary,),
    scaled to length 1. Raises CaiError for dense vectors of other documents.
    """
    for shard, other in zip(vectors, dense or repeat(None), strict=False):
        if dense and (other is None or other.ids != shard.ids or len(dense) != len(vectors)):
            raise CaiError(
                f"{dense.folder} has other documents than {vectors.folder}: encode the same collection with both "
                "encoders"
            )
        raw: csr_matrix = shard.vectors
        raw.eliminate_zeros()
        rows = np.flatnonzero(np.diff(raw.indptr))
        raw = raw[rows]
        if other:
            positions = other.vectors[rows]
        else:
            positions = raw if weights is None else raw @ diags(weights.astype(np.float32))
            positions = diags(1 / np.maximum(norm(positions, axis=1), TINY).astype(np.float32)) @ positions
        yield Documents(shard.ids, rows, raw, positions)


class Rows:
    """Sparse vectors in memory-mapped files: those of any documents are read without the others.

    The files are a CSR matrix (documents, vocabulary): `data` float32, `indices` int32, `indptr` int64.
    """

    def __init__(self, folder: Path, width: int):
        self._width = width
        self._indptr = np.fromfile(folder / "indptr", np.int64)
        self._data = np.asarray(np.memmap(folder / "data", np.float32, "r"))
        self._indices = np.asarray(np.memmap(folder / "indices", np.int32, "r"))

    @classmethod
    def open(cls, folder: Path, width: int, matrices: Iterable[csr_matrix]) -> Self:
        """Open the files in a folder; if they are missing or unfinished, `matrices` are written first."""
        if not (folder / "indptr").exists():  # comes last
            cls._write(folder, matrices)
        return cls(folder, width)

    @staticmethod
    def _write(folder: Path, matrices: Iterable[csr_matrix]) -> None:
        folder.mkdir(exist_ok=True)
        lengths = [np.zeros(1, np.int64)]
        with (folder / "data").open("wb") as data, (folder / "indices").open("wb") as indices:
            for matrix in matrices:
                matrix.data.astype(np.float32).tofile(data)
                matrix.indices.astype(np.int32).tofile(indices)
                lengths.append(np.diff(matrix.indptr).astype(np.int64))
            np.zeros(1, np.float32).tofile(data)  # an empty file cannot be mapped
            np.zeros(1, np.int32).tofile(indices)
        sync(folder / "data", folder / "indices")
        with atomic_write(folder / "indptr") as partial:
            np.concatenate(lengths).cumsum().tofile(partial)

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def __getitem__(self, numbers: np.ndarray) -> csr_matrix:
        """The vectors of the documents with these numbers."""
        starts = self._indptr[numbers]
        lengths = self._indptr[numbers + 1] - starts
        indptr = np.concatenate([[0], lengths.cumsum()])
        entries = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        return csr_matrix((self._data[entries], self._indices[entries], indptr), shape=(len(numbers), self._width))
