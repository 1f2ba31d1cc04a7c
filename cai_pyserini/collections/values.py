"""Checks of values and ids, also of those that NumPy, pandas and Arrow have; duplicates among many ids."""

import operator
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import LARGEST_INTEGER

INTEGER = re.compile(r"([+-]?\d{1,18})(\.0*)?", re.ASCII)
MOST = 1 << 31  # more documents than an index has
MAX_ID_LENGTH = (
    8000  # characters; Lucene's terms have at most 32,766 bytes, and the page's parameters 10,000 characters
)
MISSING = ("NAType", "NaTType")  # types of pandas


def plain(value: Any) -> Any:
    """A value of NumPy, pandas, … as one of Python's own types; None if it is missing (None, NaN, NaT, NA)."""
    for method in ("as_py", "to_pylist", "to_list"):  # of Arrow's values and arrays, and of series
        if hasattr(value, method):
            value = getattr(value, method)()
    if type(value).__name__ in MISSING:
        return None
    if hasattr(value, "dtype"):
        if value.dtype.str.endswith("M8[ns]"):  # which NumPy would give as integers
            value = value.astype("datetime64[us]")
        value = value.tolist()
    if isinstance(value, float | Decimal) and value != value:
        return None
    return value


def whole_number(value: Any) -> int | None:
    """An integer, or a float or string that is one, such as 1.0, which pandas makes of integers beside a missing one;
    None for anything else, True and False among it."""
    value = plain(value)
    match = None if isinstance(value, bool) else INTEGER.fullmatch(str(value).strip())
    return int(match[1]) if match else None


def checked_count(value: Any, name: str) -> int:
    """A number of hits, 1 or more, which can be NumPy's. Raises CaiError for another one."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise CaiError(f"{name} is {value!r}: give an integer, 1 or more")
    return min(count, MOST)


def checked_path(value: Any, name: str) -> Path:
    """A path, which can be a string. Raises CaiError for anything else, and for an empty one, which would be the
    working directory."""
    if not isinstance(value, str | Path) or value == "":
        raise CaiError(f"{name} is {value!r}: give a path")
    return Path(value)


def checked_id(value: object, where: str) -> str:
    """Convert a string or integer, or a float that is an integer, to an id. Raises CaiError for other values, for a
    missing one, and if TREC runs, vectors on disk or indexes cannot hold it."""
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
    if len(id) > MAX_ID_LENGTH:
        raise CaiError(f"{where}: the id {id[:20]}… has {len(id):,} characters; indexes hold {MAX_ID_LENGTH:,}")
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
