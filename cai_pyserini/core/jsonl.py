"""Text files and JSONL files, gzipped or not. Errors name the file and the line."""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import POINTER, require_content


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the non-blank lines of a UTF-8 text file as (`file:line`, text); see `all_lines`."""
    return ((f"{path}:{number}", text) for number, text in all_lines(path) if text.strip())


def all_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 text file as (number, text), without byte order mark. Raises CaiError for a missing
    file, a Git LFS pointer, a line that is not UTF-8, and a truncated gzip file."""
    try:
        with io.BufferedReader(gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(POINTER):
                    require_content(path)
                try:
                    text = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()
                except UnicodeDecodeError as error:
                    if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                        convert = "convert it: `iconv -f utf-16 -t utf-8 FILE > NEW`"
                        raise CaiError(f"{path}: UTF-16, not UTF-8; {convert}") from None
                    raise CaiError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start})") from None
                yield number, text
    except FileNotFoundError:
        raise CaiError(f"no file {path}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        require_content(path)
        raise CaiError(f"{path}: not a gzip file, or truncated ({error})") from None


def read(path: Path, strings: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSONL file as (`file:line`, object); keys in `strings` must have string values."""
    for where, line in read_lines(path):
        yield where, parse(line, where, strings)


def parse(text: str, where: str, strings: Sequence[str] = (), surrogates: bool = False) -> dict[str, Any]:
    """Parse a line as a JSON object. Raises CaiError for anything else; the message begins with `where`. Strings with
    unpaired surrogates, which UTF-8 cannot encode, are accepted only with `surrogates`."""
    try:
        data = json.loads(text, object_pairs_hook=_object_of_unique_keys)
        if not surrogates and ("\\ud" in text or "\\uD" in text):
            json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise CaiError(f"{where}: not JSON ({error.msg} at column {error.colno}); correct or remove it") from None
    except UnicodeEncodeError as error:
        escape = ascii(error.object[error.start])[1:-1]
        raise CaiError(f"{where}: {escape} is an unpaired surrogate; correct or remove it") from None
    except KeyError as error:
        raise CaiError(f"{where}: the key {error.args[0]!r} occurs twice in an object; correct or remove it") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, thousands of nested lists
        raise CaiError(f"{where}: JSON too large to read ({error}); correct or remove it") from None
    if not isinstance(data, dict):
        raise CaiError(f"{where}: expected a JSON object, {{…}}")
    if wrong := [key for key in strings if not isinstance(data.get(key), str)]:
        raise CaiError(f"{where}: expected an object with {', '.join(strings)} as strings; {wrong[0]} is not one")
    return data


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises KeyError for a repeated key, whose value depends on the parser."""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        raise KeyError(next(key for key in keys if keys.count(key) > 1))
    return data


def write(path: Path, records: Iterable[dict[str, Any]]) -> int:
    """Write objects as JSONL and return their number."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


class Lines(Sequence[str]):
    """The lines of a UTF-8 text file by number, from 0, without newlines. The file is memory-mapped, so processes share
    it; a pickle holds only the path."""

    def __init__(self, path: Path):
        self._path = path
        # an empty file cannot be mapped
        self._bytes = np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.empty(0, np.uint8)
        self._ends = np.flatnonzero(self._bytes == ord("\n"))

    def __reduce__(self) -> tuple[type["Lines"], tuple[Path]]:
        return Lines, (self._path,)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: Any) -> Any:
        start = self._ends[number - 1] + 1 if number else 0
        return self._bytes[start : self._ends[number]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        with self._path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")
