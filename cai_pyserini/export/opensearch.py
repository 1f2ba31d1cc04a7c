"""OpenSearch and Elasticsearch: a mapping, bulk requests, and the bodies of searches.

Both store a weight as the frequency of a term in a Lucene FeatureField, which has 9 significant bits: integers up to
512 are exact, and larger ones are rounded here to those that it has. A search is a sum of linear queries, whose weights
must be in (0, 64]; so queries have their weights without the query_scale, divided by powers of two where they exceed
64. Terms are written as integer keys, because names of features must not contain dots.

Requests are kept small: a server takes 100 MB by default, a small one of a cloud 10 MB, and the ids of documents have
at most 512 bytes.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.export.source import Keys, Source

REQUEST = 10_000_000  # bytes of a file of bulk requests; only a document that is larger has a larger file
LONGEST_ID = 512  # bytes of UTF-8
CLAUSES = 1024  # terms of a query, by default
SIGNIFICANT = 9  # bits of a FeatureField
LARGEST_WEIGHT = 64.0  # of a linear query on a FeatureField
FIELD = "impacts"
HITS = 1000

EngineName = Literal["opensearch", "elasticsearch"]
Json = dict[str, Any]


@dataclass(frozen=True)
class Engine:
    """The type of the field, and the query on it for weights by key."""

    field: str
    query: Callable[[dict[str, float]], Json]


ENGINES = {
    "opensearch": Engine("rank_features", lambda weights: {"neural_sparse": {FIELD: {"query_tokens": weights}}}),
    "elasticsearch": Engine(
        "sparse_vector",
        lambda weights: {"sparse_vector": {"field": FIELD, "query_vector": weights, "prune": False}},
    ),
}


def export_opensearch(
    source: Source, output: Path, engine: Literal["opensearch", "elasticsearch"]
) -> artifact.Manifest:
    """Write mapping.json, bulk-*.ndjson, the keys of terms, and a search per query in queries.jsonl."""
    kind = ENGINES[engine]
    keys = Keys(source.encoder.tokenizer.terms)

    def write(folder: Path) -> list[str]:
        mapping = {"dynamic": "strict", "_source": {"excludes": [FIELD]}, "properties": {FIELD: {"type": kind.field}}}
        (folder / "mapping.json").write_text(json.dumps({"mappings": mapping}, indent=1) + "\n", encoding="utf-8")
        rounded = impacts = 0

        def requests() -> Iterator[tuple[int, bytes]]:
            """The number of a file, and a request in it."""
            nonlocal rounded, impacts
            number = size = 0
            for id, vector in source.documents():
                if len(id.encode()) > LONGEST_ID:
                    raise CaiError(f"the id {id[:20]}… has {len(id.encode()):,} bytes; {engine} takes {LONGEST_ID}")
                values = representable(np.array([*vector.values()], np.int64))
                rounded += int((values != [*vector.values()]).sum())
                impacts += len(vector)
                features = dict(zip(map(str, keys.of_document(vector)), values.tolist(), strict=True))
                request = f"{json.dumps({'index': {'_id': id}})}\n{json.dumps({FIELD: features})}\n".encode()
                if size and size + len(request) > REQUEST:
                    number, size = number + 1, 0
                size += len(request)
                yield number, request

        for number, group in groupby(requests(), itemgetter(0)):
            with (folder / f"bulk-{number:05d}.ndjson").open("wb") as file:
                file.writelines(request for _, request in group)
        keys.write(folder / "terms.txt")
        queries = {id: keys.of_query(vector) for id, vector in source.queries().items()}
        searches = ({"id": id, **search(vector, source.config.query_scale, kind)} for id, vector in queries.items())
        jsonl.write(folder / "queries.jsonl", searches)
        return [
            f"queries of more than {CLAUSES:,} terms: {sum(len(vector) > CLAUSES for vector in queries.values()):,}; "
            "a server refuses them unless its indices.query.bool.max_clause_count is larger",
            f"bits of large impacts: {rounded / max(impacts, 1):.2%} were rounded to {SIGNIFICANT} significant bits"
            + ("; impacts of `impact --bits 9` lose nothing" if rounded else ""),
            "the order of documents with equal scores",
        ]

    return source.export(output, write, engine)


def representable(impacts: np.ndarray) -> np.ndarray:
    """The nearest integers with at most 9 significant bits; halves go to the even ones."""
    step = 1 << np.maximum(np.frexp(impacts.astype(np.float64))[1] - SIGNIFICANT, 0)
    return (np.rint(impacts / step) * step).astype(np.int64)


def search(weights: dict[int, int], query_scale: int, engine: Engine) -> Json:
    """The `body` of a search, and `scale`, by which its scores are multiplied to be sums of weight * impact."""
    scale = query_scale
    while weights and max(weights.values()) / scale > LARGEST_WEIGHT:
        scale *= 2
    tokens = {str(key): weight / scale for key, weight in weights.items()}
    query = engine.query(tokens) if tokens else {"match_none": {}}  # no query takes zero tokens
    return {"scale": scale, "body": {"size": HITS, "_source": False, "query": query}}
