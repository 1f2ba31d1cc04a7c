"""A text file as a sequence of lines that are not held in memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Lines(Sequence[str]):
    """The lines of a UTF-8 text file by number, from 0, without their newlines.

    The file is mapped into memory, which processes share. Pickled, it is only a path.
    """

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
