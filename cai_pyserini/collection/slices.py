"""Slices of a collection, for machines that share the work: each reads only its own, as far as the format allows.

In JSONL that is not gzipped, a slice is found by the byte with which it begins. Every other format is read from the
beginning, once by each reader that is given its slices in order.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from cai_pyserini.collection.contract import Collection, Document, Record
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.jsonl import Start
from cai_pyserini.core.terminal import progress


class Slice(NamedTuple):
    """Consecutive documents of a collection."""

    first: int  # the number of its first document, counted from 0
    size: int
    id: str  # the id of its first document
    start: Start | None  # where to start reading; None: at the beginning of the collection
    skip: int  # documents between that start and the first


def cut(collection: Collection, size: int) -> list[Slice]:
    """Read a collection, which checks it, and cut it into slices of `size` documents."""
    firsts: list[tuple[str, str, int]] = []
    number, place, before = -1, "", 0
    for number, record in enumerate(progress(collection.records(), collection.size, "check")):
        before = before + 1 if record.where == place else 0  # passages of the same document
        place = record.where
        if number % size == 0:
            firsts.append((record.id, place, before))
    starts = collection.starts(place for _, place, _ in firsts)
    return [
        Slice(first, min(size, number + 1 - first), id, start := starts.get(place), before if start else first)
        for first, (id, place, before) in zip(range(0, number + 1, size), firsts, strict=True)
    ]


class SliceReader:
    """Reads slices of a collection; reads on from the last slice to a later one where that is the shortest way."""

    def __init__(self, collection: Collection):
        self._collection = collection
        self._records: Iterator[Record] = iter(())
        self._next = -1  # number of the document that comes next

    def read(self, part: Slice) -> list[Document]:
        """The documents of a slice. Raises CaiError for a collection other than the one that was cut."""
        start = part.first - part.skip
        if not start <= self._next <= part.first:
            self._records, self._next = self._collection.documents_from(part.start), start
        skip = part.first - self._next
        records = list(islice(self._records, skip, skip + part.size))
        self._next = part.first + part.size
        if len(records) < part.size or records[0].id != part.id:
            raise CaiError(f"{self._collection.place} has changed, or is not the same on all machines")
        return [Document(record.id, self._collection.contents_of(record)) for record in records]
