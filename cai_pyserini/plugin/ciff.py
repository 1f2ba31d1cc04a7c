"""CIFF, the Common Index File Format, which PISA, BMP, JASS and Terrier import.

A file is a sequence of protobuf messages, each preceded by its length: a header, a postings list per term in the order
of the terms' bytes, and a record per document. See github.com/osirrc/ciff. Document numbers in a list are gaps, except
for the first. Impacts take the place of term frequencies.

Documents are read twice, first to count the postings of each term, then to write each posting to its place in a
temporary file, so that memory grows with the number of terms, not of documents.
"""

import shutil
from collections import Counter
from functools import lru_cache
from itertools import batched, pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cai_pyserini.core.terminal import progress
from cai_pyserini.plugin.source import Source

VERSION = 1
BATCH = 10_000  # documents between writes to the temporary file
NAME = "index.ciff"


def write_ciff(source: Source, folder: Path) -> list[str]:
    """Write index.ciff, and queries.jsonl if there are topics."""
    frequencies: Counter[str] = Counter()  # term -> documents
    documents = total = 0
    records = folder / "documents"
    with records.open("wb") as file:
        for documents, (id, vector) in enumerate(source.documents(), 1):
            length = sum(vector.values())
            _write(file, _number(1, documents - 1), _text(2, id), _number(3, length))
            total += length
            frequencies.update(vector.keys())
    terms = sorted(frequencies, key=str.encode)
    starts = np.cumsum([0, *(frequencies[term] for term in terms)])
    path = folder / "postings"
    postings = _postings(source, path, {term: number for number, term in enumerate(terms)}, starts)
    with (folder / NAME).open("wb") as file:
        counts = [VERSION, len(terms), documents, len(terms), documents, total]
        average = b"\x39" + np.array(total / documents, "<f8").tobytes()  # field 7, a double
        description = _text(8, f"impacts of {source.config.name}")
        _write(file, *(_number(field, count) for field, count in enumerate(counts, 1)), average, description)
        for term, (start, end) in progress(zip(terms, pairwise(starts), strict=True), len(terms), NAME, "terms"):
            _write_list(file, term, postings[start:end])
        with records.open("rb") as written:
            shutil.copyfileobj(written, file)
    path.unlink()
    records.unlink()
    source.write_queries(folder)
    return ["nothing else; whether impacts above 255 are kept depends on the reader (BMP has 8 bits)"]


def _postings(source: Source, path: Path, numbers: dict[str, int], starts: np.ndarray) -> np.ndarray:
    """Memory-mapped (document, impact) of every posting, (postings, 2), sorted by term, then document."""
    postings = np.memmap(path, np.int32, "w+", shape=(int(starts[-1]), 2))
    next_rows = starts[:-1].copy()  # the next free row of each term
    for batch in batched(enumerate(source.documents()), BATCH):
        entries = [
            (numbers[term], document, impact) for document, (_, vector) in batch for term, impact in vector.items()
        ]
        if not entries:
            continue
        batch_postings = np.array(entries, np.int64)  # (term, document, impact)
        batch_postings = batch_postings[np.argsort(batch_postings[:, 0], kind="stable")]
        terms, first, counts = np.unique(batch_postings[:, 0], return_index=True, return_counts=True)
        rows = np.repeat(next_rows[terms] - first, counts) + np.arange(len(batch_postings))
        postings[rows] = batch_postings[:, 1:]
        next_rows[terms] += counts
    return postings


def _write_list(file: BinaryIO, term: str, postings: np.ndarray) -> None:
    """Write the postings list of a term, with its document frequency and the sum of its impacts."""
    gaps = np.diff(postings[:, 0], prepend=0).tolist()
    impacts = postings[:, 1].tolist()
    header = _text(1, term), _number(2, len(impacts)), _number(3, sum(impacts))
    pairs = zip(gaps, impacts, strict=True)
    _write(file, *header, *(_bytes(4, _number(1, gap) + _number(2, impact)) for gap, impact in pairs))


@lru_cache(1 << 16)
def _varint(value: int) -> bytes:
    """Encode 7 bits per byte, lowest first; the top bit says that another byte follows."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _write(file: BinaryIO, *parts: bytes) -> None:
    """Write a message, preceded by its length."""
    content = b"".join(parts)
    file.write(_varint(len(content)) + content)
