"""Search impacts in Lucene.

Scores are divided by the scales of documents and queries, to give the scores of the paper's equations up to
quantization.
"""

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.batch import Batch
from cai_pyserini.indexes.forward_index import ForwardIndex
from cai_pyserini.indexes.lucene import LuceneSearcher, as_text
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.vectors.queries import Query, TwoStep, pruned


class LuceneImpacts(LuceneSearcher):
    """An open Lucene index of impacts.

    If it has a forward index, `two_step` searches in two steps: scores are exact, but documents that the first step
    ranks too low are missed; if it finds too few documents, a search for all terms follows.
    """

    @jvm.using_java("searching")
    def __init__(self, index: Path, two_step: TwoStep | None = None):
        super().__init__(index)
        self._idf = cache(self._inverse_document_frequency)
        self._searcher.setSimilarity(jvm.java_class("io.anserini.search.similarity.ImpactSimilarity")())
        has_forward = self.manifest.recipe["settings"].get("forward_index")
        self._two_step = two_step if has_forward else None
        self._forward = ForwardIndex(index) if self._two_step else None
        self._searches = self._compile_searches(lambda build: build)

    def _compile_searches(self, limited: Callable[[Any], Any]) -> dict[type, Batch]:
        searches = super()._compile_searches(limited)
        if self._two_step:
            searches[TwoStep] = Batch(batch.first_step(self._searcher, limited(self._builders[dict])), self._json)
        return searches

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> Sequence[Ranking]:
        if not self._two_step or not self._forward:
            return super()._search(queries, hits, threads)
        steps = {
            number: first
            for number, query in enumerate(queries)
            if isinstance(query, dict) and (first := self.first_query(query)) and first != query
        }
        count = min(self._two_step.candidates(hits), self.documents)
        found = self._run(self._searches[TwoStep], [(as_text(first), str(count)) for first in steps.values()], threads)
        rankings: dict[int, Ranking] = {}
        for number, of_query in zip(steps, found, strict=True):
            documents, query = np.array(json.loads(of_query), np.int64), queries[number]
            if len(documents) == count and isinstance(query, dict):
                ids, scores = self._forward.best(query, documents, hits)
                rankings[number] = Ranking(ids, self._from_lucene(np.array(scores)))
        rest = [number for number in range(len(queries)) if number not in rankings]
        rankings |= dict(zip(rest, super()._search([queries[n] for n in rest], hits, threads), strict=True))
        return [rankings[number] for number in range(len(queries))]

    def first_query(self, query: dict[str, int]) -> dict[str, int]:
        """The query of the first of two steps."""
        return pruned(query, self._two_step.mass, self._idf) if self._two_step else query

    def _inverse_document_frequency(self, term: str) -> float:
        """ln(1 + documents / document frequency); 0 for a term that the index lacks."""
        frequency = self.document_frequency(term)
        return math.log1p(self.term_documents / frequency) if frequency else 0.0

    def _from_lucene(self, scores: np.ndarray) -> np.ndarray:
        return scores / (self.document_scale * self.query_scale)
