"""A collection of Milvus, with sparse vectors in an inverted index and inner products as scores.

The database is a server, or a file of Milvus Lite, which is Milvus inside this process. The name of the export is an
alias of a collection. Documents go to another collection, which becomes that of the alias in one step when all are in
it, so that there always is one to search. The names of the two are derived from the output folder, so that they collide
with no others, and that the same command finds what an interrupted one has left.
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
from cai_pyserini.export.source import TIES, Keys, Source, without_impacts

BATCH = 1000  # documents per request
LONGEST_ID = 512  # bytes of UTF-8
FIELD = "impacts"


def connect(uri: str) -> Any:
    """A client of the server or of the file `uri`; MILVUS_TOKEN in the environment is the token of the server."""
    shown = without_password(uri)
    if "://" not in uri and not uri.endswith(".db"):
        raise CaiError("the URI is neither the address of a server, http://HOST:19530, nor a file NAME.db")
    for name in ("pymilvus", "grpc"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log what they raise
    try:
        return MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
    except (MilvusException, ValueError) as error:
        reason = getattr(error, "message", "no address of a server")  # a ValueError can quote the password
        raise CaiError(f"{shown}: Milvus cannot be reached or opened ({reason})") from None


def without_password(uri: str) -> str:
    """A URI without user and password, to show and store."""
    return re.sub(r"(?<=://).*@", "", uri)


def export_milvus(source: Source, output: Path, uri: str, name: str) -> artifact.Manifest:
    """Write the documents to a collection of Milvus, and the keys of terms and the queries to the folder `output`.

    Raises CaiError if something has the name already, but `output` does not say that this command has made it.
    """
    client, shown = connect(uri), without_password(uri)
    settings = {"uri": shown, "collection": name}
    made = artifact.read_manifest(output)
    ours = made is not None and made.recipe["settings"].get("to") == settings
    if ours and not client.has_collection(name):
        artifact.require_writable(output)
        files.remove(output)  # so that the collection is made again
        ours = False
    if not ours and client.has_collection(name):
        raise CaiError(f"{shown} has a collection {name!r} that {output} does not belong to; choose another --name")
    now = client.describe_collection(name)["collection_name"] if ours else ""
    if now == name:
        raise CaiError(f"{shown} has a collection {name!r} of an earlier version, which has no alias: drop it")
    first, second = (f"{name}_{artifact.digest(str(output.resolve()))}{end}" for end in ("", "_2"))
    new = second if now == first else first

    def write(source: Source, folder: Path) -> list[str]:
        keys = Keys(source.encoder.tokenizer.terms)
        empty = _insert(client, new, source, keys)
        client.load_collection(new)
        if ours:
            client.alter_alias(new, name)
            client.drop_collection(now)
        else:
            client.create_alias(new, name)  # or an error, if others have made one meanwhile
        keys.write(folder)
        queries = ({"id": id, "vector": _floats(keys.of_query(vector))} for id, vector in source.queries().items())
        jsonl.write(folder / "queries.jsonl", queries)
        return [without_impacts(empty), TIES]

    try:
        return source.export(output, write, "milvus", **settings)
    except MilvusException as error:
        raise CaiError(f"{shown}: {error.message}") from None
    finally:
        client.close()


def _insert(client: Any, name: str, source: Source, keys: Keys) -> int:
    """Write a new collection, and return the number of documents that it cannot hold because they have no impacts."""
    client.drop_collection(name)
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
    schema.add_field(FIELD, DataType.SPARSE_FLOAT_VECTOR)
    index = client.prepare_index_params()
    index.add_index(FIELD, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
    client.create_collection(name, schema=schema, index_params=index)
    empty = 0
    for batch in batched(source.documents(), BATCH):
        rows = [{"id": id, FIELD: _floats(keys.of_document(vector))} for id, vector in batch if vector]
        empty += len(batch) - len(rows)
        client.insert(name, rows)
    client.flush(name)
    return empty


def _floats(vector: dict[int, int]) -> dict[int, float]:
    """The vector with the type of values that Milvus takes."""
    return {key: float(value) for key, value in vector.items()}
