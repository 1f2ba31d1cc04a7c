"""The vector cache: an encoder encodes a text once on this machine, whatever the collection.

The folder `vectors` in Pyserini's cache, or $CAI_PYSERINI_VECTORS, has a SQLite file per encoder and role, named after
the digest of everything that shapes a vector except its text. A row has the key of a text (shards.text_keys) and its
vector: float32 values if dense, int32 indices and float32 values if sparse. Rows with a wrong checksum are ignored. If
the cache fails otherwise, a warning is logged and vectors are encoded without it.

Vectors of an earlier run are looked up by the same keys, in its shards.
"""

import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.database import connect
from cai_pyserini.core.files import cache_home
from cai_pyserini.models.rows import Matrix, stacked
from cai_pyserini.vectors.shards import Vectors, document_keys

VARIABLE = "CAI_PYSERINI_VECTORS"
OPEN_SHARDS = 2  # of earlier vectors in memory; few, because texts mostly keep their order
SCHEMA = """
    CREATE TABLE IF NOT EXISTS encoders (name TEXT NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS vectors (
        key BLOB NOT NULL UNIQUE,
        used INTEGER NOT NULL,
        seconds REAL NOT NULL,
        checksum INTEGER NOT NULL,
        vector BLOB NOT NULL
    );
"""
logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """Cached vectors (keys, width), None if there are none, and the time that encoding them took, in seconds."""

    keys: Sequence[bytes] = ()
    vectors: Matrix | None = None
    seconds: float = 0.0


def cache_folder() -> Path | None:
    """The folder of the cache; None if the environment turns it off."""
    folder = os.environ.get(VARIABLE)
    return cache_home() / "vectors" if folder is None else Path(folder) if folder else None


class VectorCache:
    """The vectors of an encoder in one role, identified by `digest`; `width` is None for dense vectors."""

    def __init__(self, folder: Path, digest: str, name: str, width: int | None):
        self._path, self._name, self._width = folder / f"{digest}.sqlite", name, width
        self._is_usable = True

    def get(self, keys: Sequence[bytes]) -> Found:
        """The cached vectors, in any order; `keys` are distinct."""

        def read(database: sqlite3.Connection) -> list[sqlite3.Row]:
            database.row_factory = sqlite3.Row
            database.execute("CREATE TEMP TABLE requested (key BLOB PRIMARY KEY) WITHOUT ROWID")
            with database:
                database.execute("BEGIN")
                database.executemany("INSERT INTO requested VALUES (?)", ((key,) for key in keys))
            query = "SELECT key, vector, checksum, seconds FROM requested CROSS JOIN vectors USING (key)"
            os.utime(self._path)  # the time of last use
            return database.execute(query).fetchall()

        rows = [row for row in self._call(read) or [] if row["checksum"] == _checksum(row["key"], row["vector"])]
        if not rows:
            return Found()
        vectors, seconds = self._matrix([row["vector"] for row in rows]), sum(row["seconds"] for row in rows)
        return Found([row["key"] for row in rows], vectors, seconds)

    def put(self, keys: Sequence[bytes], vectors: Matrix, seconds: float) -> None:
        """Add vectors (keys, width), which took `seconds` to encode."""
        now, each = int(time.time()), seconds / max(len(keys), 1)

        def write(database: sqlite3.Connection) -> None:
            pairs = zip(keys, _vector_bytes(vectors), strict=True)
            rows = ((key, now, each, _checksum(key, vector), vector) for key, vector in pairs)
            with database:
                database.execute("BEGIN IMMEDIATE")
                database.execute("INSERT OR IGNORE INTO encoders VALUES (?)", (self._name,))
                database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?, ?)", rows)

        self._call(write)

    def _call[R](self, function: Callable[[sqlite3.Connection], R]) -> R | None:
        """Call a function on the database; after the first failure, only return None."""
        if self._is_usable:
            try:
                with closing(connect(self._path, SCHEMA)) as database:
                    return function(database)
            except (sqlite3.Error, OSError) as error:
                self._is_usable = False
                _warn(self._path if isinstance(error, sqlite3.Error) else self._path.parent, str(error))
        return None

    def _matrix(self, rows: Sequence[bytes]) -> Matrix:
        if self._width is None:
            return np.frombuffer(b"".join(rows), np.float32).reshape(len(rows), -1)
        indptr = np.cumsum([0, *(len(row) // 8 for row in rows)])
        indices = np.frombuffer(b"".join(row[: len(row) // 2] for row in rows), np.int32)
        data = np.frombuffer(b"".join(row[len(row) // 2 :] for row in rows), np.float32)
        return csr_matrix((data, indices, indptr), shape=(len(rows), self._width))


class EarlierVectors:
    """Vectors encoded earlier, in 24 bytes of memory per vector. Raises CaiError if shards are broken, or have no keys
    because an earlier version wrote them."""

    def __init__(self, vectors: Vectors):
        self._shard = lru_cache(OPEN_SHARDS)(vectors.shard)
        keys = [keys for _, keys in document_keys(vectors)]
        self._starts = np.cumsum([0, *map(len, keys)])
        self._keys = np.concatenate(keys).view(np.uint64).reshape(-1, 2)
        self._order = np.argsort(self._keys[:, 0], kind="stable")
        self._seconds = vectors.manifest.stats.get("encoding_seconds", 0.0) / max(len(vectors), 1)

    def get(self, keys: Sequence[bytes]) -> Found:
        """The vectors of these keys that exist, in any order; `keys` are distinct."""
        requested = np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 2)
        places = np.searchsorted(self._keys[:, 0], requested[:, 0], sorter=self._order)
        rows = self._order[np.minimum(places, len(self._order) - 1)]
        found = np.flatnonzero((self._keys[rows] == requested).all(1))
        if not len(found):
            return Found()
        found = found[np.argsort(rows[found])]
        shards = np.searchsorted(self._starts, rows[found], side="right") - 1
        parts = []
        for number in np.unique(shards).tolist():
            parts.append(self._shard(number).vectors[rows[found[shards == number]] - self._starts[number]])
        return Found([keys[i] for i in found.tolist()], stacked(parts), self._seconds * len(found))


def _checksum(key: bytes, vector: bytes) -> int:
    return zlib.crc32(vector, zlib.crc32(key))


def _vector_bytes(vectors: Matrix) -> list[bytes]:
    if isinstance(vectors, np.ndarray):
        return [row.astype(np.float32).tobytes() for row in vectors]
    indices, data = vectors.indices.astype(np.int32), vectors.data.astype(np.float32)
    ends = zip(vectors.indptr, vectors.indptr[1:], strict=False)
    return [indices[start:end].tobytes() + data[start:end].tobytes() for start, end in ends]


@cache  # once per process
def _warn(path: Path, reason: str) -> None:
    remedy = f"set {VARIABLE} to another folder, or to nothing for no cache"
    logger.warning("vectors are not cached in %s (%s); %s", path, reason, remedy)
