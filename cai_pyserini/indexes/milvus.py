"""Search a collection that `cai-pyserini export milvus` has written; documents, impacts and metadata are in Milvus.

A document has the fields `id`, `impacts` (a sparse vector) and `raw` (the JSON that Lucene indexes store, in pieces,
because a string has at most 65,535 bytes), and one per field of metadata: numbers and the days of dates as doubles,
strings, and arrays of strings. Scores are those of Lucene, up to single precision: the same integers are multiplied.
"""

import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property, lru_cache, partial
from itertools import batched
from pathlib import Path
from typing import Any, Self

import grpc
from pymilvus import MilvusClient, MilvusException
from pymilvus.client.types import LoadState

from cai_pyserini.core import artifact
from cai_pyserini.core.config import PASSAGE, WORD
from cai_pyserini.core.errors import CaiError, Unavailable
from cai_pyserini.core.flags import without_password
from cai_pyserini.core.metadata import Kind
from cai_pyserini.indexes.accents import ACCENTED, Variants
from cai_pyserini.indexes.filters import CONTENTS, BadFilter, Combined, Filter, Like, Range, require_field
from cai_pyserini.indexes.searcher import Searcher, Stored
from cai_pyserini.runs.trec import NO_HITS, Ranking
from cai_pyserini.vectors.queries import Query

FIELD, RAW = "impacts", "raw"
TERMS, FREQUENCIES = "terms.txt", "document_frequencies.txt"  # of an export: a line per key of the sparse vectors
ADDRESS, TOKEN = "MILVUS_URI", "MILVUS_TOKEN"  # environment variables
TIMEOUT = 10.0  # seconds of a request; if its connection is lost, pymilvus connects again, and repeats it
READ_AHEAD = 10  # documents per request; one each would take longer than the search
READ = 1000  # passages per request
KEPT = 16  # answers with so many documents
NO_DOCUMENT = 'id == ""'  # a boolean expression


