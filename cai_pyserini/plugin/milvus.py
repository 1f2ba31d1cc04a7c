"""A collection of Milvus, with sparse vectors in an inverted index and inner products as scores.

The database is a server, or a file of Milvus Lite, which runs in this process. See aliases for the name of the export.
The manifest names the collection behind the alias, for `serve`, which stays with the one that it has opened. So the one
before is kept until the next export.
"""

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymilvus import DataType

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import without_password
from cai_pyserini.core.identity import same_documents
from cai_pyserini.core.metadata import Kind, bounds
from cai_pyserini.indexes.impact_index import COPIED_STATS
from cai_pyserini.indexes.milvus import FIELD, FREQUENCIES, RAW, asking, column, connect, count
from cai_pyserini.indexes.writer import raw_documents
from cai_pyserini.plugin.aliases import export_to_server
from cai_pyserini.plugin.source import TIES, Keys, Source

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


@dataclass
class Milvus:
    """A server or file of Milvus."""

    client: Any
    address: str
    noun: str = "collection"

    def behind(self, alias: str) -> str | None:
        found = self.client.has_collection(alias)
        return str(self.client.describe_collection(alias)["collection_name"]) if found else None

    def unused(self, first: str, old: str | None) -> str:
        return f"{first}_{secrets.token_hex(4)}"  # unique: services may have opened any earlier one

    def point(self, alias: str, new: str, old: str | None) -> None:
        if old:
            self.client.alter_alias(new, alias)
        else:
            self.client.create_alias(new, alias)

    def drop_earlier(self, new: str, *kept: str | None) -> None:
        """Drop the earlier collections of an export."""
        first = new.rpartition("_")[0]
        for name in self.client.list_collections():
            if name.startswith(first) and name not in kept:
                self.client.drop_collection(name)


def export_milvus(source: Source, output: Path, uri: str, name: str) -> artifact.Manifest:
    """Write the documents to a collection of Milvus, and what `serve` needs to encode queries to the folder `output`.

    The texts of `source` are stored with the metadata of the documents. Raises CaiError as aliases.export_to_server
    does, for texts of other documents, and for what Milvus refuses.
    """
    server = Milvus(connect(uri), without_password(uri))
    collection = source.texts
    earlier = manifest.stats.get("milvus", {}) if (manifest := artifact.read_manifest(output)) else {}
    if collection and not same_documents(source.manifest.stats["documents_digest"], collection.documents_digest):
        raise CaiError(f"the impacts are of other documents than {collection.name} has now: make them again")
    place: dict[str, str] = {"uri": server.address if "://" in uri else str(Path(uri).absolute())}
    stats = {
        **{key: source.manifest.stats[key] for key in COPIED_STATS},
        "kind": "impact",
        "query": source.query,
        "raw": collection is not None,
        "metadata": collection.metadata if collection else {},
        "passages": collection is not None and collection.has_passages,
        "milvus": place,
    }

    def load(new: str, folder: Path) -> list[str]:
        place["collection"] = new
        server.drop_earlier(new, server.behind(name), earlier.get("collection"))
        keys = Keys([*source.encoder.tokenizer.terms, NOTHING])
        frequencies = _insert(server.client, new, source, keys, collection)
        server.client.load_collection(new)
        if (found := count(server.client, new)) != (expected := source.manifest.stats["vectors"]):
            raise CaiError(f"{server.address} has {found:,} of {expected:,} documents in {new}: export them again")
        keys.write(folder)
        (folder / FREQUENCIES).write_text(
            "".join(f"{frequencies[key]}\n" for key in range(len(keys))), encoding="utf-8"
        )
        queries = ({"id": id, "vector": _floats(keys.query_vector(vector))} for id, vector in source.queries.items())
        jsonl.write(folder / "queries.jsonl", queries)
        return [TIES]

    settings = {
        "query": source.query,
        "texts": collection and [collection.fingerprint("documents"), collection.metadata_fingerprint],
    }
    try:
        with asking(server.address):
            return export_to_server(
                source, output, server, name, load, format="milvus", settings=settings, more_stats=stats
            )
    finally:
        server.client.close()


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
    client.create_index(name, index, sync=False)  # with `index_params` above, it would be loaded now
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
