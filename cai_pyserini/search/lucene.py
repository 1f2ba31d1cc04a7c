"""Search Lucene indexes.

Queries, similarities and the order of hits are Anserini's, with one difference: the ids of hits come from doc values,
by which equal scores are ordered anyway, instead of stored fields, which would be read and kept whole for every hit.
Queries are passed to Java, and results returned, as one string each: a call for every term and every hit would take
longer than the search. Impact scores are divided by the scales of documents and queries, so that they are the scores of
the paper's equations, up to quantization; BM25's are rounded as Anserini rounds them.

pyjnius binds a method to an object for all threads at once. So threads share the objects whose methods they call while
they search, and two searchers must not search at the same time.
"""

import re
from binascii import a2b_base64
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from typing import Any

import numpy as np

from cai_pyserini.core import jvm
from cai_pyserini.core.artifact import Manifest
from cai_pyserini.core.trec import Hits
from cai_pyserini.encode.queries import Query, TwoStep, pruned
from cai_pyserini.index.json_vectors import DELIMITER
from cai_pyserini.index.shards import Index, open_reader
from cai_pyserini.index.writer import delimited_analyzer

HITS = 1 << 16  # at most per batch
HIT = re.compile(r'"fields":\[([^,]+),{"bytes":"([^"]*)","offset":\d,"length":(\d+)')  # score and id, as JSON


class LuceneSearcher:
    """An open index of text or impacts, or all shards of one.

    `k1` and `b` are parameters of BM25, and have no effect on impacts. With `two_step`, impacts are searched in two
    steps; scores are exact, but a document can be missing that the first step ranks too low. If the first step finds
    fewer documents than asked for, all terms are searched for.
    """

    def __init__(
        self, index: Index, manifest: Manifest, k1: float = 0.9, b: float = 0.4, two_step: TwoStep | None = None
    ):
        self._two_step = two_step
        self._json = jvm.java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        self._order = _by_score_and_id()
        self._collectors = jvm.java_class("org.apache.lucene.search.TopFieldCollectorManager")
        self._rescorer = jvm.java_class("org.apache.lucene.search.QueryRescorer")
        self._sorter = jvm.java_class("org.apache.lucene.search.SortRescorer")(self._order)
        self._impacts = manifest.recipe["kind"] != "bm25"
        java = jvm.java_class
        self._reader = open_reader(index)
        with jvm.java_errors("searching"):
            self._searcher = java("org.apache.lucene.search.IndexSearcher")(self._reader)
            if self._impacts:
                # A SPLADE query from a long document can have more terms than Lucene's limit of 1024.
                java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(1 << 20)
                self._searcher.setSimilarity(java("io.anserini.search.similarity.ImpactSimilarity")())
                self._queries = java("org.apache.lucene.util.QueryBuilder")(delimited_analyzer("delimitedBoost"))
            else:
                self._searcher.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))
                self._queries = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
                self._analyzer = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        self.query_scale: int = manifest.stats.get("query_scale", 1)
        self._scale: float = manifest.stats.get("document_scale", 1) * self.query_scale

    def search(self, query: Query, hits: int) -> Hits:
        """The best documents for one query, which is text for BM25, or {term: impact}."""
        with jvm.java_errors("searching"):
            if self._two_step and isinstance(query, dict):
                found = self._in_two_steps(query, hits, self._two_step)
                if len(found) == self._at_most(hits):
                    return found
            built = self._built(query)
            return self._read(self._best(built, hits)) if built else []

    def search_many(self, queries: dict[str, Query], hits: int, threads: int) -> Iterator[dict[str, Hits]]:
        """Yield the best documents for many queries by query id, batch by batch, in the order of the ids."""
        with ThreadPoolExecutor(threads) as pool:
            for ids in batched(sorted(queries), max(1, HITS // hits)):
                yield dict(zip(ids, pool.map(lambda id: self.search(queries[id], hits), ids), strict=True))

    def scores(self, query: str, ids: Sequence[str]) -> dict[str, float]:
        """BM25 scores of these documents for a query; 0 where no word matches."""
        java = jvm.java_class
        with jvm.java_errors("scoring"):
            terms = java("java.util.ArrayList")()
            for id in ids:
                terms.add(java("org.apache.lucene.util.BytesRef")(id.encode()))
            occur = java("org.apache.lucene.search.BooleanClause$Occur")
            both = java("org.apache.lucene.search.BooleanQuery$Builder")()
            both.add(self._built(query), occur.MUST)
            both.add(java("org.apache.lucene.search.TermInSetQuery")("id", terms), occur.FILTER)
            return dict.fromkeys(ids, 0.0) | dict(self._read(self._best(both.build(), len(ids))))

    def close(self) -> None:
        """Close the index."""
        self._reader.close()

    def _built(self, query: Query) -> Any:
        """A query of Lucene; None for impacts of no term."""
        if isinstance(query, Mapping):
            text = " ".join([f"{term}{DELIMITER}{weight}" for term, weight in query.items()])
            return self._queries.createBooleanQuery("contents", text)
        return self._queries.buildQuery("contents", self._analyzer, query)

    def _best(self, query: Any, hits: int) -> Any:
        """The best documents for a query of Lucene, as its TopDocs."""
        # Lucene would score the first 1,000 documents of any search, and score every hit a second time.
        hits = self._at_most(hits)
        return self._searcher.search(query, self._collectors(self._order, hits, None, hits))

    def _in_two_steps(self, query: dict[str, int], hits: int, steps: TwoStep) -> Hits:
        """The documents of a search in two steps; none if the first leaves nothing to the second."""
        first = pruned(query, steps.terms)
        rest = {term: weight for term, weight in query.items() if term not in first}
        if not rest:
            return []
        candidates = self._at_most(max(hits, steps.documents))
        found = self._searcher.search(self._built(first), candidates)
        found = self._rescorer.rescore(self._searcher, found, self._built(rest), 1.0, candidates)
        return self._read(self._sorter.rescore(self._searcher, found, hits))

    def _at_most(self, hits: int) -> int:
        return min(hits, max(1, self._reader.maxDoc()))

    def _read(self, best: Any) -> Hits:
        """Ids and scores of TopDocs."""
        found = HIT.findall(self._json.writeValueAsString(best))
        ids = [a2b_base64(id)[: int(length)].decode() for _, id, length in found]
        scores = [float(score) for score, _, _ in found]
        scores = [score / self._scale for score in scores] if self._impacts else _rounded(scores)
        return list(zip(ids, scores, strict=True))


def _rounded(scores: Sequence[float]) -> list[float]:
    """BM25 scores, best first, as Anserini gives them: with 4 decimals, and equal ones 1e-6 apart.

    Its ScoreTiesAdjusterReranker takes 1e-6 times n off the n-th score in a row that is at most 1e-4 below the one
    before it, in single precision.
    """
    least, step = np.float32(1e-4), np.float32(1e-6)
    rounded = (np.floor(np.array(scores, np.float32).astype(np.float64) * 1e4 + 0.5) / 1e4).astype(np.float32)
    row = 0
    for n in range(1, len(rounded)):
        row = row + 1 if rounded[n - 1] - rounded[n] <= least else 0
        rounded[n] -= step * np.float32(row)
    return [float(str(score)) for score in rounded]


def _by_score_and_id() -> Any:
    """Anserini's order of hits: by falling score, and equal scores by document id."""
    field = jvm.java_class("org.apache.lucene.search.SortField")
    kind = jvm.java_class("org.apache.lucene.search.SortField$Type")
    return jvm.java_class("org.apache.lucene.search.Sort")(field.FIELD_SCORE, field("id", kind.STRING_VAL))
