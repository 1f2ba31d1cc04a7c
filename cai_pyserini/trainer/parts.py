"""Long work on many items, in parts that are kept: what was interrupted goes on with the first part that is missing."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import batched
from pathlib import Path
from typing import Any

from cai_pyserini import artifact


def in_parts[T](
    items: Iterable[T],
    size: int,
    folder: Path,
    recipe: artifact.Recipe,
    make: Callable[[int, tuple[T, ...]], Iterable[dict[str, Any]]],
) -> Iterator[dict[str, Any]]:
    """The records that `make` gives for each part of `size` items and its number, kept as JSONL files in `folder`."""
    for number, part in enumerate(batched(items, size)):
        path = folder / f"{number:05d}.jsonl"
        own = recipe | {"part": number}
        if not artifact.is_fresh(path, own):
            with (
                artifact.building(path, own, folder=False) as (partial, _),
                partial.open("w", encoding="utf-8") as file,
            ):
                for record in make(number, part):
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
