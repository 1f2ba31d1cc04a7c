"""Forward indexes: the impacts of each document, beside a Lucene index, to score some documents by whole queries.

Lucene has impacts by term. To score a document, it has to look for it in the postings of every term of the query, some
0.2 µs each. In a forward index, a score is a sum over the document's own terms:

    score(q, d) = sum over the terms t of document d of q_t * impact(t, d)

Row i is document i of the Lucene index, which keeps the order of documents. Its entries are integers, memory-mapped, of
which the highest bits are the number of a term, its place among all terms, and the lowest the impact.
"""

import shutil
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.jsonl import Lines
from cai_pyserini.vectors.json_vectors import DELIMITER

TERMS, IDS = "forward.terms", "forward.ids"  # one per line, the terms sorted
STARTS, ENTRIES = "forward.starts.npy", "forward.entries.npy"
LENGTHS, NUMBERS, IMPACTS = "lengths", "numbers", "impacts"  # of a part
CHUNK = 1 << 22  # entries copied at a time
CACHED_TERMS = 1 << 16


@contextmanager
def writing_forward(folder: Path) -> Iterator[Callable[[Sequence[str], Sequence[str]], None]]:
    """A function that adds documents, by ids and delimited contents, which Lucene has taken, to the forward index of
    some documents, a part of a forward index, in a new folder."""
    folder.mkdir()
    numbers_of: defaultdict[str, int] = defaultdict()
    numbers_of.default_factory = numbers_of.__len__
    with ExitStack() as files:
        names = (IDS, LENGTHS, NUMBERS, IMPACTS)
        of_ids, lengths, numbers, impacts = (files.enter_context((folder / name).open("wb")) for name in names)

        def add(ids: Sequence[str], contents: Sequence[str]) -> None:
            entries = " ".join(filter(None, contents)).replace("   ", " ").replace(DELIMITER, " ").split(" ")
            of_ids.write("".join(f"{id}\n" for id in ids).encode())
            lengths.write(np.array([text.count(DELIMITER) for text in contents], np.int64))
            numbers.write(np.array([numbers_of[term] for term in entries[:-1:2]], np.uint32))
            impacts.write(np.array([*map(int, entries[1::2])], np.uint32))

        yield add
    (folder / TERMS).write_text("".join(f"{term}\n" for term in numbers_of), encoding="utf-8")


def merge_forward(parts: Sequence[Path], index: Path) -> None:
    """Write the forward index of consecutive parts to the folder of a Lucene index, and remove the parts."""
    terms = sorted({term for part in parts for term in Lines(part / TERMS)})
    (index / TERMS).write_text("".join(f"{term}\n" for term in terms), encoding="utf-8")
    with (index / IDS).open("wb") as ids:
        for part in parts:
            with (part / IDS).open("rb") as of_part:
                shutil.copyfileobj(of_part, ids)
    lengths = np.concatenate([np.fromfile(part / LENGTHS, np.int64) for part in parts])
    starts = np.concatenate([[0], lengths.cumsum()])
    with _array_file(index / STARTS, starts.dtype, len(starts)) as file:
        file.write(starts)
    places, size = {term: place for place, term in enumerate(terms)}, int(lengths.sum())
    largest = max([0, *(int(chunk.max()) for part in parts for chunk in _chunks(part / IMPACTS))])
    kind = np.dtype(np.uint32 if len(terms).bit_length() + largest.bit_length() <= 32 else np.uint64)
    shift = _impact_bits(kind, len(terms))
    with _array_file(index / ENTRIES, kind, size) as file:
        for part in parts:
            renumbered = np.array([places[term] for term in Lines(part / TERMS)], kind)
            for numbers, impacts in zip(_chunks(part / NUMBERS), _chunks(part / IMPACTS), strict=True):
                file.write(renumbered[numbers] << shift | impacts)
            shutil.rmtree(part)


@contextmanager
def _array_file(path: Path, kind: np.dtype, size: int) -> Iterator[BinaryIO]:
    """A new file in NumPy's format, to which so many numbers of this type have to be written. A full disk is an OSError
    with a number; numpy.save raises one without, and a memory map crashes."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": kind.str, "fortran_order": False, "shape": (size,)})
        yield file


def _impact_bits(entries: np.dtype, terms: int) -> int:
    """The number of bits of an impact in entries of this type with the numbers of this many terms."""
    return 8 * entries.itemsize - terms.bit_length()


def _chunks(path: Path) -> list[np.ndarray]:
    """The entries of a file of uint32, memory-mapped."""
    size = path.stat().st_size // 4
    bounds = [*range(0, size, CHUNK), size]
    return [np.memmap(path, np.uint32, "r", 4 * start, end - start) for start, end in pairwise(bounds)]


class ForwardIndex:
    """The forward index of a Lucene index; threads can share it."""

    def __init__(self, folder: Path):
        """Raises CaiError for files that are missing or damaged."""
        try:
            self._terms, self._ids = Lines(folder / TERMS), Lines(folder / IDS)
            self._starts, self._entries = (
                np.asarray(np.load(folder / name, mmap_mode="r", allow_pickle=False)) for name in (STARTS, ENTRIES)
            )
        except (OSError, ValueError, EOFError) as error:
            raise CaiError(f"{folder}: its forward index cannot be read ({error}); delete the index") from None
        if (len(self._ids) + 1, self._starts[-1]) != (len(self._starts), len(self._entries)):
            raise CaiError(f"{folder}: the files of its forward index do not fit together; delete the index")
        self._bytes = memoryview(self._entries)
        self._impact_bits = _impact_bits(self._entries.dtype, len(self._terms))
        self._number = lru_cache(CACHED_TERMS)(self._find)
        self._weights = np.zeros(len(self._terms), np.float32)  # of the query that is being scored
        self._lock = threading.Lock()

    def best(self, query: dict[str, int], documents: np.ndarray, hits: int) -> tuple[list[str], list[float]]:
        """Ids and scores of the best `hits` of some documents by number, ties by id."""
        scores = self.scores(query, documents)
        if len(scores) > hits:
            good = scores >= np.partition(scores, -hits)[-hits]
            documents, scores = documents[good], scores[good]
        ids = (self._ids[document] for document in documents.tolist())
        found = sorted(zip((-scores).tolist(), ids, strict=True))[:hits]
        return [id for _, id in found], [-score for score, _ in found]

    def scores(self, query: dict[str, int], documents: np.ndarray) -> np.ndarray:
        """The float32 scores (documents,) of documents by number, as Lucene computes them."""
        starts, ends = self._starts[documents], self._starts[documents + 1]
        # To join parts of a memoryview takes a third of the time of concatenating those of an array.
        rows = [self._bytes[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        entries: np.ndarray = np.frombuffer(b"".join(rows), self._entries.dtype)
        impacts = (entries & ((1 << self._impact_bits) - 1)).astype(np.float32)
        known = {number: weight for term, weight in query.items() if (number := self._number(term)) is not None}
        terms = np.array([*known], np.int64)
        with self._lock:
            self._weights[terms] = [*known.values()]
            products = self._weights.take(entries >> self._impact_bits) * impacts
            self._weights[terms] = 0
        scores = np.zeros(len(documents))
        lengths = ends - starts
        firsts = (lengths.cumsum() - lengths)[lengths > 0]
        scores[lengths > 0] = np.add.reduceat(products, firsts, dtype=np.float64)
        return scores.astype(np.float32)

    def _find(self, term: str) -> int | None:
        place = bisect_left(self._terms, term)
        return place if place < len(self._terms) and self._terms[place] == term else None
