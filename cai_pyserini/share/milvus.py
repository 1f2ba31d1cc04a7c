"""A collection of Milvus, with sparse vectors in an inverted index and inner products as scores.

The database is a server, or a file of Milvus Lite, which runs in this process. The name of the export is an alias.
Documents are inserted into a new collection, and then the alias is switched to it in one step, so that searches always
find a complete collection. The manifest names the new one, for `serve`, which stays with the collection that it has
opened; so the one before is kept until the next export. The names of collections begin with a digest of the output
folder: they collide with no others, and the next export finds the remains of an interrupted one.
"""

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pymilvus import DataType

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact, files, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.identity import same_documents
from cai_pyserini.core.metadata import Kind, bounds
from cai_pyserini.engine.milvus import (
    FIELD,
    FREQUENCIES,
    RAW,
    TIMEOUT,
    asking,
    column,
    connect,
    count,
    without_password,
)
from cai_pyserini.lucene.impact_index import COPIED_STATS
from cai_pyserini.lucene.writer import raw_documents
from cai_pyserini.share.source import TIES, Keys, Source

BATCH, BATCH_LENGTH = 1000, 4_000_000  # documents per request, and characters; a server takes 64 MB
MAX_ID_BYTES = 512  # in UTF-8
MAX_STRING_BYTES, MAX_ITEMS = 65_535, 4096  # of a string and an array; Milvus has no larger ones
PIECE = MAX_STRING_BYTES // 4  # characters
NOTHING = "(no impacts)"  # the term of documents without impacts, because Milvus has no empty vectors
COLUMNS: dict[Kind, dict[str, Any]] = {
    "number": {"datatype": DataType.DOUBLE},
    "date": {"datatype": DataType.DOUBLE},
    "string": {"datatype": DataType.VARCHAR, "max_length": MAX_STRING_BYTES},
    "list": {
        "datatype": DataType.ARRAY,
        "element_type": DataType.VARCHAR,
        "max_length": MAX_STRING_BYTES,
        "max_capacity": MAX_ITEMS,
    },
}


def export_milvus(
    source: Source,
    output: Path,
    uri: str,
    name: str,
    collection: Collection | None = None,
    raw: bool = True,
    replicas: int = 1,
) -> artifact.Manifest:
    """Write the documents to a collection of Milvus, and what `serve` needs to encode queries to the folder `output`.

    With `collection` and `raw`, also stores the texts and metadata of its documents. `replicas` are copies in the
    memory of query nodes. Raises CaiError if the name is taken, unless the manifest of `output` says that this command
    has made it, for a collection of other documents, and for a request that Milvus refuses.
    """
    client, address = connect(uri), without_password(uri)
    settings = {"uri": address, "collection": name}
    manifest = artifact.read_manifest(output)
    is_ours = manifest is not None and manifest.recipe["settings"].get("to") == settings
    inputs: dict[str, Any] = {"query": source.query, "replicas": replicas}
    if collection:
        if not same_documents(source.manifest.stats["documents_digest"], collection.documents_digest):
            raise CaiError(f"the impacts are of other documents than {collection.name} has now: make them again")
        inputs["documents"] = collection.fingerprint("documents")
    stored = collection if raw else None
    if stored:
        inputs |= {"metadata": stored.metadata_fingerprint, "raw": True}
    first = f"{name}_{artifact.digest(str(output.resolve()))}"
    new = f"{first}_{secrets.token_hex(4)}"
    stats = {
        **{key: source.manifest.stats[key] for key in COPIED_STATS},
        "kind": "impact",
        "query": source.query,
        "raw": stored is not None,
        "metadata": stored.metadata if stored else {},
        "passages": collection is not None and collection.has_passages,
        "milvus": {"uri": address if "://" in address else str(Path(address).absolute()), "collection": new},
    }

    def write(source: Source, folder: Path) -> list[str]:
        old = client.describe_collection(name)["collection_name"] if is_ours else ""
        kept = {old, *([manifest.stats["milvus"]["collection"]] if manifest and "milvus" in manifest.stats else [])}
        for other in client.list_collections():
            if other.startswith(first) and other not in kept:
                client.drop_collection(other)
        keys = Keys([*source.encoder.tokenizer.terms, NOTHING])
        frequencies = _insert(client, new, source, keys, stored)
        client.load_collection(new, replica_number=replicas)
        if (found := count(client, new)) != source.manifest.stats["vectors"]:
            raise CaiError(f"{address} has only {found:,} documents in {new}: export again")
        if is_ours:
            client.alter_alias(new, name)
        else:
            client.create_alias(new, name)  # raises MilvusException if the name was taken meanwhile
        keys.write(folder)
        (folder / FREQUENCIES).write_text("".join(f"{frequencies[key]}\n" for key in range(len(keys))))
        queries = ({"id": id, "vector": _floats(keys.query_vector(vector))} for id, vector in source.queries().items())
        jsonl.write(folder / "queries.jsonl", queries)
        return [TIES]

    try:
        with asking(address):
            if is_ours and not client.has_collection(name, timeout=TIMEOUT):
                artifact.require_writable(output)
                files.remove(output)  # so that the collection is made again
                is_ours = False
            if not is_ours and client.has_collection(name, timeout=TIMEOUT):
                remedy = f"that {output} does not belong to; choose another --name"
                raise CaiError(f"{address} has a collection {name!r} {remedy}")
            return source.export(output, write, "milvus", to=settings, more_inputs=inputs, more_stats=stats)
    finally:
        client.close()


