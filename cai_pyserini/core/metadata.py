"""Metadata of documents: typed values that searches filter, count and sort by.

Numbers are doubles. Dates are days since 1970. Strings are normalized, as texts are.
"""

import math
import re
from calendar import monthrange
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from cai_pyserini.core.text import normalized

Kind = Literal["string", "number", "date", "list"]  # list: a list of strings
STRINGS = ("string", "list")
Value = str | int | float | list[str]
Metadata = dict[str, Value]

LONGEST_TERM = 32766  # bytes of UTF-8, Lucene's IndexWriter.MAX_TERM_LENGTH
LARGEST_INTEGER = 1 << 53  # a double represents every integer up to this one
MONTH = re.compile(r"(\d{4})(?:-(\d\d))?", re.ASCII)
# Names of fields that filters can use; `contents` is the field of the text.
NAME = re.compile(r"(?!(?:and|or|not|contents)$)[^\W\d][\w.-]*", re.IGNORECASE)
EPOCH = date(1970, 1, 1).toordinal()


class Inexact(ValueError):
    """A number with more digits than a double holds, for which another one would be stored and found."""


def checked(value: Any, kind: Kind) -> Value | None:
    """The value to store, None if it is empty. Strings are also parsed as numbers, and as lists with items separated by
    `;`; integers can be strings. Raises ValueError for another type; the message is the expected type."""
    if isinstance(value, str):
        value = value.strip()
    if value is None or value in ("", []) or value != value:  # NaN is a missing value in Parquet
        return None
    if kind == "number":
        return _number(value)
    if kind == "date":
        text = value.isoformat() if isinstance(value, date) else str(value)
        days(text)
        return text
    if kind == "string":
        return _string(value) or None
    items = value.split(";") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ValueError("a list of strings")
    return list(dict.fromkeys(filter(None, map(_string, items)))) or None


def _number(value: Any) -> int | float:
    try:
        exact = Decimal(value) if isinstance(value, str) else value
        number = math.nan if isinstance(value, bool) else float(exact)
    except (TypeError, ValueError, ArithmeticError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a number")
    rounded = isinstance(value, str) and "e" in value.lower()  # a quantity such as 6.02e23, not an id
    if abs(number) >= LARGEST_INTEGER and exact != number and not rounded:
        raise Inexact("a number that 64 bits hold exactly (declare it `string`, in the YAML file, to keep its digits)")
    return int(number) if number.is_integer() and abs(number) <= LARGEST_INTEGER else number


def _string(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("a string")
    value = normalized(value).strip()
    if len(value.encode()) > LONGEST_TERM:
        raise ValueError(f"a string of at most {LONGEST_TERM:,} bytes")
    return value


def days(text: str) -> tuple[int, int]:
    """The first and last day of a day (2020-05-17, without its time), a month (2020-05) or a year; else ValueError."""
    try:
        if match := MONTH.fullmatch(text):
            year, first_month, last_month = int(match[1]), int(match[2] or 1), int(match[2] or 12)
            first, last = date(year, first_month, 1), date(year, last_month, monthrange(year, last_month)[1])
        else:
            first = last = datetime.fromisoformat(text).date()
    except ValueError:
        raise ValueError("a date in ISO 8601, such as 2020-05-17") from None
    return first.toordinal() - EPOCH, last.toordinal() - EPOCH


def bounds(value: str | int | float, kind: Kind) -> tuple[float, float]:
    """The range of a date in days, or a number twice. Raises ValueError for anything else."""
    first, last = days(str(value)) if kind == "date" else (_number(value),) * 2
    return float(first), float(last)


def year_of(day: float) -> str:
    """The year of a day, with four digits."""
    return f"{date.fromordinal(int(day) + EPOCH).year:04}"
