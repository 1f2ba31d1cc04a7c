"""Metadata of documents: typed values by which a search is filtered, counted and sorted.

Numbers are doubles. A date is a day, counted from 1970.
"""

import math
import re
from calendar import monthrange
from datetime import date, datetime
from typing import Any, Literal

from cai_pyserini.core.json_vectors import LONGEST_TERM

Kind = Literal["string", "number", "date", "list"]  # list: of strings
Value = str | int | float | list[str]
Metadata = dict[str, Value]

LARGEST_INTEGER = 1 << 53  # up to which a double has every integer
MONTH = re.compile(r"(\d{4})(?:-(\d\d))?", re.ASCII)
# Of a field, so that filters can have it; `contents` is that of the text.
NAME = re.compile(r"(?!(?:and|or|not|contents)$)[^\W\d][\w.-]*", re.IGNORECASE)
EPOCH = date(1970, 1, 1).toordinal()


def checked(value: Any, kind: Kind) -> Value | None:
    """A value as it is stored, or None for an empty one. Strings are read as well: as numbers, and as lists whose items
    are separated by `;`. Raises ValueError, which says what is expected, for one of another type."""
    if isinstance(value, str):
        value = value.strip()
    if value is None or value in ("", []) or value != value:  # NaN, which stands for no value in Parquet
        return None
    if kind == "number":
        return _number(value)
    if kind == "date":
        text = value.isoformat() if isinstance(value, date) else str(value)
        days(text)
        return text
    if kind == "string":
        return _string(value)
    items = value.split(";") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ValueError("a list of strings")
    return list(dict.fromkeys(filter(None, (_string(item).strip() for item in items)))) or None


def _number(value: Any) -> int | float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a number")
    return int(number) if number.is_integer() and abs(number) <= LARGEST_INTEGER else number


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    if len(value.encode()) > LONGEST_TERM:
        raise ValueError(f"a string of at most {LONGEST_TERM:,} bytes")
    return value


def days(text: str) -> tuple[int, int]:
    """The first and the last day of a date in ISO 8601: a day (2020-05-17, also with a time, which is left out), a
    month (2020-05) or a year. Raises ValueError for anything else."""
    try:
        if month := MONTH.fullmatch(text):
            year, first, last = int(month[1]), int(month[2] or 1), int(month[2] or 12)
            ends = date(year, first, 1), date(year, last, monthrange(year, last)[1])
        else:
            ends = (datetime.fromisoformat(text).date(),) * 2
    except ValueError:
        raise ValueError("a date in ISO 8601, such as 2020-05-17") from None
    return ends[0].toordinal() - EPOCH, ends[1].toordinal() - EPOCH


def bounds(value: str | int | float, kind: Kind) -> tuple[float, float]:
    """The least and the largest number that a number or a date stands for. Raises ValueError if it is neither."""
    first, last = days(str(value)) if kind == "date" else (_number(value),) * 2
    return float(first), float(last)


def year_of(day: float) -> str:
    """The year of a day, with four digits."""
    return f"{date.fromordinal(int(day) + EPOCH).year:04}"
