"""What all search engines have in common, and what each says it can do.

An engine is a subclass of Searcher in a file of its own, and an entry of `engines.ENGINES`. It has to have `_search`;
everything else has a default, which is honest: it stores no documents, filters nothing and explains nothing, until the
engine overrides it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from cai_pyserini.collections.contract import Record
from cai_pyserini.core import artifact
from cai_pyserini.core.config import ENGLISH, GRAM, WORD, Joint, Language, document_of
from cai_pyserini.core.metadata import Kind, Value
from cai_pyserini.indexes.accents import Variants
from cai_pyserini.indexes.filters import BadFilter, Filter, Words
from cai_pyserini.indexes.writer import raw_json
from cai_pyserini.runs.trec import NO_HITS, Ranking
from cai_pyserini.vectors.queries import Query

if TYPE_CHECKING:
    from cai_pyserini.indexes.facets import Matches

HITS = 1 << 16  # hits per batch, at most


class Stored(NamedTuple):
    """A stored document."""

    id: str
    title: str
    contents: str  # indexed text, includes the title
    metadata: Mapping[str, Value] = {}
    start: int = 0  # of a passage: where it begins in the text of its document, in characters
    passages: int = 0  # of its document; of a whole document 0
    text: str | None = None  # of a passage whose contents are not its title and text
    language: str = ""  # in a collection of several languages

    @classmethod
    def parse(cls, id: str, raw: str) -> Self:
        """The document of stored JSON."""
        fields = json.loads(raw)
        others = {key: fields[key] for key in ("metadata", "start", "passages", "text", "language") if key in fields}
        return cls(id, fields.get("title", ""), fields["contents"], **others)

    @property
    def raw(self) -> str:
        """The stored JSON."""
        place = self.start, self.passages
        record = Record("", self.id, self.title, self.text or "", self.metadata, *place, language=self.language)
        return raw_json(record, self.contents)


@dataclass(frozen=True)
class Term:
    """A query term's contribution to a score."""

    term: str
    query: float  # weight in the query; BM25: occurrences
    document: float  # weight in the index, IDF included; BM25: occurrences, except in a joint index
    idf: float | None  # BM25's; None for SPLADE and in a joint index
    impact: int | None  # quantized weight, as in the index; None for BM25
    contribution: float


class Scored(NamedTuple):
    """A score and the terms that add up to it; no terms for dense vectors."""

    score: float
    terms: list[Term]  # largest contribution first

    @classmethod
    def of(cls, terms: Iterable[Term]) -> "Scored":
        ordered = sorted(terms, key=lambda term: -term.contribution)
        return cls(math.fsum(term.contribution for term in ordered), ordered)


