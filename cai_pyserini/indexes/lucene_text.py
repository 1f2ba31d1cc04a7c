"""Search text with BM25 in Lucene; scores are rounded as in Anserini."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.core.config import BM25, Bm25Parameters, document_of, languages_in
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.accents import Variants
from cai_pyserini.indexes.analyzer import exact_words, lucene_analyzer
from cai_pyserini.indexes.batch import QUERY, STRING
from cai_pyserini.indexes.filters import BadFilter, Words, any_term_query, boolean_query
from cai_pyserini.indexes.lucene import READING, LuceneSearcher
from cai_pyserini.indexes.searcher import Scored, Searcher, Term
from cai_pyserini.indexes.writer import FIELD, WORDS
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
        if len(languages_in(self.language)) == 1:
            self._builders[str] = batch.bind(make, 0, java(builder)(), FIELD, lucene_analyzer(self.language))
        self._searches = self._compile_searches(lambda build: build)

    def with_variants(self, queries: Sequence[Query], threads: int = 1) -> list[Query]:
        """Texts whose words have variants become {word: weight}, of several languages all; others stay texts."""
        texts = [query for query in queries if isinstance(query, str)]
        words = dict(zip(texts, self._analyze.many(texts, threads), strict=True)) if texts else {}
        expanded: list[Query] = []
        for query in queries:
            terms = Counter(words[query]) if isinstance(query, str) else query
            assert isinstance(terms, Mapping) and self._variants
            added = self._variants.added(terms)
            expanded.append({**terms, **added} if added or str not in self._builders else query)
        return expanded

    @READING
    def similar_words(self, word: str, edits: int) -> dict[str, int]:
        return self._similar_terms(word, edits, WORDS)

    def _words_query(self, text_index: Searcher, listed: list[str], words: Words) -> Any:
        """A Lucene query for documents that have words; only those that have them in any passage are listed."""
        if words.in_any_passage and self.manifest.stats.get("passages"):
            return any_term_query("id", self.with_words(words, self.documents))
        query = self._exact_query(words.text) if words.are_exact else self._stems_query(words.text)
        if query is None:
            raise BadFilter(f"filter: {words.text[:50]!r} has no word that BM25 knows")
        return query

    def _stems_query(self, text: str) -> Any:
        """A Lucene query for the words of a text as BM25 knows them, one after the other; None if it has none."""
        builders = map(
            jvm.java_class("org.apache.lucene.util.QueryBuilder"), map(lucene_analyzer, languages_in(self.language))
        )
        phrases = [phrase for builder in builders if (phrase := builder.createPhraseQuery(FIELD, text))]
        return boolean_query(SHOULD=phrases) if phrases else None

    def _exact_query(self, text: str) -> Any:
        """A Lucene query for the words of a text, whatever their accents, one after the other; None if it has none."""
        clauses = jvm.java_class("org.apache.lucene.search.MultiPhraseQuery$Builder")()
        if not (words := exact_words(text)):
            return None
        for word in words:
            clauses.add([self._term(WORDS, each) for each in (word, *self._exact_variants.of(word))])
        return clauses.build()

    @cached_property
    def _exact_variants(self) -> Variants:
        frequency = partial(self.document_frequency, field=WORDS)
        return Variants(self._accented_terms("", WORDS), "", self.language, self.term_documents, frequency, stems=False)

    @cached_property
    def _passages_of(self) -> dict[str, list[str]]:
        passages: dict[str, list[str]] = {}
        for id in self.ids:
            passages.setdefault(document_of(id), []).append(id)
        return passages

    def with_words(self, words: Words, most: int) -> list[str]:
        ids = self._matching_ids(self._words_query(self, [], words._replace(in_any_passage=False)), most)
        if not words.in_any_passage or not self.manifest.stats.get("passages"):
            return ids
        return [id for document in {*map(document_of, ids)} for id in self._passages_of[document]]

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
