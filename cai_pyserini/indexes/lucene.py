"""Search Lucene indexes, and read their terms, and the texts and metadata of documents.

Queries, similarities and the order of hits are Anserini's, except that the ids of hits come from doc values, which ties
are sorted by anyway, instead of stored fields, which would be read whole for every hit.
"""

import json
import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from heapq import nlargest
from itertools import islice
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Self

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import Bm25Parameters, document_of
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import processors
from cai_pyserini.indexes import batch, jvm
from cai_pyserini.indexes.accents import ACCENTED, Variants
from cai_pyserini.indexes.analyzer import Analyzer, exact_words
from cai_pyserini.indexes.batch import LUCENE, MAPPER, QUERY, REFERENCE, SEARCHER, STRING, Batch
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import BadFilter, Filter, Words, any_term_query, boolean_query, lucene_query
from cai_pyserini.indexes.searcher import Searcher, Stored
from cai_pyserini.indexes.writer import FIELD, IDS, delimited_analyzer
from cai_pyserini.runs.rankings import Numbers
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.vectors.json_vectors import DELIMITER
from cai_pyserini.vectors.queries import Query

MOST_LISTED = 100_000  # matches of a filter's words to look up in another index, at most; 1,000 take about 10 ms
MOST_DOCUMENTS = 500_000  # ids to list for an index without metadata, at most; they are in the JVM's memory
MANY_DOCUMENTS = 1_000_000
MOST_FORMS = 5  # stems whose words are looked for in documents
MAX_STATES = 10_000  # largest automaton of a regular expression; Lucene's default
CLAUSE = re.compile(r"\((.*?)\)\^1\.0(?= \(|$)")  # a clause of a query that Lucene writes: (term)^1.0 (term)^1.0 …
TOTAL = re.compile(r'"totalHits":{"value":(\d+)')  # number of matching documents
HIT = re.compile(r'"fields":\[([^,]+),{"bytes":"([^"]*)","offset":0,"length":(\d+)')  # score and id, as JSON
READER = "org.apache.lucene.index.IndexReader"
READING = jvm.using_java("reading an index")


