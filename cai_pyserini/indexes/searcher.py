"""Search Lucene indexes.

Queries, similarities and the order of hits are Anserini's, except that the ids of hits come from doc values, which ties
are sorted by anyway, instead of stored fields, which would be read whole for every hit. Impact scores are divided by
the scales of documents and queries, to give the scores of the paper's equations up to quantization; BM25 scores are
rounded as in Anserini. Scores of dense vectors are inner products x; Lucene's own are (1 + x) / 2.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache, cached_property, partial
from itertools import batched
from typing import Any, Self

import numpy as np

from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.analyzer import lucene_analyzer
from cai_pyserini.indexes.batch import INTEGER, LUCENE, QUERY, REFERENCE, STRING, Batch
from cai_pyserini.indexes.filters import BadFilter, Filter, boolean_query
from cai_pyserini.indexes.forward_index import ForwardIndex, best_documents
from cai_pyserini.indexes.hnsw import graph
from cai_pyserini.indexes.index_shards import Index
from cai_pyserini.indexes.reader import READING, TOTAL, LuceneIndex, build_query
from cai_pyserini.indexes.writer import FIELD, delimited_analyzer
from cai_pyserini.runs.trec import Hits
from cai_pyserini.vectors.json_vectors import DELIMITER
from cai_pyserini.vectors.queries import Query, TwoStep, pruned

VECTOR = "vector"
KNN = "org.apache.lucene.search.KnnFloatVectorQuery"
HITS = 1 << 16  # hits per batch, at most


class LuceneSearcher(LuceneIndex):
    """An open index to search: with text for BM25, {term: impact} for impacts, and vectors for dense indexes.

    `k1` and `b` are parameters of BM25. `two_step` searches impacts in two steps: scores are exact, but documents that
    the first step ranks too low are missed; if it finds too few documents, a search for all terms follows. Scores are
    computed from the forward index, if there is one, instead of Lucene's. Only the queries of one `search_many` run in
    parallel.
    """

    @jvm.using_java("searching")
    def __init__(self, index: Index, k1: float = 0.9, b: float = 0.4, two_step: TwoStep | None = None):
        super().__init__(index)
        java = jvm.java_class
        self._two_step = two_step
        self._idf = cache(self._inverse_document_frequency)
        self._filter: Any = None  # a Lucene query
        self._kind: str = self.manifest.stats["kind"]
        self.query_scale: int = self.manifest.stats.get("query_scale", 1)
        self.document_scale: float = self.manifest.stats.get("document_scale", 1)
        self._max_hits = max(1, self._reader.maxDoc())
        by_score = java(LUCENE + "SortField").FIELD_SCORE
        self._order = java(LUCENE + "Sort")(by_score, self._by_id)  # Anserini's
        *_, self._candidates = graph(self._max_hits)  # of a vector search
        self._builders: dict[type, Any] = {}  # type of queries -> handle that builds Lucene's
        if self._kind == "dense":
            builder = "io.anserini.search.query.VectorQueryGenerator"
            make = batch.virtual(builder, "buildQuery", KNN, STRING, STRING, INTEGER)
            self._builders[np.ndarray] = batch.bind(make, 0, java(builder)(), VECTOR)
        else:
            builder = "org.apache.lucene.util.QueryBuilder"
            make = batch.virtual(builder, "createBooleanQuery", QUERY, STRING, STRING)
            make = batch.bind(make, 0, java(builder)(delimited_analyzer("delimitedBoost")))
            self._builders[dict] = batch.bind(make, 0, FIELD)
        if self._kind == "impact":
            self._searcher.setSimilarity(java("io.anserini.search.similarity.ImpactSimilarity")())
        elif self._kind == "bm25":
            self._searcher.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))
            builder = "io.anserini.search.query.BagOfWordsQueryGenerator"
            make = batch.virtual(builder, "buildQuery", QUERY, STRING, "org.apache.lucene.analysis.Analyzer", STRING)
            self._builders[str] = batch.bind(make, 0, java(builder)(), FIELD, lucene_analyzer(self.language))
        has_forward = two_step and self.manifest.recipe["settings"].get("forward_index")
        self._forward = [ForwardIndex(folder) for folder in self._folders] if has_forward else []
        self._one_step_searches, self._two_step_search = self._compile_searches(lambda build: build)

    def _compile_searches(self, limited: Callable[[Any], Any]) -> tuple[dict[type, Batch], Batch | None]:
        """The searches by one step, by type of queries, and by two steps; `limited` limits a handle that builds queries
        to some documents."""
        one_step = {
            kind: Batch(batch.one_step_search(self._searcher, limited(build), self._order), self._json)
            for kind, build in self._builders.items()
        }
        if not self._two_step:
            return one_step, None
        build = self._builders[dict]
        if self._forward:
            return one_step, Batch(batch.first_step(self._searcher, limited(build)), self._json)
        two_step = batch.two_step_search(self._searcher, limited(build), build, self._order)
        return one_step, Batch(two_step, self._json)

    @jvm.using_java("filtering")
    def filtered(self, filter: Filter, text_index: LuceneIndex | None = None) -> Self:
        """A view whose searches find only documents that pass a filter, with the same scores. `text_index` is an index
        of the same documents that has their words; by default, this one. Raises BadFilter if the indexes lack a field
        or words that the filter needs."""
        if self._kind == "dense":
            raise BadFilter(f"{self._name} has no metadata and cannot be filtered")
        searches = self._filtered_searches  # cached before the copy
        view = copy(self)
        view._one_step_searches, view._two_step_search = searches
        view._filter = self._filter_query(filter, text_index)
        return view

    @cached_property
    def _filtered_searches(self) -> tuple[dict[type, Batch], Batch | None]:
        return self._compile_searches(partial(batch.filtered_query, filter=self._current_filter))

    @cached_property
    def _current_filter(self) -> Any:
        return jvm.java_class(REFERENCE)()

    def with_variants(self, queries: Sequence[Query], threads: int = 1) -> list[Query]:
        """The queries as they are searched with: with the index's variants of their words, see indexes.accents. A text
        without any stays a text; others become {word: weight}."""
        if self.word_prefix is None:
            return [*queries]
        texts = [query for query in queries if isinstance(query, str)]
        words = dict(zip(texts, self._analyze.many(texts, threads), strict=True)) if texts else {}
        expanded: list[Query] = []
        for query in queries:
            assert not isinstance(query, np.ndarray)
            terms = Counter(words[query]) if isinstance(query, str) else query
            added = self._variants.added(terms)
            expanded.append({**terms, **added} if added else query)
        return expanded

    @READING
    def lucene_query(self, query: Query) -> Any:
        """The Lucene query; None for a query without terms."""
        (query,) = self.with_variants([query])
        return build_query(self._builders[str if isinstance(query, str) else dict], _text(query))

    def search(self, query: Query, hits: int) -> Hits:
        (ranking,) = self._search([query], hits, 1)
        return ranking

    def search_many(self, queries: dict[str, Query], hits: int, threads: int) -> Iterator[dict[str, Hits]]:
        """Yield the best documents for many queries by query id, batch by batch, in the order of the ids."""
        for ids in batched(sorted(queries), max(1, HITS // hits)):
            yield dict(zip(ids, self._search([queries[id] for id in ids], hits, threads), strict=True))

    @jvm.using_java("scoring")
    def scores(self, query: Query, ids: Sequence[str]) -> dict[str, float]:
        """Scores of documents: BM25 for a text, 0 where no word matches, without a ranking's tie-breaking; or inner
        products with a vector, without documents that the index lacks."""
        count = min(len(ids), self._max_hits)
        if isinstance(query, np.ndarray):  # with no more documents than hits, Lucene compares them all
            nearest = jvm.java_class(KNN)(VECTOR, query.tolist(), count, self._id_query(ids))
            matching, scores = self._best(nearest, self._order, count)
            return dict(zip(matching, _products(scores), strict=True))
        both = boolean_query(MUST=[self.lucene_query(query)], FILTER=[self._id_query(ids)])
        matching, scores = self._best(both, self._order, count)
        return dict.fromkeys(ids, 0.0) | dict(zip(matching, _as_floats(_rounded(scores)), strict=True))

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> list[Hits]:
        hits, queries = min(hits, self._max_hits), self.with_variants(queries, threads)
        rankings: dict[int, Hits] = {number: [] for number, query in enumerate(queries) if _is_empty(query)}
        if self._two_step and self._two_step_search:
            steps = {
                number: first
                for number, query in enumerate(queries)
                if isinstance(query, dict) and (first := self.first_query(query)) and first != query
            }
            best = self._search_in_two_steps([(queries[n], first) for n, first in steps.items()], hits, threads)
            rankings |= {number: ranking for number, ranking in zip(steps, best, strict=True) if ranking is not None}
        candidates = [str(max(hits, self._candidates))] if self._kind == "dense" else []
        for kind, search in self._one_step_searches.items():
            rest = [n for n, query in enumerate(queries) if n not in rankings and isinstance(query, kind)]
            one_step = [(_text(queries[number]), *candidates, str(hits), str(hits)) for number in rest]
            found = self._run(search, one_step, threads)
            rankings |= {number: self._parse(top_docs, hits) for number, top_docs in zip(rest, found, strict=True)}
        return [rankings[number] for number in range(len(queries))]

    def _search_in_two_steps(
        self, queries: Sequence[tuple[Any, dict[str, int]]], hits: int, threads: int
    ) -> Iterator[Hits | None]:
        """The rankings of queries, each with the query of its first step; None if that finds fewer documents than the
        second would score."""
        assert self._two_step and self._two_step_search
        count = min(self._two_step.candidates(hits), self._max_hits)
        if not self._forward:
            steps = [(_text(first), str(count), _text(query), str(count), str(hits)) for query, first in queries]
            for top_docs in self._run(self._two_step_search, steps, threads):
                yield self._parse(top_docs, hits) if TOTAL.findall(top_docs) == [str(count)] else None
            return
        found = self._run(self._two_step_search, [(_text(first), str(count)) for _, first in queries], threads)
        for (query, _), of_query in zip(queries, found, strict=True):
            numbers = np.array(json.loads(of_query), np.int64)
            yield None if len(numbers) < count else self._scaled(*best_documents(self._forward, query, numbers, hits))

    def first_query(self, query: dict[str, int]) -> dict[str, int]:
        """The query of the first of two steps."""
        return pruned(query, self._two_step.mass, self._idf) if self._two_step else query

    def _inverse_document_frequency(self, term: str) -> float:
        """ln(1 + documents / document frequency); 0 for a term that the index lacks."""
        frequency = self.document_frequency(term)
        return math.log1p(self.documents / frequency) if frequency else 0.0

    def _run(self, search: Batch, arguments: Sequence[Sequence[str]], threads: int) -> Iterator[str]:
        """The results as JSON."""
        for part in batch.parts(arguments):
            with jvm.using_java("searching"):
                if self._filter is not None:
                    self._current_filter.set(self._filter)
                results = search(part, threads)
            yield from results

    def _parse(self, top_docs: str, hits: int) -> Hits:
        return self._scaled(*self._parse_hits(top_docs, hits))

    def _scaled(self, ids: list[str], scores: list[float]) -> Hits:
        return list(zip(ids, self._from_lucene(scores), strict=True))

    def _from_lucene(self, scores: list[float]) -> list[float]:
        """Convert Lucene's scores, best first."""
        if self._kind == "dense":
            return _products(scores)
        if self._kind == "bm25":
            return _without_ties(scores)
        scale = self.document_scale * self.query_scale
        return [score / scale for score in scores]


