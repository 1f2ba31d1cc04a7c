"""Search text with BM25 in Lucene; scores are rounded as in Anserini."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.core.config import BM25, Bm25Parameters
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.analyzer import lucene_analyzer
from cai_pyserini.indexes.batch import QUERY, STRING
from cai_pyserini.indexes.filters import BadFilter
from cai_pyserini.indexes.lucene import LuceneSearcher
from cai_pyserini.indexes.searcher import Scored, Searcher, Term
from cai_pyserini.indexes.writer import FIELD
from cai_pyserini.vectors.queries import Query


class LuceneText(LuceneSearcher):
    """An open Lucene index of text, to search with text."""

    has_phrases = True

    @jvm.using_java("searching")
    def __init__(self, index: Path, bm25: Bm25Parameters = BM25):
        super().__init__(index)
        self._bm25 = bm25
        self.word_prefix = ""
        java = jvm.java_class
        self._searcher.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(*bm25))
        builder = "io.anserini.search.query.BagOfWordsQueryGenerator"
        make = batch.virtual(builder, "buildQuery", QUERY, STRING, "org.apache.lucene.analysis.Analyzer", STRING)
        self._builders[str] = batch.bind(make, 0, java(builder)(), FIELD, lucene_analyzer(self.language))
        self._searches = self._compile_searches(lambda build: build)

    def with_variants(self, queries: Sequence[Query], threads: int = 1) -> list[Query]:
        """Texts whose words have variants become {word: weight}; others stay texts."""
        texts = [query for query in queries if isinstance(query, str)]
        words = dict(zip(texts, self._analyze.many(texts, threads), strict=True)) if texts else {}
        expanded: list[Query] = []
        for query in queries:
            terms = Counter(words[query]) if isinstance(query, str) else query
            assert isinstance(terms, Mapping) and self._variants
            added = self._variants.added(terms)
            expanded.append({**terms, **added} if added else query)
        return expanded

    def _phrase_query(self, text_index: Searcher, text: str, listed: list[str]) -> Any:
        """A Lucene query for documents that have the words of a text as a phrase; nothing has to be listed."""
        builder = jvm.java_class("org.apache.lucene.util.QueryBuilder")(lucene_analyzer(self.language))
        if (query := builder.createPhraseQuery(FIELD, text)) is None:
            raise BadFilter(f"filter: {text[:50]!r} has no word that BM25 knows")
        return query

    def with_phrase(self, text: str, most: int) -> list[str]:
        return self._matching_ids(self._phrase_query(self, text, []), most)

    def explain(self, query: Query, ids: Sequence[str]) -> dict[str, Scored]:
        (query,) = self.with_variants([query])
        counts = Counter(self._analyze(query)) if isinstance(query, str) else query  # or weights of variants
        assert isinstance(counts, Mapping)
        frequencies = {word: self.document_frequency(word) for word in counts}
        idf = {word: math.log(1 + (self.term_documents - n + 0.5) / (n + 0.5)) for word, n in frequencies.items()}

        def term(id: str, word: str, occurrences: int) -> Term:
            contribution = counts[word] * self.bm25_weight(id, word, self._bm25)
            return Term(word, counts[word], occurrences, idf[word], None, contribution)

        return {
            id: Scored.of(term(id, word, occurrences) for word, occurrences in of_document.items())
            for id, of_document in self.impacts(ids, counts).items()
        }

    def _from_lucene(self, scores: np.ndarray) -> np.ndarray:
        """BM25 scores, best first, as in Anserini: rounded, with ties 1e-6 apart.

        Anserini's ScoreTiesAdjusterReranker subtracts 1e-6 times n from the n-th score in a row that is at most 1e-4
        below the adjusted score before it, in single precision.
        """
        gap, step = np.float32(1e-4), np.float32(1e-6)
        rounded = (np.floor(scores.astype(np.float32).astype(np.float64) * 1e4 + 0.5) / 1e4).astype(np.float32)
        ties = 0
        for n in range(1, len(rounded)):
            ties = ties + 1 if rounded[n - 1] - rounded[n] <= gap else 0
            rounded[n] -= step * np.float32(ties)
        return np.array([float(str(score)) for score in rounded])  # no more digits than single precision has
