"""Formats of JSON lines: Seismic, OpenSearch and Elasticsearch.

OpenSearch and Elasticsearch store a weight as the frequency of a term in a Lucene FeatureField, which has 9 significant
bits: integers up to 512 are exact; larger ones are rounded here. A search is a sum of linear queries, whose weights
must be in (0, 64], so query weights are exported without query_scale, and halved until they are at most 64. Terms are
written as integer keys, because names of features must not contain dots.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cai_pyserini.core import jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.share.source import TIES, Keys, Source, empty_documents_note

MAX_REQUEST_BYTES = 10_000_000  # of a bulk request: a server takes 100 MB by default, a small one in a cloud 10 MB
MAX_ID_BYTES = 512  # in UTF-8
MAX_CLAUSES = 1024  # terms of a query that a server accepts by default
SIGNIFICANT_BITS = 9  # of a FeatureField
MAX_WEIGHT = 64.0  # of a linear query on a FeatureField
FIELD = "impacts"
HITS = 1000

Json = dict[str, Any]


def write_seismic(source: Source, folder: Path) -> list[str]:
    """Write documents.jsonl, {"id": …, "content": "", "vector": {term: impact}}, and queries.jsonl."""
    records = ({"id": id, "content": "", "vector": vector} for id, vector in source.documents() if vector)
    written = jsonl.write(folder / "documents.jsonl", records)
    source.write_queries(folder)
    return [
        empty_documents_note(source.manifest.stats["vectors"] - written),
        "exactness: Seismic skips documents that its summaries rule out; heap_factor and query_cut control how many",
    ]


@dataclass(frozen=True)
class Engine:
    """A search engine: its type of the field of impacts, and its query for weights by key."""

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
                if (size := len(id.encode())) > MAX_ID_BYTES:
                    raise CaiError(f"the id {id[:20]}… has {size:,} bytes; {self.name} takes {MAX_ID_BYTES}")
                impacts = keys.document_vector(vector)
                stored = {key: representable(impact) for key, impact in impacts.items()}
                rounded += sum(stored[key] != impact for key, impact in impacts.items())
                yield f"{json.dumps({'index': {'_id': id}})}\n{json.dumps({FIELD: stored})}\n".encode()

        for number, request in enumerate(_joined(requests())):
            (folder / f"bulk-{number:05d}.ndjson").write_bytes(request)
        keys.write(folder)
        queries = {id: keys.query_vector(vector) for id, vector in source.queries().items()}
        searches = ({"id": id, **self.search(vector, source.config.query_scale)} for id, vector in queries.items())
        jsonl.write(folder / "queries.jsonl", searches)
        too_long = sum(len(vector) > MAX_CLAUSES for vector in queries.values())
        return [
            f"queries of more than {MAX_CLAUSES:,} terms: {too_long:,}; a server refuses them unless its "
            "indices.query.bool.max_clause_count is larger",
            f"bits of large impacts: {rounded / max(source.manifest.stats['nonzeros'], 1):.2%} were rounded to "
            f"{SIGNIFICANT_BITS} significant bits" + ("; impacts of `impact --bits 9` lose nothing" if rounded else ""),
            TIES,
        ]

    def search(self, weights: dict[int, int], query_scale: int) -> Json:
        """The `body` of a search, and the `scale` that multiplies its scores to sums of weight * impact."""
        scale = query_scale
        while weights and max(weights.values()) / scale > MAX_WEIGHT:
            scale *= 2
        tokens = {str(key): weight / scale for key, weight in weights.items()}
        query = self.query(tokens) if tokens else {"match_none": {}}  # servers refuse queries without tokens
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
    step = 1 << max(impact.bit_length() - SIGNIFICANT_BITS, 0)
    return round(impact / step) * step


def _joined(requests: Iterable[bytes]) -> Iterator[bytearray]:
    """Join requests into batches of at most MAX_REQUEST_BYTES, except for a larger single document."""
    batch = bytearray()
    for request in requests:
        if batch and len(batch) + len(request) > MAX_REQUEST_BYTES:
            yield batch
            batch = bytearray()
        batch += request
    if batch:
        yield batch
