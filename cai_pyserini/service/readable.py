"""Values of metadata as people read them."""

import os
from collections.abc import Mapping
from datetime import date
from urllib.parse import unquote_to_bytes

from cai_pyserini.collections.contract import PAGES
from cai_pyserini.core.metadata import MONTH, Kind, Value


def readable(name: str, value: Value, kinds: Mapping[str, Kind]) -> str:
    """A value of a field: dates as 3 March 2024, sizes of files as 370 KB."""
    if isinstance(value, list):
        return ", ".join(value)
    if kinds.get(name) == "date":
        return readable_date(str(value))
    if name != "size" or not of_files(kinds):
        return str(value)
    try:
        return readable_size(float(value))
    except ValueError:  # of a filter
        return str(value)


def of_files(kinds: Mapping[str, Kind]) -> bool:
    """Whether these are the metadata of a folder of files."""
    needed: dict[str, Kind] = {"path": "string", "type": "string", "size": "number", "modified": "date"}
    return kinds.items() >= needed.items() and kinds.get(PAGES, "number") == "number"


def readable_date(text: str) -> str:
    """A day, a month or a year; other texts are unchanged."""
    try:
        if match := MONTH.fullmatch(text):
            return f"{date(int(match[1]), int(match[2]), 1):%B} {match[1]}" if match[2] else text
        day = date.fromisoformat(text[:10])
    except ValueError:
        return text
    return f"{day.day} {day:%B} {day.year}"


def readable_size(size: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if size < 999.5:
            return f"{size:.1f} {unit}" if size < 9.95 and unit != "bytes" else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def readable_path(id: str) -> str:
    """The path of a file, which its id has percent-encoded where an id cannot have a character."""
    return os.fsdecode(unquote_to_bytes(id)).encode(errors="replace").decode()
