"""BM25 as vectors: the weights that Lucene would give to the counts of the words stage.

    weight = idf * tf / (tf + k1 * (1 - b + b * length / average length)),   idf = ln(1 + (N - df + 0.5) / (df + 0.5))

N is the number of documents that have words. `length` is the number of words, rounded down as in Lucene, which stores
lengths above 40 with four significant bits.

An expansion adds to tf the rate of the word in near documents, times 0.6 * length, as if a part of the document said
what these say; `length` stays that of the document's own words. Words that are near the document add 0.6 of their
weight from the expand stage.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from scipy.sparse import csr_matrix, diags_array

from cai_pyserini.core import jsonl
from cai_pyserini.core.config import ENGLISH, Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.vectors.shards import Shard, Vectors

ASSOCIATED_FACTOR = 0.6  # factor on the weights of near words, whose spread is about that of BM25's
NEIGHBOUR_FACTOR = 0.6  # words of near documents that a document has for each word of its own
EXACT_LENGTHS = 24  # lengths below it are stored as they are, the others minus it, in Lucene's SmallFloat.intToByte4


@dataclass(frozen=True)
class Bm25:
    """The words of a collection, in a folder written by the words stage, with the parameters of BM25.

    `alpha` is the weight of BM25 in a joint index; None: estimated. `expansion` is a folder of the expand stage, of
    which only words of near documents are added with `documents_only`.
    """

    folder: Path
    k1: float = 0.9
    b: float = 0.4
    alpha: float | None = None
    expansion: Path | None = None
    documents_only: bool = False

    @cached_property
    def counts(self) -> Vectors:
        return Vectors(self.folder, "words")

    @property
    def language(self) -> Language:
        return self.counts.manifest.recipe["settings"].get("language", ENGLISH)

    @cached_property
    def near(self) -> Vectors | None:
        """The weights of words near documents, and the rates of words in near documents, (documents, 2 * words). Raises
        CaiError if they were made from other counts."""
        near = Vectors(self.expansion, "expand") if self.expansion else None
        if near and near.manifest.stats["words"] != self.counts.manifest.digest:
            raise CaiError(f"{self.expansion} was not made from {self.folder}: expand these words")
        return near

    @cached_property
    def words(self) -> Sequence[str]:
        """The words, in the order of the columns."""
        return jsonl.Lines(self.folder / "words.txt")

    @property
    def spans(self) -> list[tuple[str, dict[str, int]]]:
        """Spans of documents, which stand in for queries, each with its words and how often they occur."""
        return [(line["text"], line["words"]) for _, line in jsonl.read(self.folder / "spans.jsonl", ["text"])]

    @cached_property
    def weighting(self) -> "WordWeighting":
        shards = progress(self.counts, self.counts.shards, "word statistics", "shard")
        return WordWeighting.of((shard.vectors for shard in shards), len(self.words), self.k1, self.b)

    def shards(self) -> Iterator[Shard]:
        """Weights (documents, words), shard by shard."""
        return map(self.shard, range(self.counts.shards))

    def shard(self, number: int) -> Shard:
        counts = self.counts.shard(number)
        if self.near is None:
            return Shard(counts.ids, self.weighting.weights(counts.vectors))
        near, width = self.near.shard(number).vectors, len(self.words)
        words = None if self.documents_only else near[:, :width]
        return Shard(counts.ids, self.weighting.weights(counts.vectors, near[:, width:], words))


@dataclass(frozen=True)
class WordWeighting:
    """BM25 of a collection: the IDF of its words (words,), the average length of a document, and the parameters."""

    idf: np.ndarray
    average: float
    k1: float
    b: float

    @classmethod
    def of(cls, counts: Iterable[csr_matrix], words: int, k1: float, b: float) -> Self:
        """The weighting of a collection whose documents have these counts, in parts (documents, words)."""
        frequencies = np.zeros(words, np.int64)
        documents = length = 0
        for part in counts:
            frequencies += np.bincount(part.indices, minlength=words)
            documents += int((np.diff(part.indptr) > 0).sum())
            length += int(part.data.sum())
        idf = np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5))
        return cls(idf, max(length / max(documents, 1), 1.0), k1, b)

    def weights(
        self, counts: csr_matrix, rates: csr_matrix | None = None, near: csr_matrix | None = None
    ) -> csr_matrix:
        """The weights of counts (documents, words), float32; `rates` are those of near documents, and `near` the
        weights of near words."""
        lengths = np.asarray(counts.sum(1)).ravel()
        counts = csr_matrix((counts.data, counts.indices, counts.indptr), (counts.shape[0], len(self.idf)))
        if rates is not None:
            counts = csr_matrix(counts + diags_array(NEIGHBOUR_FACTOR * lengths) @ rates)
        weights = weights_of(counts, stored_lengths(lengths) / self.average, self.idf, self.k1, self.b)
        return weights if near is None else csr_matrix(weights + ASSOCIATED_FACTOR * near)


def weights_of(counts: csr_matrix, lengths: np.ndarray, idf: np.ndarray, k1: float, b: float) -> csr_matrix:
    """BM25's weights of counts (documents, words), float32; lengths (documents,) are in units of their average."""
    saturation = np.repeat(k1 * (1 - b + b * lengths), np.diff(counts.indptr))
    data = idf[counts.indices] * counts.data / (counts.data + saturation)
    return csr_matrix((data.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)


def stored_lengths(lengths: np.ndarray) -> np.ndarray:
    """The lengths that Lucene scores documents of these lengths with: it stores them in a byte."""
    return _LENGTHS[np.searchsorted(_LENGTHS, lengths, side="right") - 1]


def _decoded(code: int) -> int:
    """Lucene's SmallFloat.int4ToLong: three bits of mantissa behind a leading one."""
    mantissa, exponent = code & 7, (code >> 3) - 1
    return mantissa if exponent < 0 else (mantissa | 8) << exponent


_LENGTHS = np.array([*range(EXACT_LENGTHS), *(EXACT_LENGTHS + _decoded(code) for code in range(256 - EXACT_LENGTHS))])
