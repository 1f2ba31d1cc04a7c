"""Values of Python programs, as NumPy, pandas and Arrow have them, as Python's own."""

import operator
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

from cai_pyserini.core.errors import CaiError

INTEGER = re.compile(r"([+-]?\d{1,18})(\.0*)?", re.ASCII)
MOST = 1 << 31  # more documents than an index has
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
