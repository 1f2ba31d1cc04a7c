"""Raw sparse vectors on disk: a folder of shards, each a slice of the collection as a CSR matrix and its ids.

A shard is an .npz file that needs no pickle: `data` (float32), `indices` (int32), `indptr` (int64), `shape`, `ids`, and
the `digest` of the recipe that made it, so that every shard can be trusted by itself, whoever wrote it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.artifact import beside, require_manifest
from cai_pyserini.cli import CaiError

SHARD = 4096  # vectors a shard


class Shard(NamedTuple):
    """Vectors of consecutive documents: `matrix` is (documents, terms), row i belongs to `ids[i]`."""

    ids: list[str]
    matrix: csr_matrix


def shard_path(folder: Path, number: int) -> Path:
    """The file of shard `number`."""
    return folder / f"{number:05d}.npz"


def write_shard(path: Path, shard: Shard, digest: str, seconds: float) -> None:
    """Write a shard, whole or not at all. `seconds` is what it took to make it."""
    matrix = shard.matrix
    with beside(path) as partial, partial.open("wb") as file:
        np.savez(
            file,
            data=matrix.data.astype(np.float32),
            indices=matrix.indices.astype(np.int32),
            indptr=matrix.indptr.astype(np.int64),
            shape=np.array(matrix.shape, np.int64),
            ids=np.array(shard.ids, np.str_),
            digest=np.array(digest),
            seconds=np.array(seconds),
        )


def read_shard(path: Path) -> Shard:
    """Read a shard."""
    with np.load(path, allow_pickle=False) as file:
        matrix = csr_matrix((file["data"], file["indices"], file["indptr"]), shape=tuple(file["shape"]))
        return Shard(file["ids"].tolist(), matrix)


def shard_facts(path: Path, digest: str) -> dict[str, Any] | None:
    """`rows`, `nonzeros` and `seconds` of a shard made by the recipe with this digest; None where there is no such."""
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        if str(file["digest"]) != digest:
            return None
        return {
            "rows": len(file["indptr"]) - 1,
            "nonzeros": int(file["indptr"][-1]),
            "seconds": float(file["seconds"]),
        }


class Vectors:
    """A complete folder of shards, as the encode stage leaves it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = require_manifest(folder, "encode")
        self.shards: int = self.manifest["shards"]

    def __len__(self) -> int:
        return self.manifest["vectors"]

    @property
    def width(self) -> int:
        return next(iter(self)).matrix.shape[1]

    def __iter__(self) -> Iterator[Shard]:
        for number in range(self.shards):
            path = shard_path(self.folder, number)
            if not path.is_file():
                raise CaiError(f"{path} is missing; run the encode stage again, it makes just that one")
            yield read_shard(path)
