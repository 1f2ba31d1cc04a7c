"""A mixture of retrieval systems, which teaches each of them.

    score = sum over systems s of w_s * (score_s - mean_s) / deviation_s

mean_s and deviation_s are those of the query's BEST best scores by system s, as in the fusion `zscore`.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import bm25s
import numpy as np
import Stemmer
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.terminal import progress
from cai_pyserini.impact.bm25 import WordWeighting
from cai_pyserini.vectors.shards import Matrix

WEIGHTS = {"bm25": 2.0, "splade": 1.0, "dense": 2.0}  # the weights of BM25 + SPLADE + dense, as in hybrid-…-zscore
BEST = 100  # best documents per query
CHUNK = 64  # queries that are scored together
TINY = 1e-9
STOPPED = frozenset(["da", "de", "en", "es", "fr", "it", "nl", "no", "pt", "ru", "sv", "tr"])  # bm25s has stop words
LANGUAGES = STOPPED | {"ar", "fa", "fi", "hu", "id", "pl"}  # have words between spaces, and a stemmer


class Products(NamedTuple):
    """A system that scores by products of query vectors (queries, dimensions) and document vectors (documents,
    dimensions)."""

    queries: Matrix
    documents: Matrix

    def scores(self, queries: np.ndarray, documents: np.ndarray | None = None) -> np.ndarray:
        """Scores (queries, documents), float32, of the queries and documents with these numbers; None: of all."""
        product = self.queries[queries] @ (self.documents if documents is None else self.documents[documents]).T
        return np.asarray(product if isinstance(product, np.ndarray) else product.toarray(), np.float32)


class Bm25:
    """BM25 of the impact stage without Java: the analysis of words is Snowball's, not Anserini's. A score is the
    product of a query's counts and a document's weights.

    `counts` (documents, words) are those of the documents, `documents` their weights, `words` the columns.
    """

    def __init__(self, documents: Sequence[str], collection: IndexConfig):
        self._language = collection.language
        tokens = self.analyze(documents)
        self.words = {word: column for column, word in enumerate(dict.fromkeys(chain.from_iterable(tokens)))}
        self.counts = self._count(tokens)
        self.weighting = WordWeighting.of([self.counts], len(self.words), collection.k1, collection.b)
        self.documents = self.weighting.weights(self.counts)

    def queries(self, texts: Sequence[str]) -> csr_matrix:
        """The counts of queries (texts, words)."""
        return self._count(self.analyze(texts))

    def _count(self, tokens: Sequence[Sequence[str]]) -> csr_matrix:
        counts = [Counter(word for word in words if word in self.words) for words in tokens]
        indices = [self.words[word] for words in counts for word in words]
        data = [count for words in counts for count in words.values()]
        indptr = np.cumsum([0, *map(len, counts)])
        return csr_matrix((np.array(data, np.float32), indices, indptr), shape=(len(tokens), len(self.words)))

    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        """The words of texts."""
        stop_words: str | list[str] = self._language if self._language in STOPPED else []
        how = {"stopwords": stop_words, "stemmer": Stemmer.Stemmer(self._language)}
        return bm25s.tokenize(list(texts), **how, return_ids=False, show_progress=False)


class Mixture:
    """Systems for the same queries and documents.

    `best` (systems + 1, queries, BEST) are the numbers of the best documents of each system, and last of the mixture,
    best first; `spread` (systems + 1,) the mean deviation of their scores.
    """

    def __init__(self, systems: Sequence[Products], weights: Sequence[float]):
        self.systems = systems
        self._weights = weights
        queries, documents = systems[0].queries.shape[0], systems[0].documents.shape[0]
        self._means, self._deviations = np.zeros((2, len(systems) + 1, queries, 1), np.float32)
        self.best = np.zeros((len(systems) + 1, queries, min(BEST, documents)), np.int32)
        for start in progress(range(0, queries, CHUNK), None, "score queries", "batch"):
            chunk = np.arange(start, min(start + CHUNK, queries))
            mixed = np.zeros((len(chunk), documents), np.float32)
            for number, system in enumerate(systems):
                scores = system.scores(chunk)
                self._note(number, chunk, scores)
                mixed += weights[number] * self._standardize(number, chunk, scores)
            self._note(len(systems), chunk, mixed)
        self.spread = self._deviations.mean((1, 2))

    def _note(self, number: int, chunk: np.ndarray, scores: np.ndarray) -> None:
        depth = self.best.shape[2]
        best = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
        top: np.ndarray = np.take_along_axis(scores, best, axis=1)
        order = np.argsort(-top, axis=1, kind="stable")
        self.best[number, chunk] = np.take_along_axis(best, order, axis=1)
        self._means[number, chunk] = top.mean(1, keepdims=True)
        self._deviations[number, chunk] = np.maximum(top.std(1, keepdims=True), TINY)

    def _standardize(self, number: int, queries: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return (scores - self._means[number, queries]) / self._deviations[number, queries]

    def scores(self, queries: np.ndarray, documents: np.ndarray, weights: Sequence[float] | None = None) -> np.ndarray:
        """Scores of the mixture (queries, documents), float32, of the queries and documents with these numbers;
        `weights` replace its own."""
        mixed = np.zeros((len(queries), len(documents)), np.float32)
        for number, (system, weight) in enumerate(zip(self.systems, weights or self._weights, strict=True)):
            mixed += weight * self._standardize(number, queries, system.scores(queries, documents))
        return mixed

    def standardized(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """`scores` in units of the deviation of the query's best scores."""
        return self.scores(queries, documents) / self._deviations[-1, queries]
