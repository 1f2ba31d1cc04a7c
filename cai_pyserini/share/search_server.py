"""Load indexes into servers of OpenSearch and Elasticsearch, with the servers' own clients.

A server answers a bulk request with 200 even if it has refused documents, so the response of each is checked; it is
asked again while it is too busy (429). In the end, the documents are counted.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import elastic_transport
import elasticsearch
import elasticsearch.helpers
import opensearchpy
import opensearchpy.helpers

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import without_password
from cai_pyserini.share.aliases import export_to_server
from cai_pyserini.share.search_engines import ELASTICSEARCH, OPENSEARCH, SEISMIC, Engine
from cai_pyserini.share.source import TIES, Source

MAX_REQUEST_BYTES = 10_000_000  # largest bulk request; servers take 100 MB by default, small ones in a cloud 10 MB
BUSY_RETRIES = 8  # a busy server gets documents again so often, after twice as long each time
BUSY_SECONDS = 1.0  # seconds before the first retry
TIMEOUT = 120  # seconds
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,200}")
ERRORS = (elastic_transport.TransportError, elasticsearch.ApiError, opensearchpy.OpenSearchException)


@dataclass
class SearchServer:
    """A server, with the client of its kind and the client's module `helpers`."""

    client: Any
    helpers: ModuleType
    uri: str
    kind: str = "index"

    @property
    def address(self) -> str:
        return without_password(self.uri)

    def behind(self, alias: str) -> str | None:
        try:
            found = [*self.client.indices.get_alias(index=alias)]
        except (elasticsearch.NotFoundError, opensearchpy.NotFoundError):
            return None
        if len(found) > 1:
            raise CaiError(f"{self.address}: {alias!r} is an alias of {len(found)} indexes; choose another --name")
        return str(found[0])

    def unused(self, first: str, old: str | None) -> str:
        return f"{first}_2" if old == first else first

    def point(self, alias: str, new: str, old: str | None) -> None:
        actions: list[dict[str, Any]] = [{"add": {"index": new, "alias": alias}}]
        if old:
            actions.append({"remove_index": {"index": old}})
        self.client.indices.update_aliases(body={"actions": actions})

    def load(self, index: str, body: dict[str, Any], documents: Iterator[dict[str, Any]], count: int) -> None:
        """Replace an index. Raises CaiError if the server refuses a document, or has another number than `count`."""
        self.client.indices.delete(index=index, ignore_unavailable=True)
        self.client.indices.create(index=index, body=body)
        limits = {"max_chunk_bytes": MAX_REQUEST_BYTES, "max_retries": BUSY_RETRIES, "initial_backoff": BUSY_SECONDS}
        results = self.helpers.streaming_bulk(
            self.client, documents, index=index, raise_on_error=False, yield_ok=False, **limits
        )
        for _, refused in results:
            (response,) = refused.values()
            error = response.get("error", {})
            reason = f"{error.get('type')}: {error.get('reason')}" if isinstance(error, dict) else error
            raise CaiError(
                f"{self.address} refused document {response.get('_id')!r} ({response.get('status')}, {reason})"
            )
        self.client.indices.refresh(index=index)
        if (found := self.client.count(index=index)["count"]) != count:
            raise CaiError(f"{self.address} has {found:,} of {count:,} documents in {index}: export them again")


def export_opensearch(
    source: Source, output: Path, uri: str, name: str, field: str = OPENSEARCH.type
) -> artifact.Manifest:
    """Write the documents to an index of OpenSearch, whose field of impacts has the type `field`; see `_export`.

    The environment variable OPENSEARCH_AUTH can have USER:PASSWORD.
    """
    options = _options(uri, "http_auth", "OPENSEARCH_AUTH")
    server = SearchServer(opensearchpy.OpenSearch(uri, timeout=TIMEOUT, **options), opensearchpy.helpers, uri)
    return _export(SEISMIC if field == SEISMIC.type else OPENSEARCH, server, source, output, name)


def export_elasticsearch(source: Source, output: Path, uri: str, name: str) -> artifact.Manifest:
    """Write the documents to an index of Elasticsearch; see `_export`.

    The environment variable ELASTICSEARCH_API_KEY can have a key.
    """
    options = _options(uri, "api_key", "ELASTICSEARCH_API_KEY")
    client = elasticsearch.Elasticsearch(uri, request_timeout=TIMEOUT, **options)
    return _export(ELASTICSEARCH, SearchServer(client, elasticsearch.helpers, uri), source, output, name)


def _options(uri: str, secret: str, variable: str) -> dict[str, Any]:
    """Options of a client: the `secret` in an environment variable, and the file of certificates in SSL_CERT_FILE.

    Raises CaiError for a URI that is not an address with a port.
    """
    try:
        parts = urlsplit(uri)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:  # whose message can quote the password
        is_address = False
    if not is_address:
        raise CaiError("the URI is not the address of a server with its port, such as http://HOST:9200")
    options = {
        secret: os.environ.get(variable),
        "ca_certs": parts.scheme == "https" and os.environ.get("SSL_CERT_FILE"),
    }
    return {name: value for name, value in options.items() if value}


def _export(engine: Engine, server: SearchServer, source: Source, output: Path, name: str) -> artifact.Manifest:
    """Write an index, and the keys of terms and bodies of searches to the folder `output`.

    Raises CaiError for what the server refuses, and as aliases.export_to_server does.
    """
    if not NAME.fullmatch(name):
        raise CaiError(f"--name {name!r}: names of indexes have small letters, digits, and _ . - between them")
    for client in ("opensearch", "elastic_transport"):
        logging.getLogger(client).setLevel(logging.CRITICAL)  # they log errors that they also raise
    rounded = Counter[bool]()
    texts = source.texts.identity if source.texts else None

    def load(index: str, folder: Path) -> list[str]:
        keys, body = engine.index(source)
        server.load(index, body, engine.documents(source, keys, rounded), source.manifest.stats["vectors"])
        keys.write(folder)
        for search, lines in engine.searches(source, keys).items():
            jsonl.write(folder / f"queries{search and '-'}{search}.jsonl", lines)
        return [*engine.losses(source, rounded), TIES]

    try:
        return export_to_server(source, output, server, name, engine.name, load, field=engine.type, texts=texts)
    except ERRORS as error:
        raise CaiError(f"{server.address}: {error}") from None
    finally:
        server.client.close()
