"""Vectors on disk: a folder of shards with the vectors and ids of consecutive documents.

A shard is an .npz file without pickled objects. Sparse vectors are stored as a CSR matrix (`data` float32, `indices`
int32, `indptr` int64, `shape`), dense ones as an array `vectors` (float32). The file also has `ids`, statistics, and
`made_from`, its name and the digest of the recipe, so that a shard can be checked on its own, whichever process wrote
it; shards of the encode stage also have the `keys` of their texts (uint8). An unreadable shard counts as missing, and
is made again.
"""

import hashlib
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.artifact import Stats, foreign_files, require, require_count
from cai_pyserini.core.config import PASSAGE
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import atomic_write, remove
from cai_pyserini.core.identity import command_of, same_documents
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.rows import Matrix as Matrix
from cai_pyserini.models.rows import stacked

SHARD = 4096  # vectors per shard; texts of similar length within a shard make a batch
FIRST = f"{PASSAGE}0"  # the end of the id of a first passage
SHARD_NAMES = r"\d{5,}\.npz"
UNREADABLE = (BadZipFile, EOFError, KeyError, OSError, RuntimeError, ValueError, zlib.error)  # raised for broken files


class Shard(NamedTuple):
    """Vectors (documents, width); row i belongs to `ids[i]`. `keys` (documents, 16) has the keys of the encoded texts
    (see text_keys); shards derived from other shards may have none."""

    ids: list[str]
    vectors: Matrix
    keys: np.ndarray | None = None


class ShardStats(NamedTuple):
    """Counts and times of a shard."""

    rows: int
    nonzeros: int
    seconds: float  # to make the shard
    found: int  # rows that came from the cache
    encoding: float  # seconds to encode all rows; cached rows count with the time they took originally


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.npz"


def write_shard(
    path: Path, shard: Shard, digest: str, seconds: float, found: int = 0, encoding: float | None = None
) -> ShardStats:
    """Write a shard atomically, and return its statistics; `encoding` defaults to `seconds`."""
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
    if shard.keys is not None:
        arrays["keys"] = shard.keys
    nonzeros = int(np.count_nonzero(vectors.data))
    stats = ShardStats(len(shard.ids), nonzeros, seconds, found, seconds if encoding is None else encoding)
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            ids=np.array(shard.ids, np.str_),
            made_from=np.array(_made_from(path, digest)),
            stats=np.array(stats),
            **arrays,
        )
    return stats


def read_shard(path: Path, digest: str) -> Shard | None:
    """Read a shard; None if it is missing, broken, or made by a recipe with another digest."""
    return _read(path, digest, _shard)


def shard_stats(path: Path, digest: str) -> ShardStats | None:
    """The statistics of a shard; None if it is missing, broken, or made by a recipe with another digest."""
    return _read(path, digest, _stats)


