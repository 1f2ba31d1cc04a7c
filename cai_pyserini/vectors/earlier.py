"""Vectors of an earlier run, looked up by the keys of their texts."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from cai_pyserini.models.rows import stacked
from cai_pyserini.vectors.cache import Found
from cai_pyserini.vectors.shards import Vectors, document_keys

OPEN_SHARDS = 2  # shards in memory; few, because texts mostly keep their order


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
