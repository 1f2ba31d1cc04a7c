"""Read Lucene indexes: their terms, the texts and metadata of documents, and what passes a filter."""

import json
import re
from binascii import a2b_base64
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from string import ascii_lowercase
from typing import Any, NamedTuple, Self

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import ENGLISH, WORD, Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import Kind, Value
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.accents import ACCENTED, Variants
from cai_pyserini.indexes.analyzer import Analyzer, lucene_analyzer
from cai_pyserini.indexes.batch import LUCENE, MAPPER, QUERY, SEARCHER
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.fields import IDS
from cai_pyserini.indexes.filters import BadFilter, Filter, boolean_query, lucene_query, require_field
from cai_pyserini.indexes.index_shards import Index, folders, open_reader, require_index
from cai_pyserini.indexes.writer import FIELD, raw_json

MOST_LISTED = 100_000  # matches of a filter's words to look up in another index, at most; 1,000 take about 10 ms
MOST_DOCUMENTS = 500_000  # ids to list for an index without metadata, at most; they are in the JVM's memory
MANY_DOCUMENTS = 1_000_000
MAX_STATES = 10_000  # largest automaton of a regular expression; Lucene's default
CLAUSE = re.compile(r"\((.*?)\)\^1\.0(?= \(|$)")  # a clause of a query that Lucene writes: (term)^1.0 (term)^1.0 …
TOTAL = re.compile(r'"totalHits":{"value":(\d+)')  # number of matching documents
HIT = re.compile(r'"fields":\[([^,]+),{"bytes":"([^"]*)","offset":0,"length":(\d+)')  # score and id, as JSON
READING = jvm.using_java("reading an index")


class Stored(NamedTuple):
    """A stored document."""

    id: str
    title: str
    contents: str  # indexed text, includes the title
    metadata: Mapping[str, Value] = {}

    @classmethod
    def parse(cls, id: str, raw: str) -> Self:
        """The document of stored JSON."""
        fields = json.loads(raw)
        return cls(id, fields.get("title", ""), fields["contents"], fields.get("metadata", {}))

    @property
    def raw(self) -> str:
        """The stored JSON."""
        return raw_json(self.id, self.title, self.contents, self.metadata)