def connect(uri: str) -> Any:
    """A client of the server or file `uri`; the environment variable MILVUS_TOKEN has the server's token."""
    if "://" not in uri and not uri.endswith(".db"):
        raise CaiError("the URI is neither the address of a server, http://HOST:19530, nor a file NAME.db")
    for name in ("pymilvus", "grpc"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log errors that they also raise
    try:
        return MilvusClient(uri, token=os.environ.get(TOKEN, ""), timeout=TIMEOUT)
    except (MilvusException, ValueError) as error:
        reason = getattr(error, "message", "no address of a server")  # a ValueError can quote the password
        raise CaiError(
            f"{without_password(uri)}: Milvus cannot be reached or opened ({without_password(reason)})"
        ) from None


@contextmanager
def asking(address: str) -> Iterator[None]:
    """Raise Unavailable, with the address, for a request in this context that Milvus refuses or does not answer."""
    try:
        yield
    except MilvusException as error:
        raise Unavailable(f"{address}: {error.message}") from None
    except grpc.RpcError as error:  # such as a timeout
        reason = error.details() if isinstance(error, grpc.Call) else "no answer"
        raise Unavailable(f"{address}: {reason}") from None


def count(client: Any, collection: str, filter: str = "") -> int:
    """The number of documents that searches see, or of those that pass a filter."""
    (row,) = client.query(collection, filter, output_fields=["count(*)"], consistency_level="Strong", timeout=TIMEOUT)
    return int(row["count(*)"])


def column(field: str) -> str:
    """The name in Milvus of a field of metadata; other characters than ASCII letters, digits and _ are numbers."""
    return "metadata_" + re.sub(r"\W", lambda other: f"_{ord(other[0]):x}_", field, flags=re.ASCII)


class MilvusSearcher(Searcher):
    """The collection of the output folder `index` of an export.

    It stays with one collection, even if a later export moves the alias. MILVUS_URI in the environment replaces the
    address in the folder. Raises CaiError for a collection without some of the documents, and if Milvus cannot be
    reached; methods raise Unavailable.
    """

    engine = "Milvus"
    can_filter = True
    most_hits = 16_384
    cuts_ties = True

    def __init__(self, index: Path):
        super().__init__(index)
        folder, place = self.name, self.manifest.stats["milvus"]
        self._keys, self._frequencies = _terms(folder)
        uri = os.environ.get(ADDRESS) or place["uri"]
        self._collection, self._address = place["collection"], without_password(uri)
        self._filter = ""
        self._together: dict[str, tuple[str, ...]] = {}  # id -> documents near it in the last rankings
        self._read = lru_cache(maxsize=KEPT)(self._read_documents)
        self._client = connect(uri)
        with asking(self._address):
            if not self._client.has_collection(self._collection, timeout=TIMEOUT):
                raise CaiError(f"{self._address} has no collection {self._collection}: export {folder} again")
            if self._client.get_load_state(self._collection, timeout=TIMEOUT)["state"] != LoadState.Loaded:
                self._client.load_collection(self._collection)
            artifact.require_count(folder, count(self._client, self._collection), self.documents)

    def document_frequency(self, term: str) -> int:
        return self._frequencies[self._keys[term]] if term in self._keys else 0

    @cached_property
    def documents_in_passages(self) -> int:
        first = f'id like "%{PASSAGE}0"'
        with asking(self._address):
            return count(self._client, self._collection, first)

    @cached_property
    def _variants(self) -> Variants | None:
        if self.word_prefix is None:
            return None
        words = filter(re.compile(f"{WORD}.*{ACCENTED}").match, self._keys)
        return Variants(words, WORD, self.language, self.documents, self.document_frequency)

    def filtered(self, filter: Filter, filter_index: Searcher | None = None) -> Self:
        view = copy(self)
        view._filter = expression(filter, self.metadata)
        return view

    def search_all(self, queries: Sequence[Query], hits: int, threads: int = 1) -> list[Ranking]:
        if min(hits, self.documents) > self.most_hits:
            raise CaiError(f"Milvus returns at most {self.most_hits:,} documents for a query, not {hits:,}")
        self._together.clear()
        return super().search_all(queries, hits, threads)

    def impacts(self, ids: Sequence[str], terms: Iterable[str]) -> dict[str, dict[str, int]]:
        keys = {term: self._keys[term] for term in terms if term in self._keys}
        vectors = {row["id"]: row[FIELD] for row in self._get(ids, FIELD)}
        return {
            id: {term: int(vector[key]) for term, key in keys.items() if key in vector}
            for id, vector in vectors.items()
        }

    def best_of(self, query: Query, ids: Sequence[str]) -> str | None:
        view = copy(self)
        view._filter = _has_id(ids)
        return next(iter(view.search(query, 1).ids), None)

    def read(self, ids: Sequence[str]) -> dict[str, Stored]:
        if not self.manifest.stats["raw"]:
            return {}
        if len(ids) == 1:
            return self._read(self._together.get(ids[0], (*ids,)))
        return {id: stored for part in batched(ids, READ) for id, stored in self._read_documents(part).items()}

    def close(self) -> None:
        self._client.close()

    def _vector(self, query: Query) -> dict[int, float]:
        """A query by key, without terms that no document has."""
        assert isinstance(query, Mapping)
        return {self._keys[term]: float(weight) for term, weight in query.items() if term in self._keys}

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> Sequence[Ranking]:
        vectors = [*map(self._vector, queries)]
        with_terms = [number for number, vector in enumerate(vectors) if vector]
        rankings = [NO_HITS] * len(queries)
        found = self._search_vectors([vectors[number] for number in with_terms], hits)
        for number, ranking in zip(with_terms, found, strict=True):
            rankings[number] = ranking
        return rankings

    def _search_vectors(self, vectors: list[dict[int, float]], hits: int) -> list[Ranking]:
        if not vectors:
            return []
        limits = {"limit": hits, "filter": self._filter, "timeout": TIMEOUT}
        with asking(self._address):
            found = self._client.search(self._collection, vectors, anns_field=FIELD, output_fields=["id"], **limits)
        scale = self.document_scale * self.query_scale
        rankings = [sorted((-hit["distance"], hit["id"]) for hit in ranking) for ranking in found]
        for ranking in rankings:
            for group in batched((id for _, id in ranking), READ_AHEAD):
                self._together.update(dict.fromkeys(group, group))
        return [
            Ranking([id for _, id in ranking], [-negative / scale for negative, _ in ranking]) for ranking in rankings
        ]

    def _get(self, ids: Sequence[str], field: str) -> list[dict[str, Any]]:
        if not ids:
            return []
        with asking(self._address):
            return [*self._client.query(self._collection, _has_id(ids), output_fields=["id", field], timeout=TIMEOUT)]

    def _read_documents(self, ids: Sequence[str]) -> dict[str, Stored]:
        return {row["id"]: Stored.parse(row["id"], "".join(row[RAW])) for row in self._get(ids, RAW)}


def _terms(folder: Path) -> tuple[dict[str, int], list[int]]:
    """The keys of terms, and the document frequencies by key."""
    terms, frequencies = ((folder / name).read_bytes().decode().split("\n")[:-1] for name in (TERMS, FREQUENCIES))
    return {term: key for key, term in enumerate(terms)}, [*map(int, frequencies)]


def expression(filter: Filter, kinds: Mapping[str, Kind]) -> str:
    """The boolean expression of Milvus for a filter. Raises BadFilter for words and unknown fields."""
    if isinstance(filter, Combined):
        parts = [expression(each, kinds) for each in filter.filters]
        joined = (" and " if filter.operator == "AND" else " or ").join(parts) or NO_DOCUMENT
        return f"(not ({joined}))" if filter.operator == "NOT" else f"({joined})"
    if filter.field == CONTENTS:
        raise BadFilter("filter: the index is in Milvus, which filters by metadata, not by words")
    kind, name = require_field(filter.field, kinds, "filter"), column(filter.field)
    has_value = f"{name} is not null"  # or NOT would exclude documents without a value, as in SQL
    if isinstance(filter, Range):
        bounds = {">=": filter.first, "<=": filter.last}
        compared = [f"{name} {sign} {bound!r}" for sign, bound in bounds.items() if math.isfinite(bound)]
        return f"({' and '.join([has_value, *compared])})"
    if isinstance(filter, Like):
        if kind == "list":
            raise BadFilter(f"filter: {filter.field} is a list in Milvus, which matches no patterns with * and ?")
        return f"({has_value} and {name} like {json.dumps(_like(filter.pattern), ensure_ascii=False)})"
    if not filter.values:
        return NO_DOCUMENT
    values = _literals(filter.values)
    matches = f"array_contains_any({name}, {values})" if kind == "list" else f"{name} in {values}"
    return f"({has_value} and {matches})"


def _has_id(ids: Sequence[str]) -> str:
    """The expression for documents with these ids, which MilvusClient.get does not escape."""
    return f"id in {_literals(ids)}"


def _like(pattern: str) -> str:
    """A pattern as that of LIKE in SQL."""
    signs = {"*": "%", "?": "_"}
    literal = partial(re.compile(r"([%_\\])").sub, r"\\\1")
    return re.sub(r"\\(.)|(.)", lambda found: signs.get(found[2]) or literal(found[1] or found[2]), pattern, flags=re.S)


def _literals(values: Sequence[str]) -> str:
    """Strings as a list in an expression: as JSON, but characters outside ASCII are not escaped."""
    return json.dumps(values, ensure_ascii=False)
