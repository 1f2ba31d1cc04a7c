"""Search Lucene indexes.

Text is searched by Anserini's searcher, impacts by Lucene's own, as Anserini calls it, with one difference: the ids of
hits come from doc values, by which equal scores are ordered anyway, instead of stored fields, which would be read and
kept whole for every hit. Queries are passed to Java, and results returned, as one string each: a call for every term
and every hit would take longer than the search. Impact scores are divided by the scales of documents and queries, so
that they are the scores of the paper's equations, up to quantization.
"""

import json
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from pathlib import Path
from typing import Any

from cai_pyserini.core import jvm
from cai_pyserini.core.artifact import Manifest
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import Hits
from cai_pyserini.encode.queries import Query
from cai_pyserini.index.impact import delimited_analyzer
from cai_pyserini.index.json_vectors import DELIMITER

HITS = 1 << 13  # at most per batch: results of text, with the documents that are stored, are on the heap of the JVM


class LuceneSearcher:
    """An open index of text or impacts. `k1` and `b` are parameters of BM25, and have no effect on impacts."""

    def __init__(self, index: Path, manifest: Manifest, k1: float = 0.9, b: float = 0.4):
        self._json = _json_mapper()
        self._impacts = manifest.recipe["kind"] != "bm25"
        java = jvm.java_class
        with jvm.java_errors(f"opening {index}"):
            if self._impacts:
                # A SPLADE query from a long document can have more terms than Lucene's limit of 1024.
                java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(1 << 20)
                self._reader = java("io.anserini.index.IndexReaderUtils").getReader(str(index))
                self.java = java("org.apache.lucene.search.IndexSearcher")(self._reader)
                self.java.setSimilarity(java("io.anserini.search.similarity.ImpactSimilarity")())
                self._queries = java("org.apache.lucene.util.QueryBuilder")(delimited_analyzer("delimitedBoost"))
                self._order = _by_score_and_id()
            else:
                self.java = java("io.anserini.search.SimpleSearcher")(str(index))
                self.java.set_bm25(k1, b)
        self.query_scale: int = manifest.stats.get("query_scale", 1)
        self._scale: float = manifest.stats.get("document_scale", 1) * self.query_scale

    def search(self, query: Query, hits: int) -> Hits:
        """The best documents for one query, which is text for BM25, or {term: impact}."""
        with jvm.java_errors("searching"):
            if isinstance(query, Mapping):
                return self._search_impacts(query, hits)
            return self._hits(json.loads(self._json.writeValueAsString(self.java.search(query, hits))))

    def search_many(self, queries: dict[str, Query], hits: int, threads: int) -> Iterator[dict[str, Hits]]:
        """Yield the best documents for many queries, batch by batch, by query id."""
        with ThreadPoolExecutor(threads) as pool:
            for batch in batched(queries.items(), max(1, HITS // hits)):
                ids, asked = zip(*batch, strict=True)
                with jvm.java_errors("searching"):
                    if self._impacts:
                        found = pool.map(lambda query: self._search_impacts(query, hits), asked)
                        yield dict(zip(ids, found, strict=True))
                        continue
                    arguments = (self._java(list(part), "java.util.List") for part in (asked, ids))
                    answer = self.java.batch_search(*arguments, hits, threads)
                    results = json.loads(self._json.writeValueAsString(answer))
                if missing := [id for id in ids if id not in results]:
                    raise CaiError(f"Anserini gave no result for query {missing[0]!r}; its log above may say why")
                yield {id: self._hits(results[id]) for id in ids}

    def _search_impacts(self, query: Mapping[str, int], hits: int) -> Hits:
        text = " ".join([f"{term}{DELIMITER}{weight}" for term, weight in query.items()])
        built = self._queries.createBooleanQuery("contents", text)
        if built is None:  # of a query without terms
            return []
        found = json.loads(self._json.writeValueAsString(self.java.search(built, hits, self._order, True)))
        return [
            (sys.intern(b64decode(id["bytes"])[: id["length"]].decode()), score / self._scale)
            for score, id in (hit["fields"] for hit in found["scoreDocs"])
        ]

    def scores(self, query: str, ids: Sequence[str]) -> dict[str, float]:
        """BM25 scores of these documents for a query; 0 where no word matches."""
        java = jvm.java_class
        with jvm.java_errors("scoring"):
            words = java("io.anserini.search.query.BagOfWordsQueryGenerator")().buildQuery(
                "contents", self.java.get_analyzer(), query
            )
            terms = java("java.util.ArrayList")()
            for id in ids:
                terms.add(java("org.apache.lucene.util.BytesRef")(id.encode()))
            occur = java("org.apache.lucene.search.BooleanClause$Occur")
            both = java("org.apache.lucene.search.BooleanQuery$Builder")()
            both.add(words, occur.MUST)
            both.add(java("org.apache.lucene.search.TermInSetQuery")("id", terms), occur.FILTER)
            found = json.loads(self._json.writeValueAsString(self.java.search(both.build(), len(ids))))
        return dict.fromkeys(ids, 0.0) | dict(self._hits(found))

    def close(self) -> None:
        """Close the index."""
        (self._reader if self._impacts else self.java).close()

    def _java(self, value: object, kind: str) -> Any:
        return self._json.readValue(json.dumps(value), _class(kind))

    def _hits(self, documents: list[dict[str, Any]]) -> Hits:
        return [(sys.intern(document["docid"]), document["score"] / self._scale) for document in documents]


def _class(name: str) -> Any:
    return jvm.java_class("java.lang.Class").forName(name)


def _json_mapper() -> Any:
    """Java's JSON mapper, which leaves out the Lucene document of a hit."""
    mapper = jvm.java_class("com.fasterxml.jackson.databind.ObjectMapper")()
    true = jvm.java_class("java.lang.Boolean")(True)
    mapper.configOverride(_class("org.apache.lucene.document.Document")).setIsIgnoredType(true)
    return mapper


def _by_score_and_id() -> Any:
    """Anserini's order of hits: by falling score, and equal scores by document id."""
    field = jvm.java_class("org.apache.lucene.search.SortField")
    kind = jvm.java_class("org.apache.lucene.search.SortField$Type")
    return jvm.java_class("org.apache.lucene.search.Sort")(field.FIELD_SCORE, field("id", kind.STRING_VAL))