class LuceneIndex:
    """An open Lucene index, or all its shards, for reading the terms and texts of documents.

    Threads can share it or open several: calls into Java go one at a time, see indexes.jvm.
    """

    @READING
    def __init__(self, index: Index):
        self.manifest = require_index(index)
        java = jvm.java_class
        self._utils = java("io.anserini.index.IndexReaderUtils")
        self._term = java("org.apache.lucene.index.Term")
        self._bytes = java("org.apache.lucene.util.BytesRef")
        self._postings = java("org.apache.lucene.index.MultiTerms").getTermPostingsEnum
        self._name, *_ = self._folders = folders(index)
        self._reader = open_reader(index)
        self._searcher = java(SEARCHER)(self._reader)
        self._json = java(MAPPER)()
        sort_field, kind = java(LUCENE + "SortField"), java(LUCENE + "SortField$Type")
        self._by_id = sort_field("id", kind.STRING_VAL)
        self._index_order = java(LUCENE + "Sort")(sort_field.FIELD_DOC, self._by_id)
        self.documents: int = self._reader.getDocCount(FIELD)
        # Opened now, because an update may replace the folder.
        self._id_files = [(f / IDS).open(encoding="utf-8") for f in self._folders] if self.metadata else []

    @property
    def language(self) -> Language:
        """The language of the analyzer that made the index's words."""
        joint = self.manifest.stats.get("settings", {}).get("joint")
        return (joint or self.manifest.recipe["settings"]).get("language", ENGLISH)

    @property
    def word_prefix(self) -> str | None:
        """The prefix of the index's word terms; None if it has no words."""
        if self.manifest.stats["kind"] == "bm25":
            return ""
        return WORD if self.manifest.stats.get("settings", {}).get("joint") else None

    @cached_property
    def _analyze(self) -> Analyzer:
        return Analyzer(self.language)

    @cached_property
    def _variants(self) -> Variants:
        prefix = self.word_prefix or ""
        patterns = [f".*{ACCENTED}.*"]
        if self.documents > MANY_DOCUMENTS:  # fewer terms at a time, because Lucene holds those that it finds in memory
            patterns = [f"{letter}.*{ACCENTED}.*" for letter in ascii_lowercase]
            patterns.append(f"({ACCENTED}|[^a-z].*{ACCENTED}).*")
        terms = [term for pattern in patterns for term in self.terms(prefix + pattern)]
        return Variants(terms, prefix, self.language, self.documents, self.document_frequency)

    @property
    def metadata(self) -> dict[str, Kind]:
        """The types of metadata fields by name."""
        return self.manifest.stats.get("metadata", {})

    @cached_property
    def ids(self) -> list[str]:
        """Document ids in index order."""
        ids = [id for file in self._id_files for id in file.read().splitlines()]
        ids = ids or self._matching_ids()
        artifact.require_count(self._name, len(ids), self._reader.maxDoc())
        return ids

    @cached_property
    def _build_id_query(self) -> Any:
        return batch.id_query(self._json)

    @READING
    def _matching_ids(self, query: Any = None, most: int = MOST_DOCUMENTS) -> list[str]:
        """Ids of the documents that match a Lucene query, by default of all, in index order. Raises BadFilter for more
        than `most`."""
        query = jvm.java_class(LUCENE + "MatchAllDocsQuery")() if query is None else query
        count = max(1, self._searcher.count(query))
        if count > most:
            raise BadFilter(
                f"filter: its words are in {count:,} documents; only bm25 can filter by words in more than "
                f"{MOST_LISTED:,} documents in total"
            )
        return self._best(query, self._index_order, count)[0]

    def _best(self, query: Any, order: Any, count: int) -> tuple[list[str], list[float]]:
        """Ids and scores of the first `count` documents for a Lucene query."""
        manager = jvm.java_class(LUCENE + "TopFieldCollectorManager")(order, count, None, count)
        return self._parse_hits(self._json.writeValueAsString(self._searcher.search(query, manager)), count)

    def _id_query(self, ids: Sequence[str]) -> Any:
        """A Lucene query for documents by id."""
        return build_query(self._build_id_query, json.dumps(ids))

    def _phrase_query(self, text_index: "LuceneIndex", text: str, listed: list[str]) -> Any:
        """A Lucene query for documents that have the words of a text as a phrase in `text_index`.

        If that is another index, the matching ids are added to `listed`. Raises BadFilter if it is not a text index,
        for a text without words, and for too many documents.
        """
        if text_index.manifest.stats["kind"] != "bm25":
            raise BadFilter(f"filter: {self._name} has no words; they are in an index of BM25, of the same run")
        builder = jvm.java_class("org.apache.lucene.util.QueryBuilder")(lucene_analyzer(text_index.language))
        if (query := builder.createPhraseQuery(FIELD, text)) is None:
            raise BadFilter(f"filter: {text[:50]!r} has no word that BM25 knows")
        if text_index.manifest.digest == self.manifest.digest:
            return query
        ids = text_index._matching_ids(query, MOST_LISTED - len(listed))
        listed += ids
        return self._id_query(ids)

    def _filter_query(self, filter: Filter, text_index: "LuceneIndex | None") -> Any:
        """A Lucene query for the documents that pass a filter."""
        return lucene_query(filter, self.metadata, partial(self._phrase_query, text_index or self, listed=[]))

    @READING
    def matching(self, filter: Filter) -> np.ndarray:
        """Which documents pass a filter, bool (documents,), in index order."""
        passes = np.zeros(self._reader.maxDoc(), bool)
        for segment in self.matches(filter).collector.getMatchingDocs():
            start, size = segment.context().docBase, segment.context().reader().maxDoc()
            bits = jvm.java_class("org.apache.lucene.util.FixedBitSet")(size)
            getattr(bits, "or")(segment.bits().iterator())
            words = np.array(bits.getBits(), np.int64)
            passes[start : start + size] = np.unpackbits(words.view(np.uint8), count=size, bitorder="little")
        return passes

    def counts(
        self,
        names: Sequence[str],
        most: int,
        filter: Filter | None = None,
        query: Any = None,
        text_index: "LuceneIndex | None" = None,
    ) -> dict[str, dict[str, int]]:
        """Field -> its `most` frequent values, most frequent first -> their numbers of documents.

        Counts documents that pass `filter` and match the Lucene query `query`, if given. Dates are counted by year. See
        LuceneSearcher.filtered for `text_index`. Raises BadFilter for a field that the index lacks.
        """
        kinds = {name: require_field(name, self.metadata, "facets") for name in names}
        matches = self.matches(filter, query, text_index)
        return {name: matches.values(name, kind, most) for name, kind in kinds.items()}

    @READING
    def matches(
        self, filter: Filter | None = None, query: Any = None, text_index: "LuceneIndex | None" = None
    ) -> Matches:
        """The documents that pass a filter and match a Lucene query, to count; `text_index` as in `counts`."""
        java = jvm.java_class
        filter_query = self._filter_query(filter, text_index) if filter else java(LUCENE + "MatchAllDocsQuery")()
        both = boolean_query(FILTER=[filter_query] if query is None else [filter_query, query])
        manager = java("org.apache.lucene.facet.FacetsCollectorManager")()
        return Matches(self._reader, self._searcher.search(both, manager), self._json)

    @READING
    def impacts(self, documents: Sequence[str], terms: Iterable[str]) -> dict[str, dict[str, int]]:
        """Document id -> term -> impact (frequency in a text index), for the terms that the document has.

        Documents that the index lacks are left out.
        """
        numbers = ((self._utils.convertDocidToLuceneDocid(self._reader, id), id) for id in set(documents))
        known = sorted((number, id) for number, id in numbers if number >= 0)
        impacts: dict[str, dict[str, int]] = {id: {} for _, id in known}
        for term in terms:
            postings: Any = self._postings(self._reader, FIELD, self._bytes(term.encode()))
            for number, id in known if postings else ():
                at = postings.docID()
                if (postings.advance(number) if at < number else at) == number:
                    impacts[id][term] = postings.freq()
        return impacts

    @READING
    def document(self, id: str) -> Stored | None:
        """A stored document; None if the index lacks it, or stores no documents."""
        raw = self._utils.documentRaw(self._reader, id)
        return None if raw is None else Stored.parse(id, raw)

    @READING
    def distinct_terms(self) -> np.ndarray:
        """The number of distinct terms per document of a text index, (documents,)."""
        vectors = self._reader.termVectors()
        terms = (vectors.get(document, FIELD) for document in range(self._reader.maxDoc()))
        return np.array([of_document.size() if of_document else 0 for of_document in terms])

    @READING
    def document_frequency(self, term: str) -> int:
        return self._reader.docFreq(self._term(FIELD, term))

    def variants_of(self, word: str) -> list[str]:
        """The words that differ from an analyzed word by accents alone."""
        return [] if self.word_prefix is None else [*self._variants.of(word)]

    @READING
    def documents_with(self, term: str) -> int:
        """The number of documents with a term or, if it is a word, one of its variants."""
        prefix = self.word_prefix or ""
        if not (variants := self.variants_of(term.removeprefix(prefix))):
            return self.document_frequency(term)
        terms = (term, *(prefix + variant for variant in variants))
        queries = [jvm.java_class(LUCENE + "TermQuery")(self._term(FIELD, each)) for each in terms]
        return self._searcher.count(boolean_query(SHOULD=queries))

    @READING
    def terms(self, pattern: str) -> list[str]:
        """The terms that match a regular expression of Lucene."""
        java = jvm.java_class
        query = java(LUCENE + "RegexpQuery")(
            self._term(FIELD, pattern),
            java("org.apache.lucene.util.automaton.RegExp").NONE,
            0,
            java(LUCENE + "RegexpQuery").DEFAULT_PROVIDER,
            MAX_STATES,
            java(LUCENE + "MultiTermQuery").SCORING_BOOLEAN_REWRITE,
        )
        found: str = query.rewrite(self._searcher).toString(FIELD)  # one call, not one per term
        return CLAUSE.findall(found)

    @READING
    def most_similar(self, term: str, prefix: int, edits: int) -> tuple[str, Stored | None] | None:
        """The most frequent term within `edits` edits, 1 or 2, of a term with the same first `prefix` characters, and
        the first document that has it."""
        java = jvm.java_class
        terms = java("org.apache.lucene.index.MultiTerms").getTerms(self._reader, FIELD)
        matches = java("org.apache.lucene.search.FuzzyTermsEnum")(terms, self._term(FIELD, term), edits, prefix, True)
        similar: dict[str, int] = {}
        while reference := matches.next():
            similar[reference.utf8ToString()] = matches.docFreq()
        if not similar:
            return None
        best = max(similar, key=lambda term: similar[term])
        first = self._postings(self._reader, FIELD, self._bytes(best.encode())).nextDoc()
        return best, self.document(self._utils.convertLuceneDocidToDocid(self._reader, first))

    @READING
    def bm25_weight(self, document: str, term: str, k1: float, b: float) -> float:
        return self._utils.getBM25AnalyzedTermWeightWithParameters(self._reader, document, term, float(k1), float(b))

    def _parse_hits(self, top_docs: str, hits: int) -> tuple[list[str], list[float]]:
        """Ids and scores of the best `hits` documents in a TopDocs as JSON. Raises CaiError if any is missing."""
        # json.loads takes three times as long: a search for 1,000 hits (BM25 of hpo) would be a quarter slower
        parsed, total = HIT.findall(top_docs), TOTAL.search(top_docs)
        if total is None or len(parsed) != min(hits, int(total[1])):
            raise CaiError(
                f"{self._name}: Lucene found {total and total[1]} documents, but of the best {hits}, {len(parsed)} "
                "could be read; every document needs a field `id` with doc values, as Anserini writes it"
            )
        ids = [a2b_base64(id)[: int(length)].decode() for _, id, length in parsed]
        return ids, [float(score) for score, _, _ in parsed]

    @jvm.using_java("closing an index")
    def close(self) -> None:
        self._reader.close()
        for file in self._id_files:
            file.close()


def build_query(build: Any, text: str) -> Any:
    """Call a handle that makes a Lucene query from a string; None if the query is empty."""
    query = build.invokeWithArguments(jvm.java_class("java.util.Collections").singletonList(text))
    return query and jvm.start().cast(QUERY, query)
