"""Read Lucene indexes: their terms, the texts and metadata of documents, and what passes a filter."""

import json
import re
from binascii import a2b_base64
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from string import ascii_lowercase
from typing import Any

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import ENGLISH, Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.accents import ACCENTED, Variants
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.batch import LUCENE, MAPPER, QUERY, SEARCHER
from cai_pyserini.indexes.fields import IDS
from cai_pyserini.indexes.filters import BadFilter, Filter, boolean_query, lucene_query
from cai_pyserini.indexes.index_shards import Index, open_reader
from cai_pyserini.indexes.searcher import Searcher, Stored
from cai_pyserini.indexes.writer import FIELD

MOST_LISTED = 100_000  # matches of a filter's words to look up in another index, at most; 1,000 take about 10 ms
MOST_DOCUMENTS = 500_000  # ids to list for an index without metadata, at most; they are in the JVM's memory
MANY_DOCUMENTS = 1_000_000
MAX_STATES = 10_000  # largest automaton of a regular expression; Lucene's default
CLAUSE = re.compile(r"\((.*?)\)\^1\.0(?= \(|$)")  # a clause of a query that Lucene writes: (term)^1.0 (term)^1.0 …
TOTAL = re.compile(r'"totalHits":{"value":(\d+)')  # number of matching documents
HIT = re.compile(r'"fields":\[([^,]+),{"bytes":"([^"]*)","offset":0,"length":(\d+)')  # score and id, as JSON
READING = jvm.using_java("reading an index")


class LuceneIndex(Searcher):
    """What an open Lucene index has: the terms, texts and metadata of documents. Calls into Java go one at a time, see
    indexes.jvm."""

    engine = "Lucene"
    can_filter = True

    @READING
    def __init__(self, index: Index):
        super().__init__(index)
        java = jvm.java_class
        self._utils = java("io.anserini.index.IndexReaderUtils")
        self._term = java("org.apache.lucene.index.Term")
        self._bytes = java("org.apache.lucene.util.BytesRef")
        self._postings = java("org.apache.lucene.index.MultiTerms").getTermPostingsEnum
        self._reader = open_reader(index)
        self._searcher = java(SEARCHER)(self._reader)
        self._json = java(MAPPER)()
        sort_field, kind = java(LUCENE + "SortField"), java(LUCENE + "SortField$Type")
        self._by_id = sort_field("id", kind.STRING_VAL)
        self._index_order = java(LUCENE + "Sort")(sort_field.FIELD_DOC, self._by_id)
        self.term_documents: int = self._reader.getDocCount(FIELD)  # documents that have terms
        # Opened now, because an update may replace the folder.
        self._id_files = [(f / IDS).open(encoding="utf-8") for f in self._folders] if self.metadata else []

    @property
    def language(self) -> Language:
        return self._joint.language if self._joint else self.manifest.recipe["settings"].get("language", ENGLISH)

    @cached_property
    def _analyze(self) -> Analyzer:
        return Analyzer(self.language)

    @cached_property
    def _variants(self) -> Variants | None:
        if (prefix := self.word_prefix) is None:
            return None
        patterns = [f".*{ACCENTED}.*"]
        if (
            self.term_documents > MANY_DOCUMENTS
        ):  # fewer terms at a time, because Lucene holds those that it finds in memory
            patterns = [f"{letter}.*{ACCENTED}.*" for letter in ascii_lowercase]
            patterns.append(f"({ACCENTED}|[^a-z].*{ACCENTED}).*")
        terms = [term for pattern in patterns for term in self.terms(prefix + pattern)]
        return Variants(terms, prefix, self.language, self.term_documents, self.document_frequency)

    @cached_property
    def ids(self) -> list[str]:
        ids = [id for file in self._id_files for id in file.read().splitlines()]
        ids = ids or self._matching_ids()
        artifact.require_count(self.name, len(ids), self._reader.maxDoc())
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

    def _phrase(self, text: str) -> Any:
        """A Lucene query for documents that have the words of a text as a phrase. Raises BadFilter if the index has no
        words, or the text."""
        raise BadFilter(f"filter: {self.name} has no words; they are in an index of BM25, of the same run")

    def _phrase_query(self, text_index: Searcher, text: str, listed: list[str]) -> Any:
        """A Lucene query for documents that have the words of a text as a phrase in `text_index`. If that is another
        index, the matching ids are added to `listed`. Raises BadFilter for too many documents."""
        if text_index.manifest.digest == self.manifest.digest:
            return self._phrase(text)
        ids = text_index.with_phrase(text, MOST_LISTED - len(listed))
        listed += ids
        return self._id_query(ids)

    def _filter_query(self, filter: Filter, text_index: Searcher | None) -> Any:
        """A Lucene query for the documents that pass a filter."""
        return lucene_query(filter, self.metadata, partial(self._phrase_query, text_index or self, listed=[]))

    @READING
    def impacts(self, ids: Sequence[str], terms: Iterable[str]) -> dict[str, dict[str, int]]:
        numbers = ((self._utils.convertDocidToLuceneDocid(self._reader, id), id) for id in set(ids))
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

    @READING
    def documents_with(self, term: str) -> int:
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
                f"{self.name}: Lucene found {total and total[1]} documents, but of the best {hits}, {len(parsed)} "
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
