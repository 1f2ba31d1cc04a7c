"""Vectors, on disk or in an object store: a folder of shards, each with vectors and ids of consecutive documents.

A shard is an .npz file without pickled objects. Sparse vectors are stored as a CSR matrix (`data` float32, `indices`
int32, `indptr` int64, `shape`), dense ones as an array `vectors` (float32). The file also has `ids`, statistics, and
the `digest` of the recipe, so that each shard can be checked by itself, whichever process wrote it.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.artifact import atomic_write, require
from cai_pyserini.core.errors import CaiError

SHARD = 4096  # vectors per shard; texts of similar length within a shard make a batch
THREADS = 16  # that wait for answers of an object store

type Matrix = csr_matrix | np.ndarray  # vectors (documents, width), sparse or dense


class Shard(NamedTuple):
    """Vectors (documents, width); row i belongs to `ids[i]`."""

    ids: list[str]
    vectors: Matrix


class ShardStats(NamedTuple):
    """Counts of a shard, and the encoding time in seconds."""

    rows: int
    nonzeros: int
    batches: int
    seconds: float


def shard_path(folder: Path, number: int) -> Path:
    """The file of shard `number`."""
    return folder / f"{number:05d}.npz"


def write_shard(path: Path, shard: Shard, digest: str, seconds: float, batches: int) -> None:
    """Write a shard atomically; `seconds` and `batches` go into its statistics."""
    vectors = shard.vectors
    if isinstance(vectors, np.ndarray):
        arrays = {"vectors": vectors.astype(np.float32)}
    else:
        arrays = {
            "data": vectors.data.astype(np.float32),
            "indices": vectors.indices.astype(np.int32),
            "indptr": vectors.indptr.astype(np.int64),
            "shape": np.array(vectors.shape, np.int64),
        }
    stats = ShardStats(len(shard.ids), int(np.count_nonzero(vectors.data)), batches, seconds)
    writer = f"{socket.gethostname()}-{os.getpid()}"  # a machine that is given up, and replaced, may still write
    with atomic_write(path, writer) as partial, partial.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            ids=np.array(shard.ids, np.str_),
            digest=np.array(digest),
            stats=np.array(stats),
            **arrays,
        )


def read_shard(path: Path) -> Shard:
    """Read a shard."""
    with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:  # a store sends it at once
        if "vectors" in arrays:
            return Shard(arrays["ids"].tolist(), arrays["vectors"])
        matrix = csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"]))
        return Shard(arrays["ids"].tolist(), matrix)


def shard_stats(path: Path, digest: str) -> ShardStats | None:
    """The statistics of a shard; None if there is none, or one made by another recipe than that of `digest`."""
    if not path.is_file():
        return None
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        if str(arrays["digest"]) != digest or "stats" not in arrays:
            return None
        rows, nonzeros, batches, seconds = arrays["stats"].tolist()
        return ShardStats(int(rows), int(nonzeros), int(batches), seconds)


def stats_of_shards(paths: Sequence[Path], digest: str) -> list[ShardStats | None]:
    """`shard_stats` of several shards, read by many threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(partial(shard_stats, digest=digest), paths))


class Vectors:
    """A complete folder of shards, written by one of these stages. Iterating reads one shard at a time."""

    def __init__(self, folder: Path, *stages: str):
        self.folder = folder
        self.manifest = require(folder, *(stages or ("encode", "smooth")))
        self.kind: str = self.manifest.recipe["kind"]
        self.shards: int = self.manifest.stats["shards"]

    def __len__(self) -> int:
        return self.manifest.stats["vectors"]

    @property
    def width(self) -> int:
        """The number of columns: the size of the vocabulary, or the dimension of dense vectors."""
        return next(iter(self)).vectors.shape[1]

    @property
    def vocabulary(self) -> str:
        """That of the encoder's tokenizer, see Tokenizer.vocabulary."""
        return str(self.manifest.stats["vocabulary"])

    def __iter__(self) -> Iterator[Shard]:
        return map(self.shard, range(self.shards))

    def shard(self, number: int) -> Shard:
        """Read a shard. Raises CaiError where it is missing."""
        path = shard_path(self.folder, number)
        if not path.is_file():
            command = f"`python -m cai_pyserini.{self.manifest.recipe['stage']}`"
            manifest = self.folder / "manifest.json"
            raise CaiError(f"{path} is missing; delete {manifest} and run {command} again, which restores it")
        return read_shard(path)
