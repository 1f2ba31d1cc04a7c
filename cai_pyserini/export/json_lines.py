"""Formats of JSON lines: Seismic, OpenSearch and Elasticsearch.

OpenSearch and Elasticsearch store a weight as the frequency of a term in a Lucene FeatureField, which has 9 significant
bits: integers up to 512 are exact; larger ones are rounded here to those that fit. A search is a sum of linear queries,
whose weights must be in (0, 64]; so queries have their weights without the query_scale, divided by powers of two where
they exceed 64. Terms are written as integer keys, because names of features must not contain dots.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cai_pyserini.core import jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.export.source import TIES, Keys, Source, without_impacts

REQUEST = 10_000_000  # bytes of a bulk request: a server takes 100 MB by default, a small one of a cloud 10 MB
LONGEST_ID = 512  # bytes of UTF-8
CLAUSES = 1024  # the most terms of a query, by default
SIGNIFICANT = 9  # significant bits of a FeatureField
LARGEST_WEIGHT = 64.0  # the largest weight of a linear query on a FeatureField
FIELD = "impacts"
HITS = 1000

Json = dict[str, Any]


def write_seismic(source: Source, folder: Path) -> list[str]:
    """Write documents.jsonl, {"id": …, "content": "", "vector": {term: impact}}, and queries.jsonl."""
    found = ({"id": id, "content": "", "vector": vector} for id, vector in source.documents() if vector)
    written = jsonl.write(folder / "documents.jsonl", found)
    source.write_queries(folder)
    return [
        without_impacts(source.manifest.stats["vectors"] - written),
        "exactness: Seismic skips documents that its summaries rule out; heap_factor and query_cut say how many",
    ]


@dataclass(frozen=True)
class Engine:
    """A search engine: the type of the field, and the query on it for weights by key."""

    name: str
    field: str
    query: Callable[[dict[str, float]], Json]

    def write(self, source: Source, folder: Path) -> list[str]:
        """Write mapping.json, bulk-*.ndjson, the keys of terms, and a search per query in queries.jsonl."""
        mapping = {"dynamic": "strict", "_source": {"excludes": [FIELD]}, "properties": {FIELD: {"type": self.field}}}
        (folder / "mapping.json").write_text(json.dumps({"mappings": mapping}, indent=1) + "\n", encoding="utf-8")
        keys = Keys(source.encoder.tokenizer.terms)
        rounded = 0

        def requests() -> Iterator[bytes]:
            nonlocal rounded
            for id, vector in source.documents():
                if len(id.encode()) > LONGEST_ID:
                    raise CaiError(f"the id {id[:20]}… has {len(id.encode()):,} bytes; {self.name} takes {LONGEST_ID}")
                impacts = keys.of_document(vector)
                stored = {key: representable(impact) for key, impact in impacts.items()}
                rounded += sum(stored[key] != impact for key, impact in impacts.items())
                yield f"{json.dumps({'index': {'_id': id}})}\n{json.dumps({FIELD: stored})}\n".encode()

        for number, request in enumerate(_joined(requests())):
            (folder / f"bulk-{number:05d}.ndjson").write_bytes(request)
        keys.write(folder)
        queries = {id: keys.of_query(vector) for id, vector in source.queries().items()}
        searches = ({"id": id, **self.search(vector, source.config.query_scale)} for id, vector in queries.items())
        jsonl.write(folder / "queries.jsonl", searches)
        return [
            f"queries of more than {CLAUSES:,} terms: {sum(len(vector) > CLAUSES for vector in queries.values()):,}; "
            "a server refuses them unless its indices.query.bool.max_clause_count is larger",
            f"bits of large impacts: {rounded / max(source.manifest.stats['nonzeros'], 1):.2%} were rounded to "
            f"{SIGNIFICANT} significant bits" + ("; impacts of `impact --bits 9` lose nothing" if rounded else ""),
            TIES,
        ]

    def search(self, weights: dict[int, int], query_scale: int) -> Json:
        """The `body` of a search, and the `scale` that turns its scores into sums of weight * impact."""
        scale = query_scale
        while weights and max(weights.values()) / scale > LARGEST_WEIGHT:
            scale *= 2
        tokens = {str(key): weight / scale for key, weight in weights.items()}
        query = self.query(tokens) if tokens else {"match_none": {}}  # no query takes zero tokens
        return {"scale": scale, "body": {"size": HITS, "_source": False, "query": query}}


OPENSEARCH = Engine(
    "opensearch", "rank_features", lambda weights: {"neural_sparse": {FIELD: {"query_tokens": weights}}}
)
ELASTICSEARCH = Engine(
    "elasticsearch",
    "sparse_vector",
    lambda weights: {"sparse_vector": {"field": FIELD, "query_vector": weights, "prune": False}},
)


def representable(impact: int) -> int:
    """The nearest integer with at most 9 significant bits; halves are rounded to even."""
    step = 1 << max(impact.bit_length() - SIGNIFICANT, 0)
    return round(impact / step) * step


def _joined(requests: Iterable[bytes]) -> Iterator[bytearray]:
    """Join requests to as few as have at most REQUEST bytes; only a larger document makes a larger one."""
    batch = bytearray()
    for request in requests:
        if batch and len(batch) + len(request) > REQUEST:
            yield batch
            batch = bytearray()
        batch += request
    if batch:
        yield batch