def _read[T](path: Path, digest: str, take: Callable[[Any], T]) -> T | None:
    """What `take` makes of the arrays of a shard; None if it is missing, broken, or made by another recipe."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return take(arrays) if arrays["made_from"] == _made_from(path, digest) else None
    except UNREADABLE:
        return None


def _shard(arrays: Any) -> Shard:
    ids, keys = arrays["ids"].tolist(), arrays.get("keys")
    if "vectors" in arrays:
        return Shard(ids, arrays["vectors"], keys)
    entries = arrays["data"], arrays["indices"], arrays["indptr"]
    return Shard(ids, csr_matrix(entries, shape=tuple(arrays["shape"])), keys)


def _stats(arrays: Any) -> ShardStats:
    rows, nonzeros, *_, seconds, found, encoding = arrays["stats"].tolist()  # earlier versions had six
    return ShardStats(int(rows), int(nonzeros), seconds, int(found), encoding)


def write_shards[Part](folder: Path, digest: str, parts: Iterable[Part], make: Callable[[Part], Shard]) -> Stats:
    """Write the shard that `make` returns for each part, unless an earlier attempt wrote it, and remove stale shards.
    Returns the counts for the manifest."""
    written = []
    for number, part in enumerate(parts):
        path = shard_path(folder, number)
        stats = shard_stats(path, digest)
        if not stats:
            start = time.perf_counter()
            shard = make(part)
            stats = write_shard(path, shard, digest, time.perf_counter() - start)
        written.append(stats)
    return finish_shards(folder, written)


def finish_shards(folder: Path, shards: Sequence[ShardStats]) -> Stats:
    """Remove stale and unfinished shards from a folder whose shards are all written. Returns the counts for the
    manifest."""
    existing = {path for path in folder.iterdir() if re.fullmatch(SHARD_NAMES, path.name)}
    own = {shard_path(folder, number) for number in range(len(shards))}
    for stale in existing - own - {folder / name for name in foreign_files(folder)}:
        stale.unlink(missing_ok=True)  # another process may finish the same folder
    return {
        "vectors": sum(shard.rows for shard in shards),
        "shards": len(shards),
        "nonzeros": sum(shard.nonzeros for shard in shards),
    }


def work_folder(folder: Path, digest: str) -> Path:
    """The subfolder for unfinished work of the recipe with this digest; those of other recipes are removed."""
    work = folder / f"work-{digest}"
    for stale in {*folder.glob("work-*")} - {work}:
        remove(stale)
    work.mkdir(exist_ok=True)
    return work


def shard_progress[Part](parts: Iterable[Part], documents: int, label: str) -> Iterator[Part]:
    """Iterate over parts of SHARD documents each, with a progress bar that counts documents."""
    with progress(range(0), documents, label) as bar:
        for part in parts:
            yield part
            bar.update(min(SHARD, documents - bar.n))


def _made_from(path: Path, digest: str) -> str:
    return f"{path.stem} {digest}"


def paired(first: "Vectors", second: "Vectors") -> Iterator[tuple[Shard, Shard]]:
    """Pair the shards of two folders. Raises CaiError if they have different documents."""
    require_same_documents(first, second)
    for pair in zip_longest(first, second):
        if None in pair or pair[0].ids != pair[1].ids:
            raise different_documents(first, second)
        yield pair


def require_same_documents(first: "Vectors", second: "Vectors") -> None:
    """Raise CaiError if two folders have different numbers of documents, or different texts."""
    sizes = [(len(each), each.shards) for each in (first, second)]
    if sizes[0] != sizes[1] or not same_documents(first.documents_digest, second.documents_digest):
        raise different_documents(first, second)


def different_documents(first: "Vectors", second: "Vectors") -> CaiError:
    return CaiError(f"{first.folder} and {second.folder} have different documents: make both from the same collection")


class Vectors:
    """A complete folder of shards, written by one of `stages` (default: encode and smooth). Iterating reads one shard
    at a time."""

    def __init__(self, folder: Path, *stages: str):
        self.folder = folder
        self.manifest = require(folder, *(stages or ("encode", "smooth")))
        stats, recipe = self.manifest.stats, self.manifest.recipe
        # Identity of the document encoder; for vectors of no encoder, only their kind.
        self.encoder: dict[str, Any] = recipe["inputs"]["encoder"] if recipe["stage"] == "encode" else stats["encoder"]
        self.documents_digest: list[str | None] | None = stats.get("documents_digest")  # see Collection
        self.shards: int = stats["shards"]

    def require(self, encoder: str, remedy: str) -> None:
        """Raise CaiError if they are not those of this kind of encoder."""
        if (kind := self.encoder["kind"]) != encoder:
            raise CaiError(f"{self.folder} has {kind} vectors: {remedy}")

    def __len__(self) -> int:
        return self.manifest.stats["vectors"]

    @property
    def width(self) -> int:
        """The number of columns: the size of the vocabulary, or the dimension of dense vectors."""
        return next(iter(self)).vectors.shape[1]

    @property
    def vocabulary(self) -> str:
        """The vocabulary of the encoder's tokenizer (see Tokenizer.vocabulary)."""
        return str(self.manifest.stats["vocabulary"])

    def __iter__(self) -> Iterator[Shard]:
        rows = 0
        for number in range(self.shards):
            shard = self.shard(number)
            rows += len(shard.ids)
            yield shard
        require_count(self.folder, rows, len(self))

    def shard(self, number: int) -> Shard:
        """Read a shard. Raises CaiError if it is missing, broken, or made by another recipe than the folder."""
        path = shard_path(self.folder, number)
        shard = read_shard(path, self.manifest.digest)
        if shard is None:
            raise self.broken(path)
        return shard

    def broken(self, path: Path) -> CaiError:
        command = command_of(self.manifest.recipe["stage"])
        return CaiError(f"{path} is broken or of other vectors: delete it and run {command} again to restore it")


def without_zero_vectors(shards: Iterable[Shard]) -> Iterator[Shard]:
    """Remove zero vectors, for example of documents without text, from dense shards: a search would rank them above
    every vector with a negative product."""
    for shard in shards:
        nonzero = shard.vectors.any(axis=1)
        yield shard if nonzero.all() else Shard([*compress(shard.ids, nonzero)], shard.vectors[nonzero])


def with_first_passage(shard: Shard, before: Iterable[Shard], weight: float) -> Shard:
    """A shard of passages in which the first passage of each document has this `weight`: passages then know what their
    document is about. A passage i gets the vector

        p_i' = (p_i + w p_1) / (1 + w)

    of which one search finds both: a document's score, that of its best passage, is max_i q·p_i + w q·p_1, up to a
    factor. docs/experiments/long-documents.md has the reason for w. The passages of a document follow one another; if
    its first one is not in this shard, it is in one of those `before`, the nearest first."""
    if not weight or not shard.ids:
        return shard
    starts = _starts(shard)
    first, documents = shard.vectors[starts], np.searchsorted(starts, np.arange(len(shard.ids)), side="right") - 1
    if documents[0] < 0:
        last = next(part.vectors[rows[-1:]] for part in before if len(rows := _starts(part)))
        first, documents = stacked([last, first]), documents + 1
    mixed = (shard.vectors + first[documents] * np.float32(weight)) * np.float32(1 / (1 + weight))
    return Shard(shard.ids, mixed)


def _starts(shard: Shard) -> np.ndarray:
    """The rows of first passages, in their order."""
    return np.flatnonzero([id.endswith(FIRST) for id in shard.ids])


def text_keys(texts: Sequence[str]) -> np.ndarray:
    """Hashes of texts, uint8 (texts, 16); different texts have different keys."""
    hashes = (hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 16)


def document_keys(vectors: Vectors) -> Iterator[tuple[list[str], np.ndarray]]:
    """The ids and keys of each shard, without reading its vectors. Raises CaiError for a shard that is broken, or has
    no keys because an earlier version wrote it."""
    rows = 0
    for number in range(vectors.shards):
        path = shard_path(vectors.folder, number)
        found = _read(path, vectors.manifest.digest, lambda arrays: (arrays["ids"].tolist(), arrays["keys"]))
        if found is None:
            raise vectors.broken(path)
        rows += len(found[0])
        yield found
    require_count(vectors.folder, rows, len(vectors))
