"""Indexes of impacts in OpenSearch and Elasticsearch, loaded with OpenSearch's client: both take the same requests.

Both store a weight as the frequency of a term in a Lucene FeatureField, which has 9 significant bits: integers up to
512 are exact; larger ones are rounded here. A search is a sum of linear queries, whose weights must be in (0, 64].
Terms are written as integer keys, because names of features must not contain dots.

A server answers a bulk request with 200 even if it has refused documents, so the response of each is checked; it is
asked again while it is too busy (429). In the end, the documents are counted.
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import opensearchpy
import opensearchpy.helpers

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError, without_secrets
from cai_pyserini.core.flags import without_password
from cai_pyserini.indexes.writer import raw_documents
from cai_pyserini.plugin.aliases import export_to_server
from cai_pyserini.plugin.source import TIES, Keys, Source

MAX_REQUEST_BYTES = 10_000_000  # largest bulk request; servers take 100 MB by default, small ones in a cloud 10 MB
BUSY_RETRIES = 8  # a busy server gets documents again so often, after twice as long each time
BUSY_SECONDS = 1  # seconds before the first retry
TIMEOUT = 120  # seconds
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,200}")
IMPACTS, CONTENTS = "impacts", "contents"  # fields
HITS = 1000
MAX_WEIGHT = 16.0  # of a query
SIGNIFICANT_BITS = 9  # of a FeatureField
Json = dict[str, Any]


class Engine(NamedTuple):
    """A search engine: the type of its field of impacts, and its query of that field by weights of keys."""

    name: str
    type: str
    sparse: Callable[[dict[str, float]], Json]


OPENSEARCH = Engine(
    "opensearch", "rank_features", lambda weights: {"neural_sparse": {IMPACTS: {"query_tokens": weights}}}
)
ELASTICSEARCH = Engine(
    "elasticsearch",
    "sparse_vector",
    lambda weights: {"sparse_vector": {"field": IMPACTS, "query_vector": weights, "prune": False}},
)


class SearchServer:
    """A server with indexes, and aliases for them; `options` are those of the client."""

    noun = "index"

    def __init__(self, uri: str, options: dict[str, Any]):
        parts = urlsplit(uri)
        self.address, self._login = without_password(uri), unquote(f"{parts.username or ''}:{parts.password or ''}")
        self.client = opensearchpy.OpenSearch(uri, timeout=TIMEOUT, **options)

    def quoted(self, reason: object) -> str:
        """What the server says, which may repeat the login."""
        return without_secrets(str(reason), self._login if self._login != ":" else None)

    def behind(self, alias: str) -> str | None:
        try:
            found = [*self.client.indices.get_alias(index=alias)]
        except opensearchpy.NotFoundError:
            return None
        if len(found) > 1:
            raise CaiError(f"{self.address}: {alias!r} is an alias of {len(found)} indexes; choose another --name")
        return str(found[0])

    def unused(self, first: str, old: str | None) -> str:
        return f"{first}_2" if old == first else first

    def point(self, alias: str, new: str, old: str | None) -> None:
        actions: list[Json] = [{"add": {"index": new, "alias": alias}}]
        if old:
            actions.append({"remove_index": {"index": old}})
        self.client.indices.update_aliases(body={"actions": actions})

    def load(self, index: str, body: Json, documents: Iterator[Json], count: int) -> None:
        """Replace an index. Raises CaiError if the server refuses a document, or has another number than `count`."""
        self.client.indices.delete(index=index, ignore_unavailable=True)
        self.client.indices.create(index=index, body=body)
        results = opensearchpy.helpers.streaming_bulk(
            self.client,
            documents,
            index=index,
            max_chunk_bytes=MAX_REQUEST_BYTES,
            max_retries=BUSY_RETRIES,
            initial_backoff=BUSY_SECONDS,
            raise_on_error=False,
            yield_ok=False,
        )
        for _, refused in results:
            (response,) = refused.values()
            error = response.get("error", {})
            reason = f"{error.get('type')}: {error.get('reason')}" if isinstance(error, dict) else error
            why = f"{response.get('status')}, {self.quoted(reason)}"
            raise CaiError(f"{self.address} refused document {response.get('_id')!r} ({why})")
        self.client.indices.refresh(index=index)
        if (found := self.client.count(index=index)["count"]) != count:
            raise CaiError(f"{self.address} has {found:,} of {count:,} documents in {index}: export them again")


def export_opensearch(source: Source, output: Path, uri: str, name: str) -> artifact.Manifest:
    """Write the documents to an index of OpenSearch; see `_export`.

    The environment variable OPENSEARCH_AUTH can have USER:PASSWORD.
    """
    auth = os.environ.get("OPENSEARCH_AUTH")
    return _export(OPENSEARCH, _server(uri, {"http_auth": auth} if auth else {}), source, output, name)


def export_elasticsearch(source: Source, output: Path, uri: str, name: str) -> artifact.Manifest:
    """Write the documents to an index of Elasticsearch; see `_export`.

    The environment variable ELASTICSEARCH_API_KEY can have a key.
    """
    key = os.environ.get("ELASTICSEARCH_API_KEY")
    options = {"headers": {"Authorization": f"ApiKey {key}"}} if key else {}
    return _export(ELASTICSEARCH, _server(uri, options), source, output, name)


def _server(uri: str, options: dict[str, Any]) -> SearchServer:
    """The server at an address, whose certificates may be in the file SSL_CERT_FILE.

    Raises CaiError for a URI that is not an address with a port.
    """
    try:
        parts = urlsplit(uri)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:  # whose message can quote the password
        is_address = False
    if not is_address:
        raise CaiError("the URI is not the address of a server with its port, such as http://HOST:9200")
    if parts.scheme == "https" and (certificates := os.environ.get("SSL_CERT_FILE")):
        options["ca_certs"] = certificates
    return SearchServer(uri, options)


def _export(engine: Engine, server: SearchServer, source: Source, output: Path, name: str) -> artifact.Manifest:
    """Write an index, and the keys of terms and bodies of searches to the folder `output`.

    Raises CaiError for what the server refuses, and as aliases.export_to_server does.
    """
    if not NAME.fullmatch(name):
        raise CaiError(f"--name {name!r}: names of indexes have small letters, digits, and _ . - between them")
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)  # it logs errors that it also raises
    rounded = Counter[bool]()  # impacts by whether they were rounded

    def load(index: str, folder: Path) -> list[str]:
        keys = Keys(source.encoder.tokenizer.terms)
        documents = _documents(source, keys, rounded)
        server.load(index, _index_body(engine, source), documents, source.manifest.stats["vectors"])
        keys.write(folder)
        if source.topics:
            jsonl.write(folder / "queries.jsonl", _searches(engine, source, keys))
        share = rounded[True] / max(rounded.total(), 1)
        hint = "; impacts of `impact --bits 9` lose nothing" if share else ""
        loss = f"bits of large impacts: {share:.2%} were rounded to {SIGNIFICANT_BITS} significant bits{hint}"
        return [loss, TIES]

    settings = {"field": engine.type, "texts": source.texts.fingerprint("documents") if source.texts else None}
    try:
        return export_to_server(source, output, server, name, load, format=engine.name, settings=settings)
    except opensearchpy.OpenSearchException as error:
        raise CaiError(f"{server.address}: {server.quoted(error)}") from None
    finally:
        server.client.close()


def _index_body(engine: Engine, source: Source) -> Json:
    """The body of the request that creates the index."""
    properties: Json = {IMPACTS: {"type": engine.type}}
    if source.texts:
        properties[CONTENTS] = {"type": "text"}
    return {"mappings": {"dynamic": "strict", "_source": {"excludes": [IMPACTS]}, "properties": properties}}


def _documents(source: Source, keys: Keys, rounded: Counter[bool]) -> Iterator[Json]:
    """The documents to load, with _id and _source; counts the impacts by whether they are `rounded`."""
    raw = raw_documents(source.texts) if source.texts else None
    for id, vector in source.documents():
        impacts = keys.document_vector(vector)
        stored = {key: representable(impact) for key, impact in impacts.items()}
        rounded.update(stored[key] != impact for key, impact in impacts.items())
        fields = {IMPACTS: {str(key): impact for key, impact in stored.items()}} if stored else {}
        text = {CONTENTS: json.loads(raw(id))["contents"]} if raw else {}
        yield {"_id": id, "_source": fields | text}


def _searches(engine: Engine, source: Source, keys: Keys) -> Iterator[Json]:
    """The searches by impacts, whose scores times `scale` are sums of weight * impact."""
    for id, vector in source.queries.items():
        query: Json = {"match_none": {}}  # servers refuse queries without tokens
        scale = 1.0
        if weights := keys.query_vector(vector):
            scale = max(weights.values()) / MAX_WEIGHT
            query = engine.sparse({str(key): weight / scale for key, weight in weights.items()})
        yield {"id": id, "scale": scale, "body": {"size": HITS, "_source": False, "query": query}}


def representable(impact: int) -> int:
    """The nearest integer with at most 9 significant bits; halves are rounded to even."""
    step = 1 << max(impact.bit_length() - SIGNIFICANT_BITS, 0)
    return round(impact / step) * step