class LuceneSearcher(Searcher):
    """An open Lucene index to search with {term: weight}, and with what else subclasses build queries of. Calls into
    Java go one at a time, see indexes.jvm; only the queries of one call run in parallel."""

    engine = "Lucene"
    can_filter = True
    _searches: dict[type, Batch]  # by type of queries; subclasses compile them

    @READING
    def __init__(self, index: Path):
        super().__init__(index)
        java = jvm.java_class
        self._utils = java("io.anserini.index.IndexReaderUtils")
        self._term = java("org.apache.lucene.index.Term")
        self._bytes = java("org.apache.lucene.util.BytesRef")
        self._postings = java("org.apache.lucene.index.MultiTerms").getTermPostingsEnum
        self._reader = self._open()
        self._searcher = java(SEARCHER)(self._reader)
        self._json = java(MAPPER)()
        sort_field, kind = java(LUCENE + "SortField"), java(LUCENE + "SortField$Type")
        by_id, sort = sort_field("id", kind.STRING_VAL), java(LUCENE + "Sort")
        self._index_order = sort(sort_field.FIELD_DOC, by_id)
        self._order = sort(sort_field.FIELD_SCORE, by_id)  # Anserini's
        self.term_documents: int = self._reader.getDocCount(FIELD)  # documents that have terms
        # Opened now, because an update may replace the folder.
        self._id_file = (index / IDS).open(encoding="utf-8") if (index / IDS).is_file() else None
        self._filter: Any = None  # a Lucene query
        builder = "org.apache.lucene.util.QueryBuilder"
        make = batch.virtual(builder, "createBooleanQuery", QUERY, STRING, STRING)
        make = batch.bind(make, 0, java(builder)(delimited_analyzer("delimitedBoost")))
        raw = batch.static("io.anserini.index.IndexReaderUtils", "documentRaw", STRING, READER, STRING)
        self._read_raw = Batch(batch.bind(raw, 0, self._reader), self._json)
        self._builders: dict[type, Any] = {dict: batch.bind(make, 0, FIELD)}  # type of queries -> handle

    def _open(self) -> Any:
        """A Lucene reader. Raises CaiError if documents are missing."""
        with jvm.using_java(f"opening {self.name}"):
            reader = self._utils.getReader(str(self.name.absolute()))  # the JVM has the working directory it began in
            artifact.require_count(self.name, reader.numDocs(), self.documents)
            return jvm.start().cast(READER, reader)  # or pyjnius picks the wrong methods

    def _compile_searches(self, limited: Callable[[Any], Any]) -> dict[type, Batch]:
        """The searches by type of queries; `limited` limits a handle that builds queries to some documents."""
        return {
            kind: Batch(batch.one_step_search(self._searcher, limited(build), self._order), self._json)
            for kind, build in self._builders.items()
        }

    @jvm.using_java("filtering")
    def filtered(self, filter: Filter, filter_index: Searcher | None = None) -> Self:
        return self._limited_to(self._filter_query(filter, filter_index))

    def _limited_to(self, filter: Any) -> Self:
        """A view whose searches find only documents that match a Lucene query."""
        searches = self._filtered_searches  # cached before the copy
        view = copy(self)
        view._searches, view._filter = searches, filter
        return view

    @READING
    def best_of(self, query: Query, ids: Sequence[str]) -> str | None:
        found = self._limited_to(any_term_query("id", ids)).search(query, 1)
        return next(iter(found.ids), None)

    @cached_property
    def _filtered_searches(self) -> dict[type, Batch]:
        return self._compile_searches(partial(batch.filtered_query, filter=self._current_filter))

    @cached_property
    def _current_filter(self) -> Any:
        return jvm.java_class(REFERENCE)()

    @READING
    def lucene_query(self, query: Query) -> Any:
        """The Lucene query; None for a query without terms."""
        (query,) = self.with_variants([query])
        build = self._builders[str if isinstance(query, str) else dict]
        made = build.invokeWithArguments(jvm.java_class("java.util.Collections").singletonList(as_text(query)))
        return made and jvm.start().cast(QUERY, made)

    @READING
    def matches(
        self, filter: Filter | None = None, query: Query | None = None, filter_index: Searcher | None = None
    ) -> Matches:
        java = jvm.java_class
        conditions = [self._filter_query(filter, filter_index)] if filter else []
        if query is not None:
            conditions.append(self.lucene_query(query) or java(LUCENE + "MatchNoDocsQuery")())
        every = conditions or [java(LUCENE + "MatchAllDocsQuery")()]
        manager = java("org.apache.lucene.facet.FacetsCollectorManager")()
        found = self._searcher.search(boolean_query(FILTER=every), manager)
        return Matches(self._reader, found, self._json, lambda: self.document_numbers)

    def matching(self, filter: Filter) -> np.ndarray:
        return self.matches(filter).passes

    @READING
    def unranked(self, hits: int) -> Ranking:
        ids = [] if self._filter is None else self._first_ids(self._filter, hits)
        return Ranking(ids, np.zeros(len(ids)))

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> Sequence[Ranking]:
        rankings: dict[int, Ranking] = {}
        for kind in self._builders:
            numbers = [number for number, query in enumerate(queries) if isinstance(query, kind)]
            arguments = [(as_text(queries[number]), str(hits), str(hits)) for number in numbers]
            for number, top_docs in zip(numbers, self._run(self._searches[kind], arguments, threads), strict=True):
                ids, scores = self._parse_hits(top_docs, hits)
                rankings[number] = Ranking(ids, self._from_lucene(np.array(scores)))
        return [rankings[number] for number in range(len(queries))]

    def _run(self, search: Batch, arguments: Sequence[Sequence[str]], threads: int) -> Iterator[str]:
        """The results as JSON."""
        for part in batch.parts(arguments):
            with jvm.using_java("searching"):
                if self._filter is not None:
                    self._current_filter.set(self._filter)
                results = search(part, threads)
            yield from results

    def _from_lucene(self, scores: np.ndarray) -> np.ndarray:
        """Convert Lucene's scores, best first."""
        raise NotImplementedError

    @cached_property
    def _analyze(self) -> Analyzer:
        return Analyzer(self.language)

    @cached_property
    def _variants(self) -> Variants | None:
        if (prefix := self.word_prefix) is None:
            return None
        terms = self._accented_terms(prefix, FIELD)
        return Variants(terms, prefix, self.language, self.term_documents, self.document_frequency)

    def _accented_terms(self, prefix: str, field: str) -> list[str]:
        patterns = [f".*{ACCENTED}.*"]
        if self.term_documents > MANY_DOCUMENTS:  # Lucene holds the terms that it finds at a time in memory
            patterns = [f"{letter}.*{ACCENTED}.*" for letter in ascii_lowercase]
            patterns.append(f"({ACCENTED}|[^a-z].*{ACCENTED}).*")
        return [term for pattern in patterns for term in self.terms(prefix + pattern, field)]

    @cached_property
    def ids(self) -> list[str]:
        ids = self._id_file.read().splitlines() if self._id_file else self._matching_ids()
        artifact.require_count(self.name, len(ids), self._reader.maxDoc())
        return ids

    @cached_property
    def document_numbers(self) -> np.ndarray:
        """The number of the document of each passage, from 0, int32 (passages,), in the order of `ids`."""
        return Numbers[str]().of([*map(document_of, self.ids)]).astype(np.int32)

    @property
    def documents_in_passages(self) -> int:
        return int(self.document_numbers.max(initial=-1)) + 1

    @READING
    def _matching_ids(self, query: Any = None, most: int = MOST_DOCUMENTS) -> list[str]:
        """Ids of the documents that match a Lucene query, by default of all, in index order. Raises BadFilter for more
        than `most`."""
        query = jvm.java_class(LUCENE + "MatchAllDocsQuery")() if query is None else query
        count = self._searcher.count(query)
        if count > most:
            raise BadFilter(
                f"filter: its words are in {count:,} documents; only bm25 can filter by words in more than "
                f"{MOST_LISTED:,} documents in total"
            )
        return self._first_ids(query, count)

    def _first_ids(self, query: Any, most: int) -> list[str]:
        """Ids of the first documents that match a Lucene query, in index order."""
        most = max(1, most)
        manager = jvm.java_class(LUCENE + "TopFieldCollectorManager")(self._index_order, most, None, self.documents)
        return self._parse_hits(self._json.writeValueAsString(self._searcher.search(query, manager)), most)[0]

    def _words_query(self, text_index: Searcher, listed: list[str], words: Words) -> Any:
        """A Lucene query for documents that have words in `text_index`, whose ids are added to `listed`. Raises
        BadFilter for too many, and if the index or the text has no words."""
        ids = text_index.with_words(words, MOST_LISTED - len(listed))
        listed += ids
        return any_term_query("id", ids)

    def _filter_query(self, filter: Filter, text_index: Searcher | None) -> Any:
        """A Lucene query for the documents that pass a filter."""
        return lucene_query(filter, self.metadata, partial(self._words_query, text_index or self, []))

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
    def read(self, ids: Sequence[str]) -> dict[str, Stored]:
        if len(ids) == 1:  # a batch takes longer
            raws = [self._utils.documentRaw(self._reader, ids[0])]
        else:
            raws = [*map(json.loads, self._read_raw([[id] for id in ids], processors()))] if ids else []
        return {id: Stored.parse(id, raw) for id, raw in zip(ids, raws, strict=True) if raw is not None}

    @READING
    def distinct_terms(self) -> np.ndarray:
        """The number of distinct terms per document of a text index, (documents,)."""
        vectors = self._reader.termVectors()
        terms = (vectors.get(document, FIELD) for document in range(self._reader.maxDoc()))
        return np.array([of_document.size() if of_document else 0 for of_document in terms])

    @READING
    def document_frequency(self, term: str, field: str = FIELD) -> int:
        return self._reader.docFreq(self._term(field, term))

    @READING
    def documents_with(self, term: str) -> int:
        prefix = self.word_prefix or ""
        if not (variants := self.variants_of(term.removeprefix(prefix))):
            return self.document_frequency(term)
        terms = (term, *(prefix + variant for variant in variants))
        queries = [jvm.java_class(LUCENE + "TermQuery")(self._term(FIELD, each)) for each in terms]
        return self._searcher.count(boolean_query(SHOULD=queries))

    @READING
    def terms(self, pattern: str, field: str = FIELD) -> list[str]:
        """The terms of a field that match a regular expression of Lucene."""
        java = jvm.java_class
        query = java(LUCENE + "RegexpQuery")(
            self._term(field, pattern),
            java("org.apache.lucene.util.automaton.RegExp").NONE,
            0,
            java(LUCENE + "RegexpQuery").DEFAULT_PROVIDER,
            MAX_STATES,
            java(LUCENE + "MultiTermQuery").SCORING_BOOLEAN_REWRITE,
        )
        found: str = query.rewrite(self._searcher).toString(field)  # one call, not one per term
        return CLAUSE.findall(found)

    @READING
    def similar_words(self, word: str, edits: int) -> dict[str, int]:
        if self.word_prefix is None:
            return {}
        words, similar = dict[str, int](), dict[str, int]()
        for stem in self._analyze.stems([word])[0]:
            similar |= self._similar_terms(self.word_prefix + stem, edits, FIELD, len(self.word_prefix) + 1)
        for term in nlargest(MOST_FORMS, similar, key=lambda term: similar[term]):
            first = self._postings(self._reader, FIELD, self._bytes(term.encode())).nextDoc()
            document = self.document(self._utils.convertLuceneDocidToDocid(self._reader, first))
            of_document = exact_words(document.contents) if document else []
            analyze, stems = self._analyze.of(document.language if document else ""), [term[len(self.word_prefix) :]]
            words |= dict.fromkeys(islice((each for each in of_document if analyze(each) == stems), 1), similar[term])
        return words

    def _similar_terms(self, term: str, edits: int, field: str, prefix: int = 0) -> dict[str, int]:
        """The terms of a field within so many edits of one with the same prefix, and their document frequencies."""
        java = jvm.java_class
        terms = java("org.apache.lucene.index.MultiTerms").getTerms(self._reader, field)
        matches = java("org.apache.lucene.search.FuzzyTermsEnum")(terms, self._term(field, term), edits, prefix, True)
        similar: dict[str, int] = {}
        while reference := matches.next():
            similar[reference.utf8ToString()] = matches.docFreq()
        return similar

    @READING
    def bm25_weight(self, document: str, term: str, bm25: Bm25Parameters) -> float:
        parameters = map(float, bm25)
        return self._utils.getBM25AnalyzedTermWeightWithParameters(self._reader, document, term, *parameters)

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
        if self._id_file:
            self._id_file.close()


def as_text(query: Query) -> str:
    """A query as Lucene's builders take it."""
    if not isinstance(query, Mapping):
        return str(query)
    return " ".join([f"{term}{DELIMITER}{weight}" for term, weight in query.items()])
