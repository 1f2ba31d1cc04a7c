"""What the benchmarks of indexes and of searching start from."""

import json
from pathlib import Path
from typing import Any

import harness

Queries = dict[str, dict[str, int]]  # id -> term -> impact


def write_impacts(collection: str, encoder: str, folder: str, name: str, **settings: object) -> str:
    """IDF-weighted impacts of a collection, in `name` in a folder; vectors and IDF are made there once."""
    given = {"collection": collection, "encoder": encoder}
    vectors, idf, output = (f"{folder}/{part}" for part in ("vectors", "idf", name))
    harness.stage("encode", **given, output=vectors)
    harness.stage("idf", **given, output=idf)
    harness.stage("impact", vectors=vectors, idf=idf, encoder=encoder, **settings, output=output)
    return output


def write_queries(collection: str, encoder: str, limit: int | None, output: str) -> dict[str, Any]:
    """The impacts of a collection's first queries, to a JSON file; those without any are left out."""
    from cai_pyserini.collection import open_collection
    from cai_pyserini.config import load_encoder, load_index_config
    from cai_pyserini.encode import LazyEncoder
    from cai_pyserini.search import query_impacts

    index_config, config = load_index_config(collection), load_encoder(encoder)
    topics = list(open_collection(index_config).topics(index_config.split).items())[:limit]
    splade = LazyEncoder(config).load("queries")
    vectors = splade.encode([text for _, text in topics], config.max_query_length)
    impacts = query_impacts(vectors, splade.tokenizer.terms, config.query_scale)
    queries: Queries = {id: vector for (id, _), vector in zip(topics, impacts, strict=True) if vector}
    Path(output).write_text(json.dumps(queries))
    return {"queries": len(queries)}


def import_stock() -> tuple[Any, Any]:
    """Pyserini's own searcher and query encoder, in a running JVM."""
    from cai_pyserini import jvm

    jvm.start()
    from pyserini.encode import QueryEncoder
    from pyserini.search.lucene import LuceneImpactSearcher

    return LuceneImpactSearcher, QueryEncoder


def open_stock(index: str, queries: Queries) -> Any:
    """Pyserini's own searcher; as queries it takes the ids of these pre-encoded ones."""
    searcher, query_encoder = import_stock()
    encoder = query_encoder()
    encoder.embedding = queries
    return searcher(index, encoder, min_idf=-1)  # 0, the default, drops terms that are in every document
