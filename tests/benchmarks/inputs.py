"""What the benchmarks of indexes and of searching start from."""

import json
from pathlib import Path
from typing import Any

import harness

Queries = dict[str, dict[str, int]]  # id -> term -> impact


def write_impacts(collection: str, encoder: str, folder: str, name: str, **settings: object) -> str:
    """IDF-weighted impacts of a collection, in `name` in a folder; vectors and IDF are made there once."""
    source = {"collection": collection, "encoder": encoder}
    vectors, idf, output = (f"{folder}/{part}" for part in ("vectors", "idf", name))
    harness.stage("encode", **source, output=vectors)
    harness.stage("idf", **source, output=idf)
    harness.stage("impact", vectors=vectors, idf=idf, encoder=encoder, **settings, output=output)
    return output


def write_queries(collection: str, encoder: str, limit: int | None, output: str) -> dict[str, Any]:
    """The impacts of a collection's first queries, to a JSON file; those without any are left out."""
    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.encode.encoder import Encoder
    from cai_pyserini.encode.queries import Queries as Topics

    index_config, config = load_index_config(collection), load_encoder(encoder)
    topics = dict(list(open_collection(index_config).topics(index_config.split).items())[:limit])
    encoded, _ = Topics(topics, Encoder(config), "splade").for_search(config.query_scale)
    queries = {id: query for id, query in encoded.items() if query}
    Path(output).write_text(json.dumps(queries))
    return {"queries": len(queries)}


def import_stock() -> tuple[Any, Any]:
    """Pyserini's own searcher and query encoder, in a running JVM."""
    from cai_pyserini.core import jvm

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
