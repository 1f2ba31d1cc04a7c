"""Ids of documents and queries: validation, and detection of duplicates in little memory."""

import numpy as np

from cai_pyserini.collections.values import plain
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import LARGEST_INTEGER


def checked_id(value: object, where: str) -> str:
    """Convert a string or integer, or a float that is an integer, to an id. Raises CaiError for other values, for a
    missing one, and if TREC runs or vectors on disk cannot hold it."""
    id = value if isinstance(value, str) else plain(value)
    if isinstance(id, float) and abs(id) < LARGEST_INTEGER and id.is_integer():
        id = int(id)  # pandas makes floats of integers beside a missing one
    if id is None:
        raise CaiError(f"{where}: the id is missing")
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise CaiError(f"{where}: the id {value!r} is not a string or an integer")
    id = str(id)
    if id.split() != [id]:
        raise CaiError(f"{where}: the id {id!r} is empty or has white space, which TREC runs cannot hold")
    if "\0" in id:
        raise CaiError(f"{where}: the id {id!r} has a NUL character, which vectors on disk cannot hold; remove it")
    return id


class SeenIds:
    """The ids seen so far, in about 8 bytes per id: sorted hashes, and a set of the most recent hashes."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.int64)
        self._recent: set[int] = set()

    def add(self, id: str) -> bool:
        """Add an id, and return whether it, or an id with the same 64-bit hash, was added before."""
        value = hash(id)
        place = self._sorted.searchsorted(value)
        known = value in self._recent or (place < len(self._sorted) and self._sorted[place] == value)
        self._recent.add(value)
        if len(self._recent) >= 1 << 16:
            self._sorted = np.sort(np.concatenate([self._sorted, np.fromiter(self._recent, np.int64)]), kind="stable")
            self._recent.clear()
        return bool(known)
