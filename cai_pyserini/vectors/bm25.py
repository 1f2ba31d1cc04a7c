"""BM25 as vectors: Lucene's weights for the counts of the words stage.

    weight = idf * tf / (tf + k1 * (1 - b + b * length / average length)),   idf = ln(1 + (N - df + 0.5) / (df + 0.5))

N is the number of documents with words. `length` is the number of words, rounded down as in Lucene, which stores
lengths above 40 with four significant bits.

Expansion adds 0.6 * length * rate to tf, for the word's rate in the neighbours, as if a part of the document repeated
its neighbours; `length` still counts only the document's own words. It also adds 0.6 times the weights of associated
words from the expand stage.

n-grams of words are further terms, with a BM25 of their own: their own `length`, average and N, and no expansion.

Translated words (vectors.translations) have weights by their expected counts and document frequencies, and the 400 with
the largest weights are kept. A word that is also the document's own has the larger weight of both, so that searches in
the language of the documents stay as they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from scipy.sparse import csr_matrix, diags_array, hstack, load_npz

from cai_pyserini.core import jsonl
from cai_pyserini.core.config import BM25, ENGLISH, GRAM, WORD, Bm25Parameters, Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.rows import largest, with_data
from cai_pyserini.vectors.shards import Shard, Vectors, different_documents, require_same_documents, shard_progress
from cai_pyserini.vectors.translations import FILE

ASSOCIATED_FACTOR = 0.6  # scales weights of associated words, whose spread is about that of BM25's
NEIGHBOUR_FACTOR = 0.6  # neighbours' words per own word of a document
TRANSLATED_WORDS = 400  # per document, those with the largest weights
EXACT_LENGTHS = 24  # Lucene's SmallFloat.intToByte4 stores smaller lengths unchanged, and encodes length - 24 otherwise


@dataclass(frozen=True)
class Bm25:
    """The words of a collection, in a folder written by the words stage, with the parameters of BM25.

    `alpha` is the weight of BM25 in a joint index; None: estimated. `near_words` is a folder of that stage; with
    `documents_only`, only its neighbours' words are added. `grams` is a folder with n-grams of the words stage.
    """

    folder: Path
    parameters: Bm25Parameters = BM25
    alpha: float | None = None
    near_words: Path | None = None
    documents_only: bool = False
    grams: Path | None = None

    @cached_property
    def counts(self) -> Vectors:
        return Vectors(self.folder, "words")

    @property
    def language(self) -> Language:
        """The language of the documents, and those of translated words."""
        manifest = self.counts.manifest
        return manifest.stats.get("query_language") or manifest.recipe["settings"].get("language", ENGLISH)

    @cached_property
    def near_vectors(self) -> Vectors | None:
        """Weights of associated words, and rates of neighbours' words, side by side (documents, 2 * words). Raises
        CaiError if they were made from other counts."""
        vectors = Vectors(self.near_words, "expand") if self.near_words else None
        if vectors and vectors.manifest.stats["words"] != self.counts.manifest.digest:
            raise CaiError(f"{self.near_words} was not made from {self.folder}: make them again from these words")
        return vectors

    @cached_property
    def words(self) -> Sequence[str]:
        """The words in the order of the columns."""
        return jsonl.Lines(self.folder / "words.txt")

    @cached_property
    def of_grams(self) -> "Bm25 | None":
        """BM25 of the n-grams. Raises CaiError if they are of other documents than the words."""
        if self.grams is None:
            return None
        of_grams = Bm25(self.grams, self.parameters)
        require_same_documents(self.counts, of_grams.counts)
        return of_grams

    @property
    def terms(self) -> "Sequence[tuple[str, Sequence[str]]]":
        """Words and n-grams in the order of the columns of weights, with the prefixes of their names in an index."""
        return [(WORD, self.words), *([(GRAM, self.of_grams.words)] if self.of_grams else [])]

    @property
    def spans(self) -> list[tuple[str, dict[str, int]]]:
        """Spans of documents, which stand in for queries, each with its word counts."""
        return [(line["text"], line["words"]) for _, line in jsonl.read(self.folder / "spans.jsonl", ["text"])]

    @cached_property
    def weighting(self) -> "WordWeighting":
        shards = shard_progress(self.counts, len(self.counts), "word statistics")
        translations = load_npz(self.folder / FILE) if "query_language" in self.counts.manifest.stats else None
        return WordWeighting.of((shard.vectors for shard in shards), len(self.words), self.parameters, translations)

    def shards(self) -> Iterator[Shard]:
        """Weights (documents, words, then n-grams), shard by shard."""
        return map(self.shard, range(self.counts.shards))

    def shard(self, number: int) -> Shard:
        counts, rates, associated = self.counts.shard(number), None, None
        if self.near_vectors:
            expansion, width = self.near_vectors.shard(number).vectors, len(self.words)
            rates, associated = expansion[:, width:], None if self.documents_only else expansion[:, :width]
        weights = self.weighting.weights(counts.vectors, rates, associated)
        if self.of_grams:
            of_grams = self.of_grams.shard(number)
            if of_grams.ids != counts.ids:
                raise different_documents(self.counts, self.of_grams.counts)
            weights = hstack([weights, of_grams.vectors], format="csr")
        return Shard(counts.ids, weights)


@dataclass(frozen=True)
class WordWeighting:
    """BM25's statistics and parameters for a collection."""

    idf: np.ndarray  # (words,)
    average: float  # length of a document
    parameters: Bm25Parameters
    translations: csr_matrix | None = None  # degrees (own words, words)
    translated_idf: np.ndarray | None = None  # (words,)

    @classmethod
    def of(
        cls,
        counts: Iterable[csr_matrix],
        words: int,
        parameters: Bm25Parameters,
        translations: csr_matrix | None = None,
    ) -> Self:
        """The weighting of a collection with these counts, in parts (documents, words)."""
        frequencies = np.zeros(words, np.int64)
        documents = length = 0
        for part in counts:
            frequencies += np.bincount(part.indices, minlength=words)
            documents += int((np.diff(part.indptr) > 0).sum())
            length += int(part.data.sum())
        average, idf = max(length / max(documents, 1), 1.0), _idf(frequencies, documents)
        if translations is None:
            return cls(idf, average, parameters)
        expected = translations.T @ frequencies[: translations.shape[0]]
        return cls(idf, average, parameters, translations, _idf(np.minimum(expected, documents), documents))

    def weights(
        self, counts: csr_matrix, rates: csr_matrix | None = None, associated: csr_matrix | None = None
    ) -> csr_matrix:
        """The float32 weights of counts (documents, words), with the `rates` of neighbours' words, and the weights of
        `associated` words."""
        lengths = np.asarray(counts.sum(1)).ravel()
        counts = csr_matrix((counts.data, counts.indices, counts.indptr), (counts.shape[0], len(self.idf)))
        own = counts
        if rates is not None:
            counts = csr_matrix(counts + diags_array(NEIGHBOUR_FACTOR * lengths) @ rates)
        relative = stored_lengths(lengths) / self.average
        weights = weights_of(counts, relative, self.idf, self.parameters)
        if self.translations is not None and self.translated_idf is not None:
            expected = own[:, : self.translations.shape[0]] @ self.translations
            translated = weights_of(expected, relative, self.translated_idf, self.parameters)
            weights = weights.maximum(largest(translated, TRANSLATED_WORDS))
        return weights if associated is None else csr_matrix(weights + ASSOCIATED_FACTOR * associated)


