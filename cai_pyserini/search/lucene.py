"""Search Lucene indexes with Anserini's searchers.

Queries are passed to Java, and results returned, as one JSON string per batch: a call for every term and every hit
would take longer than the search. Impact scores are divided by the scales of documents and queries, so that they are
the scores of the paper's equations, up to quantization.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import Any

from cai_pyserini.core import jvm
from cai_pyserini.core.artifact import Manifest
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import Hits
from cai_pyserini.encode.queries import Query

HITS = 1 << 16  # at most per batch: results are on the heap of the JVM


class LuceneSearcher:
    """An open index of text or impacts. `k1` and `b` are parameters of BM25, and have no effect on impacts."""

    def __init__(self, index: Path, manifest: Manifest, k1: float = 0.9, b: float = 0.4):
        self._json = _json_mapper()
        with jvm.java_errors(f"opening {index}"):
            if manifest.recipe["kind"] == "bm25":
                self.java = jvm.java_class("io.anserini.search.SimpleSearcher")(str(index))
                self.java.set_bm25(k1, b)
            else:
                # A SPLADE query from a long document can have more terms than Lucene's limit of 1024.
                jvm.java_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(1 << 20)
                self.java = jvm.java_class("io.anserini.search.SimpleImpactSearcher")(str(index))
        self.query_scale: int = manifest.stats.get("query_scale", 1)
        self._scale: float = manifest.stats.get("document_scale", 1) * self.query_scale

    def search(self, query: Query, hits: int) -> Hits:
        """The best documents for one query, which is text for BM25, or {term: impact}."""
        with jvm.java_errors("searching"):
            argument = query if isinstance(query, str) else self._java(query, "java.util.Map")
            return self._hits(json.loads(self._json.writeValueAsString(self.java.search(argument, hits))))

    def search_many(self, queries: dict[str, Query], hits: int, threads: int) -> Iterator[dict[str, Hits]]:
        """Yield the best documents for many queries, batch by batch, by query id."""
        for batch in batched(queries.items(), max(1, HITS // hits)):
            ids = [id for id, _ in batch]
            with jvm.java_errors("searching"):
                arguments = (self._java(list(part), "java.util.List") for part in ([q for _, q in batch], ids))
                results = json.loads(self._json.writeValueAsString(self.java.batch_search(*arguments, hits, threads)))
            if missing := [id for id in ids if id not in results]:
                raise CaiError(f"Anserini gave no result for query {missing[0]!r}; its log above may say why")
            yield {id: self._hits(results[id]) for id in ids}

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
        self.java.close()

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
