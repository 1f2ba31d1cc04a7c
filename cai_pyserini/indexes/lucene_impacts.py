"""Search impacts in Lucene.

Scores are divided by the scales of documents and queries, to give the scores of the paper's equations up to
quantization.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.batch import Batch
from cai_pyserini.indexes.forward_index import ForwardIndex, best_documents
from cai_pyserini.indexes.index_shards import Index
from cai_pyserini.indexes.lucene import LuceneSearcher, as_text
from cai_pyserini.indexes.reader import TOTAL
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.vectors.queries import Query, TwoStep, pruned


class LuceneImpacts(LuceneSearcher):
    """An open Lucene index of impacts.

    `two_step` searches in two steps: scores are exact, but documents that the first step ranks too low are missed; if
    it finds too few documents, a search for all terms follows. Scores are computed from the forward index, if there is
    one, instead of Lucene's.
    """

    @jvm.using_java("searching")
    def __init__(self, index: Index, two_step: TwoStep | None = None):
        super().__init__(index)
        self._two_step = two_step
        self._idf = cache(self._inverse_document_frequency)
        self._searcher.setSimilarity(jvm.java_class("io.anserini.search.similarity.ImpactSimilarity")())
        has_forward = two_step and self.manifest.recipe["settings"].get("forward_index")
        self._forward = [ForwardIndex(folder) for folder in self._folders] if has_forward else []
        self._searches = self._compile_searches(lambda build: build)

    def _compile_searches(self, limited: Callable[[Any], Any]) -> dict[type, Batch]:
        searches = super()._compile_searches(limited)
        build = self._builders[dict]
        if self._two_step and self._forward:
            searches[TwoStep] = Batch(batch.first_step(self._searcher, limited(build)), self._json)
        elif self._two_step:
            two_step = batch.two_step_search(self._searcher, limited(build), build, self._order)
            searches[TwoStep] = Batch(two_step, self._json)
        return searches

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> Sequence[Ranking]:
        steps = {
            number: first
            for number, query in enumerate(queries if self._two_step else ())
            if isinstance(query, dict) and (first := self.first_query(query)) and first != query
        }
        best = self._search_in_two_steps([(queries[n], first) for n, first in steps.items()], hits, threads)
        rankings = {n: ranking for n, ranking in zip(steps, best, strict=True) if ranking is not None}
        rest = [number for number in range(len(queries)) if number not in rankings]
        one_step = super()._search([queries[number] for number in rest], hits, threads)
        rankings |= dict(zip(rest, one_step, strict=True))
        return [rankings[number] for number in range(len(queries))]

    def _search_in_two_steps(
        self, queries: Sequence[tuple[Any, dict[str, int]]], hits: int, threads: int
    ) -> Iterator[Ranking | None]:
        """The rankings of queries, each with the query of its first step; None if that finds fewer documents than the
        second would score."""
        if not self._two_step or not queries:
            return
        count = min(self._two_step.candidates(hits), self.documents)
        if not self._forward:
            steps = [(as_text(first), str(count), as_text(query), str(count), str(hits)) for query, first in queries]
            for top_docs in self._run(self._searches[TwoStep], steps, threads):
                yield self._parse(top_docs, hits) if TOTAL.findall(top_docs) == [str(count)] else None
            return
        found = self._run(self._searches[TwoStep], [(as_text(first), str(count)) for _, first in queries], threads)
        for (query, _), of_query in zip(queries, found, strict=True):
            numbers = np.array(json.loads(of_query), np.int64)
            if len(numbers) < count:
                yield None
            else:
                ids, scores = best_documents(self._forward, query, numbers, hits)
                yield Ranking(ids, self._from_lucene(np.array(scores)))

    def first_query(self, query: dict[str, int]) -> dict[str, int]:
        """The query of the first of two steps."""
        return pruned(query, self._two_step.mass, self._idf) if self._two_step else query

    def _inverse_document_frequency(self, term: str) -> float:
        """ln(1 + documents / document frequency); 0 for a term that the index lacks."""
        frequency = self.document_frequency(term)
        return math.log1p(self.term_documents / frequency) if frequency else 0.0

    def _from_lucene(self, scores: np.ndarray) -> np.ndarray:
        return scores / (self.document_scale * self.query_scale)