def _idf(frequencies: np.ndarray, documents: int) -> np.ndarray:
    return np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5))


def weights_of(counts: csr_matrix, lengths: np.ndarray, idf: np.ndarray, parameters: Bm25Parameters) -> csr_matrix:
    """BM25's float32 weights of counts (documents, words); `lengths` (documents,) are divided by their average."""
    k1, b = parameters
    saturation = np.repeat(k1 * (1 - b + b * lengths), np.diff(counts.indptr))
    data = idf[counts.indices] * counts.data / (counts.data + saturation)
    return with_data(counts, data.astype(np.float32))


def stored_lengths(lengths: np.ndarray) -> np.ndarray:
    """The lengths with which Lucene scores documents of these lengths, because it stores a length in a byte."""
    return _LENGTHS[np.searchsorted(_LENGTHS, lengths, side="right") - 1]


def _decode(code: int) -> int:
    """Lucene's SmallFloat.int4ToLong: a mantissa of three bits after a leading one."""
    mantissa, exponent = code & 7, (code >> 3) - 1
    return mantissa if exponent < 0 else (mantissa | 8) << exponent


_LENGTHS = np.array([*range(EXACT_LENGTHS), *(EXACT_LENGTHS + _decode(code) for code in range(256 - EXACT_LENGTHS))])
