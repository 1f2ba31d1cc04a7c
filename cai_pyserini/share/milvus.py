"""A collection of Milvus, with sparse vectors in an inverted index and inner products as scores.

The database is a server, or a file of Milvus Lite, which runs in this process. See aliases for the name of the export.
"""

import logging
import os
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Any

from pymilvus import DataType, MilvusClient, MilvusException

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.share.aliases import export_to_server, without_password
from cai_pyserini.share.source import TIES, Keys, Source, empty_documents_note

BATCH = 1000  # documents per request
MAX_ID_BYTES = 512  # in UTF-8
FIELD = "impacts"


def connect(uri: str) -> Any:
    """A client of the server or file `uri`; the environment variable MILVUS_TOKEN has the server's token."""
    if "://" not in uri and not uri.endswith(".db"):
        raise CaiError("the URI is neither the address of a server, http://HOST:19530, nor a file NAME.db")
    for name in ("pymilvus", "grpc"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log errors that they also raise
    try:
        return MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
    except (MilvusException, ValueError) as error:
        reason = getattr(error, "message", "no address of a server")  # a ValueError can quote the password
        raise CaiError(f"{without_password(uri)}: Milvus cannot be reached or opened ({reason})") from None


@dataclass
class Milvus:
    """A server or file of Milvus."""

    client: Any
    address: str
    kind: str = "collection"

    def behind(self, alias: str) -> str | None:
        found = self.client.has_collection(alias)
        return str(self.client.describe_collection(alias)["collection_name"]) if found else None

    def point(self, alias: str, new: str, old: str | None) -> None:
        if old:
            self.client.alter_alias(new, alias)
            self.client.drop_collection(old)
        else:
            self.client.create_alias(new, alias)


def export_milvus(source: Source, output: Path, uri: str, name: str) -> artifact.Manifest:
    """Write the documents to a collection of Milvus, and the keys of terms and the queries to the folder `output`.

    Raises CaiError as aliases.export_to_server does.
    """
    server = Milvus(connect(uri), without_password(uri))

    def load(new: str, folder: Path) -> list[str]:
        keys = Keys(source.encoder.tokenizer.terms)
        empty = _insert(server.client, new, source, keys)
        server.client.load_collection(new)
        keys.write(folder)
        queries = ({"id": id, "vector": _floats(keys.query_vector(vector))} for id, vector in source.queries().items())
        jsonl.write(folder / "queries.jsonl", queries)
        return [empty_documents_note(empty), TIES]

    try:
        return export_to_server(source, output, server, name, "milvus", load)
    except MilvusException as error:
        raise CaiError(f"{server.address}: {error.message}") from None
    finally:
        server.client.close()


def _insert(client: Any, name: str, source: Source, keys: Keys) -> int:
    """Write a new collection, and return the number of documents left out because they have no impacts."""
    client.drop_collection(name)
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
    schema.add_field(FIELD, DataType.SPARSE_FLOAT_VECTOR)
    index = client.prepare_index_params()
    index.add_index(FIELD, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
    client.create_collection(name, schema=schema, index_params=index)
    empty = 0
    for batch in batched(source.documents(), BATCH):
        rows = [{"id": id, FIELD: _floats(keys.document_vector(vector))} for id, vector in batch if vector]
        empty += len(batch) - len(rows)
        client.insert(name, rows)
    client.flush(name)
    return empty


def _floats(vector: dict[int, int]) -> dict[int, float]:
    """A vector with float values, as Milvus takes them."""
    return {key: float(value) for key, value in vector.items()}
