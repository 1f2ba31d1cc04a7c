"""Long work in batches that are kept: an interrupted run continues with the first missing batch."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import batched
from pathlib import Path
from typing import Any

from cai_pyserini.core import artifact, jsonl

type Process[T] = Callable[[int, tuple[T, ...]], Iterable[dict[str, Any]]]  # number of the batch, items -> records


def in_batches[T](
    items: Iterable[T], size: int, folder: Path, recipe: artifact.Recipe, process: Process[T]
) -> Iterator[dict[str, Any]]:
    """The records that `process` makes of every batch of `size` items, kept as JSONL files in `folder`."""
    for number, batch in enumerate(batched(items, size)):
        path = folder / f"{number:05d}.jsonl"
        write = partial(_write, process=process, number=number, batch=batch)
        artifact.make(path, recipe | {"batch": number}, write, folder=False)
        for _, record in jsonl.read(path):
            yield record


def _write[T](path: Path, process: Process[T], number: int, batch: tuple[T, ...]) -> artifact.Stats:
    return {"records": jsonl.write(path, process(number, batch))}