def _insert(client: Any, name: str, source: Source, keys: Keys, collection: Collection | None) -> Counter[int]:
    """Write a new collection, and return the number of documents with each key."""
    kinds = collection.metadata if collection else {}
    schema, index = client.create_schema(auto_id=False, enable_dynamic_field=False), client.prepare_index_params()
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
    schema.add_field(FIELD, DataType.SPARSE_FLOAT_VECTOR)
    index.add_index(FIELD, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
    if collection:
        schema.add_field(RAW, **COLUMNS["list"])
    for field, kind in kinds.items():
        schema.add_field(column(field), **COLUMNS[kind], nullable=True)
        if kind != "list":  # Milvus Lite indexes no arrays
            index.add_index(column(field), index_type="INVERTED")
    # Searches need not wait for the latest writes: there are none after the export.
    client.create_collection(name, schema=schema, consistency_level="Eventually")
    client.create_index(name, index, sync=False)  # with `index_params` above, it would be loaded now, without replicas
    frequencies: Counter[int] = Counter()

    def rows() -> Iterator[dict[str, Any]]:
        raw = raw_documents(collection) if collection else None
        for id, impacts in source.documents():
            vector = keys.document_vector(impacts or {NOTHING: 1})
            frequencies.update(vector.keys())
            yield {"id": id, FIELD: _floats(vector)} | (_document(raw(id), kinds) if raw else {})

    for batch in _batches(rows()):
        client.insert(name, batch)
    client.flush(name)
    return frequencies


def _document(raw: str, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The fields of Milvus for the stored JSON of a document."""
    metadata, row = json.loads(raw).get("metadata", {}), dict[str, Any]()
    row[RAW] = [raw[start : start + PIECE] for start in range(0, len(raw), PIECE)]
    for field, kind in kinds.items():
        value = metadata.get(field)
        is_number = kind in ("number", "date") and value is not None
        row[column(field)] = bounds(value, kind)[0] if is_number else value
    return row


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Group documents into requests."""
    batch, length = list[dict[str, Any]](), 0
    for row in rows:
        batch.append(row)
        length += sum(map(len, row.get(RAW, ())))
        if len(batch) == BATCH or length > BATCH_LENGTH:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _floats(vector: dict[int, int]) -> dict[int, float]:
    """A vector with float values, as Milvus takes them."""
    return {key: float(value) for key, value in vector.items()}