class Searcher:
    """An open index of any engine. Queries are texts, {term: weight} or vectors, as the index takes
    them. Threads can share it."""

    engine = "an engine"  # as messages name it
    can_filter = False  # by metadata of its own
    has_phrases = False  # whether filters can have words
    most_hits = 2**31 - 1  # that the engine returns for a query
    cuts_ties = False  # whether it can leave out any of the documents with the score of the last hit

    def __init__(self, index: Path):
        """Raises CaiError for a folder that is not an index."""
        self.name, self.manifest = index, artifact.require(index, "index", "export")
        self.documents: int = self.manifest.stats["documents"]
        self.query_scale: int = self.manifest.stats.get("query_scale", 1)  # impact of a weight of 1 in queries
        self.document_scale: float = self.manifest.stats.get("document_scale", 1)  # and in documents
        # distinguishes the documents' words from other terms; None if the index has no words
        self.word_prefix: str | None = WORD if self.joint else None

    @property
    def language(self) -> Language:
        """The language of the analyzer that made the index's words; English if it has none."""
        return self.joint.language if self.joint else self.manifest.recipe["settings"].get("language", ENGLISH)

    @property
    def metadata(self) -> dict[str, Kind]:
        """The types of metadata fields by name."""
        return self.manifest.stats.get("metadata", {})

    @cached_property
    def joint(self) -> Joint | None:
        """How the words of BM25 are in an index of impacts; None if they are not."""
        joint = self.manifest.stats.get("settings", {}).get("joint")
        return Joint.model_validate({"alpha": {}, **joint}) if joint else None  # alpha is of queries

    def search(self, query: Query, hits: int) -> Ranking:
        (ranking,) = self.search_all([query], hits)
        return ranking

    def search_all(self, queries: Sequence[Query], hits: int, threads: int = 1) -> list[Ranking]:
        """The best `hits` documents for each query, ties by document id. Queries without terms, and zero vectors, as of
        unknown words, find nothing."""
        hits = max(1, min(hits, self.documents))
        expanded = self.with_variants(queries, threads)
        rankings = [NO_HITS] * len(queries)
        found = (number for number, query in enumerate(expanded) if not _is_empty(query))
        for part in batched(found, max(1, HITS // hits)):
            results = self._search([expanded[number] for number in part], hits, threads)
            for number, ranking in zip(part, results, strict=True):
                rankings[number] = ranking
        return rankings

    def unranked(self, hits: int) -> Ranking:
        """The first documents that pass the filter, with scores of 0; none if there is no filter."""
        return NO_HITS

    def search_many(self, queries: Mapping[str, Query], hits: int, threads: int) -> Iterator[dict[str, Ranking]]:
        """Yield the best documents for many queries by query id, batch by batch, in the order of the ids."""
        for ids in batched(sorted(queries), max(1, HITS // hits)):
            yield dict(zip(ids, self.search_all([queries[id] for id in ids], hits, threads), strict=True))

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> Sequence[Ranking]:
        """The best documents for queries that have terms, their variants included."""
        raise NotImplementedError

    def filtered(self, filter: Filter, filter_index: "Searcher | None" = None) -> Self:
        """A view whose searches find only documents that pass a filter, with the same scores.

        `filter_index` is an index of the same documents that has their words or, if this one cannot filter, their
        metadata. Raises BadFilter if they lack a field or words that the filter needs.
        """
        raise BadFilter(f"{self.name} has no metadata and cannot be filtered")

    def explain(self, query: Query, ids: Sequence[str]) -> dict[str, Scored]:
        """The scores of documents with their terms, without documents that the index lacks; empty if it cannot tell."""
        if not isinstance(query, Mapping):
            return {}
        (terms,) = self.with_variants([query])
        assert isinstance(terms, Mapping)
        word_scale = self.joint.scale if self.joint else 1.0
        scale = self.query_scale * self.document_scale
        return {
            id: Scored.of(
                Term(
                    term,
                    terms[term] / self.query_scale,
                    impact / (word_scale if term.startswith((WORD, GRAM)) else self.document_scale),
                    None,
                    impact,
                    terms[term] * impact / scale,
                )
                for term, impact in impacts.items()
            )
            for id, impacts in self.impacts(ids, terms).items()
        }

    def best_of(self, query: Query, ids: Sequence[str]) -> str | None:
        """The best of some documents for a query; None if no term of the query is in any of them."""
        scored = self.explain(query, ids)
        return max(scored, key=lambda id: scored[id].score, default=None)

    def impacts(self, ids: Sequence[str], terms: Iterable[str]) -> dict[str, dict[str, int]]:
        """Document id -> term -> impact (frequency in a text index), for the terms that the document has, without
        documents that the index lacks."""
        return {}

    def read(self, ids: Sequence[str]) -> dict[str, Stored]:
        """Stored documents by id, without those that the index lacks; empty if it stores no documents."""
        return {}

    def document(self, id: str) -> Stored | None:
        """A stored document; None if the index lacks it, or stores no documents."""
        return self.read([id]).get(id)

    @property
    def ids(self) -> Sequence[str]:
        """Document ids in index order."""
        raise BadFilter(f"{self.name} does not list its documents")

    @property
    def documents_in_passages(self) -> int:
        """The number of documents whose passages it has."""
        return len({*map(document_of, self.ids)})

    def matching(self, filter: Filter) -> np.ndarray:
        """Which documents pass a filter, bool (documents,), in the order of `ids`."""
        raise BadFilter(f"{self.name} does not list its documents")

    def with_words(self, words: Words, most: int) -> list[str]:
        """The ids of the documents or passages that have words. Raises BadFilter for more than `most`."""
        raise BadFilter(f"filter: {self.name} has no words; they are in an index of BM25, of the same run")

    def matches(
        self, filter: Filter | None = None, query: Query | None = None, filter_index: "Searcher | None" = None
    ) -> "Matches | None":
        """The documents that pass a filter and have a word of a query, to count; None if it cannot count them."""
        return None

    def document_frequency(self, term: str) -> int:
        return 0

    def documents_with(self, term: str) -> int:
        """The number of documents with a term or, if it is a word, one of its variants."""
        return self.document_frequency(term)

    def similar_words(self, word: str, edits: int) -> dict[str, int]:
        """The words of documents within `edits` edits, 1 or 2, of a word, and the numbers of documents that have them,
        or their stems; only the most frequent ones if the index has stems alone."""
        return {}

    @property
    def _variants(self) -> Variants | None:
        """Words that differ by accents alone, see indexes.accents."""
        return None

    def variants_of(self, word: str) -> Sequence[str]:
        """The words that differ from an analyzed word by accents alone, with which it is searched for."""
        return [*self._variants.of(word)] if self._variants else ()

    def with_variants(self, queries: Sequence[Query], threads: int = 1) -> list[Query]:
        """The queries as they are searched with: with the index's variants of their words."""
        if self._variants is None:
            return [*queries]
        return [{**query, **self._variants.added(query)} if isinstance(query, Mapping) else query for query in queries]

    def close(self) -> None:
        """Nothing to close, by default."""


def _is_empty(query: Query) -> bool:
    """Whether a query has no terms, or is a zero vector, as of unknown words."""
    return not (query.any() if isinstance(query, np.ndarray) else query)
