"""Search Lucene indexes.

Queries, similarities and the order of hits are Anserini's, except that the ids of hits come from doc values, which ties
are sorted by anyway, instead of stored fields, which would be read whole for every hit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.batch import LUCENE, QUERY, REFERENCE, STRING, Batch
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import Filter, boolean_query
from cai_pyserini.indexes.index_shards import Index
from cai_pyserini.indexes.reader import READING, LuceneIndex, build_query
from cai_pyserini.indexes.searcher import Searcher
from cai_pyserini.indexes.writer import FIELD, delimited_analyzer
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.vectors.json_vectors import DELIMITER
from cai_pyserini.vectors.queries import Query


class LuceneSearcher(LuceneIndex):
    """An open Lucene index to search with {term: weight}, and with what else subclasses build queries of. Only the
    queries of one call run in parallel."""

    _searches: dict[type, Batch]  # by type of queries; subclasses compile them

    @jvm.using_java("searching")
    def __init__(self, index: Index):
        super().__init__(index)
        java = jvm.java_class
        self._filter: Any = None  # a Lucene query
        by_score = java(LUCENE + "SortField").FIELD_SCORE
        self._order = java(LUCENE + "Sort")(by_score, self._by_id)  # Anserini's
        builder = "org.apache.lucene.util.QueryBuilder"
        make = batch.virtual(builder, "createBooleanQuery", QUERY, STRING, STRING)
        make = batch.bind(make, 0, java(builder)(delimited_analyzer("delimitedBoost")))
        self._builders: dict[type, Any] = {dict: batch.bind(make, 0, FIELD)}  # type of queries -> handle

    def _compile_searches(self, limited: Callable[[Any], Any]) -> dict[type, Batch]:
        """The searches by type of queries; `limited` limits a handle that builds queries to some documents."""
        return {
            kind: Batch(batch.one_step_search(self._searcher, limited(build), self._order), self._json)
            for kind, build in self._builders.items()
        }

    @jvm.using_java("filtering")
    def filtered(self, filter: Filter, filter_index: Searcher | None = None) -> Self:
        searches = self._filtered_searches  # cached before the copy
        view = copy(self)
        view._searches = searches
        view._filter = self._filter_query(filter, filter_index)
        return view

    @cached_property
    def _filtered_searches(self) -> dict[type, Batch]:
        return self._compile_searches(partial(batch.filtered_query, filter=self._current_filter))

    @cached_property
    def _current_filter(self) -> Any:
        return jvm.java_class(REFERENCE)()

    @READING
    def lucene_query(self, query: Query) -> Any:
        """The Lucene query; None for a query without terms."""
        (query,) = self.with_variants([query])
        return build_query(self._builders[str if isinstance(query, str) else dict], as_text(query))

    @READING
    def matches(
        self, filter: Filter | None = None, query: Query | None = None, filter_index: Searcher | None = None
    ) -> Matches:
        java = jvm.java_class
        conditions = [self._filter_query(filter, filter_index)] if filter else []
        conditions += [] if query is None else [self.lucene_query(query)]
        every = conditions or [java(LUCENE + "MatchAllDocsQuery")()]
        manager = java("org.apache.lucene.facet.FacetsCollectorManager")()
        return Matches(self._reader, self._searcher.search(boolean_query(FILTER=every), manager), self._json)

    @READING
    def matching(self, filter: Filter) -> np.ndarray:
        passes = np.zeros(self._reader.maxDoc(), bool)
        for segment in self.matches(filter).collector.getMatchingDocs():
            start, size = segment.context().docBase, segment.context().reader().maxDoc()
            bits = jvm.java_class("org.apache.lucene.util.FixedBitSet")(size)
            getattr(bits, "or")(segment.bits().iterator())
            words = np.array(bits.getBits(), np.int64)
            passes[start : start + size] = np.unpackbits(words.view(np.uint8), count=size, bitorder="little")
        return passes

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> Sequence[Ranking]:
        rankings: dict[int, Ranking] = {}
        for kind in self._builders:
            numbers = [number for number, query in enumerate(queries) if isinstance(query, kind)]
            arguments = [(as_text(queries[number]), str(hits), str(hits)) for number in numbers]
            found = self._run(self._searches[kind], arguments, threads)
            rankings |= {number: self._parse(top_docs, hits) for number, top_docs in zip(numbers, found, strict=True)}
        return [rankings[number] for number in range(len(queries))]

    def _run(self, search: Batch, arguments: Sequence[Sequence[str]], threads: int) -> Iterator[str]:
        """The results as JSON."""
        for part in batch.parts(arguments):
            with jvm.using_java("searching"):
                if self._filter is not None:
                    self._current_filter.set(self._filter)
                results = search(part, threads)
            yield from results

    def _parse(self, top_docs: str, hits: int) -> Ranking:
        ids, scores = self._parse_hits(top_docs, hits)
        return Ranking(ids, self._from_lucene(np.array(scores)))

    def _from_lucene(self, scores: np.ndarray) -> np.ndarray:
        """Convert Lucene's scores, best first."""
        raise NotImplementedError


def as_text(query: Query) -> str:
    """A query as Lucene's builders take it."""
    if not isinstance(query, Mapping):
        return str(query)
    return " ".join([f"{term}{DELIMITER}{weight}" for term, weight in query.items()])
