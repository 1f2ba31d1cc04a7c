"""A mixture of retrieval systems that serves as their teacher.

    score = sum over systems s of w_s * (score_s - mean_s) / deviation_s

mean_s and deviation_s are the mean and standard deviation of the query's BEST_DOCUMENTS best scores in system s, as in
the fusion `zscore`.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import bm25s
import numpy as np
import Stemmer
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.terminal import progress
from cai_pyserini.vectors.bm25 import WordWeighting
from cai_pyserini.vectors.shards import Matrix

WEIGHTS = {"bm25": 2.0, "splade": 1.0, "dense": 2.0}  # those of hybrid-…-zscore
BEST_DOCUMENTS = 100  # per query
QUERY_BATCH = 64  # queries scored together
MIN_DEVIATION = 1e-9
STOP_WORD_LANGUAGES = {"da", "de", "en", "es", "fr", "it", "nl", "no", "pt", "ru", "sv", "tr"}  # of bm25s
LANGUAGES = STOP_WORD_LANGUAGES | {"ar", "fa", "fi", "hu", "id", "pl"}  # with words between spaces and a stemmer


class VectorSystem(NamedTuple):
    """A system that scores by inner products of vectors, (queries, dimensions) and (documents, dimensions)."""

    queries: Matrix
    documents: Matrix

    def scores(self, queries: np.ndarray, documents: np.ndarray | None = None) -> np.ndarray:
        """Scores (queries, documents), float32, of these queries and documents, by number; None: all documents."""
        product = self.queries[queries] @ (self.documents if documents is None else self.documents[documents]).T
        return np.asarray(product if isinstance(product, np.ndarray) else product.toarray(), np.float32)


class Bm25:
    """The impact stage's BM25 without Java: Snowball analyzes words, not Anserini. A score is the inner product of a
    query's counts and a document's weights.

    `counts` and `documents` are the documents' counts and weights (documents, words); `words` maps words to columns.
    """

    def __init__(self, documents: Sequence[str], collection: IndexConfig):
        self._language = collection.language
        tokens = self.analyze(documents)
        self.words = {word: column for column, word in enumerate(dict.fromkeys(chain.from_iterable(tokens)))}
        self.counts = self._count(tokens)
        self.weighting = WordWeighting.of([self.counts], len(self.words), collection.bm25)
        self.documents = self.weighting.weights(self.counts)

    def queries(self, texts: Sequence[str]) -> csr_matrix:
        """The word counts of queries, (texts, words)."""
        return self._count(self.analyze(texts))

    def _count(self, tokens: Sequence[Sequence[str]]) -> csr_matrix:
        counts = [Counter(word for word in words if word in self.words) for words in tokens]
        indices = [self.words[word] for words in counts for word in words]
        data = [count for words in counts for count in words.values()]
        indptr = np.cumsum([0, *map(len, counts)])
        return csr_matrix((np.array(data, np.float32), indices, indptr), shape=(len(tokens), len(self.words)))

    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        """Split texts into stemmed words without stop words."""
        stop_words: str | list[str] = self._language if self._language in STOP_WORD_LANGUAGES else []
        stemmer: Any = Stemmer.Stemmer(self._language)
        return bm25s.tokenize(list(texts), stopwords=stop_words, stemmer=stemmer, return_ids=False, show_progress=False)


class Mixture:
    """A mixture of systems for the same queries and documents.

    `best` (systems + 1, queries, BEST_DOCUMENTS) has the numbers of the best documents of each system, and last of the
    mixture, best first; `spread` (systems + 1,) the mean standard deviation of their scores.
    """

    def __init__(self, systems: Sequence[VectorSystem], weights: Sequence[float]):
        self.systems = systems
        self._weights = weights
        queries, documents = systems[0].queries.shape[0], systems[0].documents.shape[0]
        self._means, self._deviations = np.zeros((2, len(systems) + 1, queries, 1), np.float32)
        self.best = np.zeros((len(systems) + 1, queries, min(BEST_DOCUMENTS, documents)), np.int32)
        for start in progress(range(0, queries, QUERY_BATCH), None, "score queries", "batches"):
            chunk = np.arange(start, min(start + QUERY_BATCH, queries))
            mixed = np.zeros((len(chunk), documents), np.float32)
            for number, system in enumerate(systems):
                scores = system.scores(chunk)
                self._record_best(number, chunk, scores)
                mixed += weights[number] * self._standardize(number, chunk, scores)
            self._record_best(len(systems), chunk, mixed)
        self.spread = self._deviations.mean((1, 2))

    def _record_best(self, number: int, chunk: np.ndarray, scores: np.ndarray) -> None:
        depth = self.best.shape[2]
        best = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
        top: np.ndarray = np.take_along_axis(scores, best, axis=1)
        order = np.argsort(-top, axis=1, kind="stable")
        self.best[number, chunk] = np.take_along_axis(best, order, axis=1)
        self._means[number, chunk] = top.mean(1, keepdims=True)
        self._deviations[number, chunk] = np.maximum(top.std(1, keepdims=True), MIN_DEVIATION)

    def _standardize(self, number: int, queries: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return (scores - self._means[number, queries]) / self._deviations[number, queries]

    def scores(self, queries: np.ndarray, documents: np.ndarray, weights: Sequence[float] | None = None) -> np.ndarray:
        """Scores of the mixture (queries, documents), float32, for these queries and documents, by number; `weights`
        replace its own."""
        mixed = np.zeros((len(queries), len(documents)), np.float32)
        for number, (system, weight) in enumerate(zip(self.systems, weights or self._weights, strict=True)):
            mixed += weight * self._standardize(number, queries, system.scores(queries, documents))
        return mixed

    def standardized(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """`scores` divided by the standard deviation of the query's best scores."""
        return self.scores(queries, documents) / self._deviations[-1, queries]
