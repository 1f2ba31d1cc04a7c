"""A collection of Milvus, with sparse vectors in an inverted index and inner products as scores.

The database is a server, or a file of Milvus Lite, which runs in this process. The name of the export is an alias.
Documents are inserted into a new collection, and then the alias is switched to it in one step, so that searches always
find a complete collection. The two collections' names are derived from the output folder: they collide with no others,
and the same command finds the remains of an interrupted one.
"""

import logging
import os
import re
from itertools import batched
from pathlib import Path
from typing import Any

from pymilvus import DataType, MilvusClient, MilvusException

from cai_pyserini.core import artifact, files, jsonl
from cai_pyserini.core.errors import CaiError
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


def without_password(uri: str) -> str:
    """A URI without user and password, to print and store."""
    return re.sub(r"(?<=://).*@", "", uri)


def export_milvus(source: Source, output: Path, uri: str, name: str) -> artifact.Manifest:
    """Write the documents to a collection of Milvus, and the keys of terms and the queries to the folder `output`.

    Raises CaiError if the name is taken, unless the manifest of `output` says that this command has made it.
    """
    client, address = connect(uri), without_password(uri)
    settings = {"uri": address, "collection": name}
    manifest = artifact.read_manifest(output)
    is_ours = manifest is not None and manifest.recipe["settings"].get("to") == settings
    if is_ours and not client.has_collection(name):
        artifact.require_writable(output)
        files.remove(output)  # so that the collection is made again
        is_ours = False
    if not is_ours and client.has_collection(name):
        raise CaiError(f"{address} has a collection {name!r} that {output} does not belong to; choose another --name")
    old = client.describe_collection(name)["collection_name"] if is_ours else ""
    if old == name:
        raise CaiError(f"{address} has a collection {name!r} of an earlier version, which has no alias: drop it")
    first = f"{name}_{artifact.digest(str(output.resolve()))}"
    new = f"{first}_2" if old == first else first

    def write(source: Source, folder: Path) -> list[str]:
        keys = Keys(source.encoder.tokenizer.terms)
        empty = _insert(client, new, source, keys)
        client.load_collection(new)
        if is_ours:
            client.alter_alias(new, name)
            client.drop_collection(old)
        else:
            client.create_alias(new, name)  # raises MilvusException if the name was taken meanwhile
        keys.write(folder)
        queries = ({"id": id, "vector": _floats(keys.query_vector(vector))} for id, vector in source.queries().items())
        jsonl.write(folder / "queries.jsonl", queries)
        return [empty_documents_note(empty), TIES]

    try:
        return source.export(output, write, "milvus", **settings)
    except MilvusException as error:
        raise CaiError(f"{address}: {error.message}") from None
    finally:
        client.close()


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