def _is_empty(query: Query) -> bool:
    """Whether a query has no terms, or is a zero vector, as of unknown words."""
    return not (query.any() if isinstance(query, np.ndarray) else query)


def _text(query: Query) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, np.ndarray):
        return json.dumps(query.tolist())
    return " ".join([f"{term}{DELIMITER}{weight}" for term, weight in query.items()])


def _products(scores: Sequence[float]) -> list[float]:
    return [2 * score - 1 for score in scores]


def _rounded(scores: Sequence[float]) -> np.ndarray:
    """BM25 scores rounded to 4 decimals in single precision, as in Anserini."""
    return (np.floor(np.array(scores, np.float32).astype(np.float64) * 1e4 + 0.5) / 1e4).astype(np.float32)


def _without_ties(scores: Sequence[float]) -> list[float]:
    """BM25 scores, best first, as in Anserini: rounded, with ties 1e-6 apart.

    Anserini's ScoreTiesAdjusterReranker subtracts 1e-6 times n from the n-th score in a row that is at most 1e-4 below
    the adjusted score before it, in single precision.
    """
    gap, step = np.float32(1e-4), np.float32(1e-6)
    rounded = _rounded(scores)
    ties = 0
    for n in range(1, len(rounded)):
        ties = ties + 1 if rounded[n - 1] - rounded[n] <= gap else 0
        rounded[n] -= step * np.float32(ties)
    return _as_floats(rounded)


def _as_floats(scores: np.ndarray) -> list[float]:
    """Single-precision scores with no more digits than needed."""
    return [float(str(score)) for score in scores]
