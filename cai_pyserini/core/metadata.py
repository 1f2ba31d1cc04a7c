"""Metadata of documents: typed values by which a search is filtered, counted and sorted.

Numbers are doubles. A date is a day, counted from 1970. Strings are in Unicode's composed form.
"""

import math
import re
import unicodedata
from calendar import monthrange
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from cai_pyserini.core.json_vectors import LONGEST_TERM

Kind = Literal["string", "number", "date", "list"]  # list: of strings
Value = str | int | float | list[str]
Metadata = dict[str, Value]

LARGEST_INTEGER = 1 << 53  # up to which a double has every integer
FORM: Literal["NFC"] = "NFC"  # of strings: letters with accents are one character, or two, in what looks the same
MONTH = re.compile(r"(\d{4})(?:-(\d\d))?", re.ASCII)
# Of a field, so that filters can have it; `contents` is that of the text.
NAME = re.compile(r"(?!(?:and|or|not|contents)$)[^\W\d][\w.-]*", re.IGNORECASE)
EPOCH = date(1970, 1, 1).toordinal()


class Inexact(ValueError):
    """A number with more digits than a double holds: another one would be stored, and found."""


def checked(value: Any, kind: Kind) -> Value | None:
    """A value as it is stored, or None for an empty one. Strings are read as well: as numbers, and as lists whose items
    are separated by `;`; integers are read as strings of their digits. Raises ValueError, which says what is expected,
    for one of another type."""
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
        given = Decimal(value) if isinstance(value, str) else value
        number = math.nan if isinstance(value, bool) else float(given)
    except (TypeError, ValueError, ArithmeticError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a number")
    rounded = isinstance(value, str) and "e" in value.lower()  # as of a quantity
    if abs(number) >= LARGEST_INTEGER and given != number and not rounded:
        raise Inexact("a number that 64 bits hold exactly (declare it `string`, in the YAML file, to keep its digits)")
    return int(number) if number.is_integer() and abs(number) <= LARGEST_INTEGER else number


def _string(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("a string")
    value = composed(value)
    if len(value.encode()) > LONGEST_TERM:
        raise ValueError(f"a string of at most {LONGEST_TERM:,} bytes")
    return value


def composed(text: str) -> str:
    """A string as it is stored and compared."""
    return unicodedata.normalize(FORM, text)


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
