"""OpenSearch and Elasticsearch: a mapping, bulk requests, and the bodies of searches.

Both store a weight as the frequency of a term in a Lucene FeatureField, which has 9 significant bits: integers up to
512 are exact, and larger ones are rounded here to those that it has. A search is a sum of linear queries, whose weights
must be in (0, 64]; so queries have their weights without the query_scale, divided by powers of two where they exceed
64. Terms are written as integer keys, because names of features must not contain dots.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.export.source import Keys, Source

BATCH = 20_000  # documents per file of bulk requests, which a server limits to 100 MB
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
        for number, batch in enumerate(batched(source.documents(), BATCH)):
            with (folder / f"bulk-{number:05d}.ndjson").open("w", encoding="utf-8") as file:
                for id, vector in batch:
                    values = representable(np.array([*vector.values()], np.int64))
                    rounded += int((values != [*vector.values()]).sum())
                    impacts += len(vector)
                    features = dict(zip(map(str, keys.of_document(vector)), values.tolist(), strict=True))
                    file.write(f"{json.dumps({'index': {'_id': id}})}\n{json.dumps({FIELD: features})}\n")
        keys.write(folder / "terms.txt")
        searches = (
            {"id": id, **search(keys.of_query(vector), source.config.query_scale, kind)}
            for id, vector in source.queries().items()
        )
        jsonl.write(folder / "queries.jsonl", searches)
        return [
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
