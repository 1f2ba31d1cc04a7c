"""Read and search Lucene indexes.

Queries, similarities and the order of hits are Anserini's, except that the ids of hits come from doc values, which ties
are sorted by anyway, instead of stored fields, which would be read whole for every hit. Impact scores are divided by
the scales of documents and queries, to give the scores of the paper's equations up to quantization; BM25 scores are
rounded as in Anserini. Scores of dense vectors are inner products x; Lucene's own are (1 + x) / 2.
"""

import json
import math
import re
from binascii import a2b_base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache, cached_property, partial
from itertools import batched
from string import ascii_lowercase
from typing import Any, NamedTuple, Self

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import ENGLISH, WORD, Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.json_vectors import DELIMITER
from cai_pyserini.core.metadata import Kind, Value
from cai_pyserini.lucene import batch, jvm
from cai_pyserini.lucene.accents import ACCENTED, Variants
from cai_pyserini.lucene.analyzer import Analyzer, lucene_analyzer
from cai_pyserini.lucene.batch import INTEGER, LUCENE, MAPPER, QUERY, REFERENCE, SEARCHER, STRING, Batch
from cai_pyserini.lucene.facets import Matches
from cai_pyserini.lucene.fields import IDS
from cai_pyserini.lucene.filters import BadFilter, Filter, boolean_query, lucene_query, require_field
from cai_pyserini.lucene.forward_index import ForwardIndex, best_documents
from cai_pyserini.lucene.hnsw import graph
from cai_pyserini.lucene.index_shards import Index, folders, open_reader, require_index
from cai_pyserini.lucene.writer import FIELD, delimited_analyzer, raw_json
from cai_pyserini.runs.trec import Hits
from cai_pyserini.vectors.queries import Query, TwoStep, pruned

VECTOR = "vector"
KNN = "org.apache.lucene.search.KnnFloatVectorQuery"
MOST_LISTED = 100_000  # matches of a filter's words to look up in another index, at most; 1,000 take about 10 ms
MOST_DOCUMENTS = 500_000  # ids to list for an index without metadata, at most; they are in the JVM's memory
HITS = 1 << 16  # hits per batch, at most
MANY_DOCUMENTS = 1_000_000
MAX_STATES = 10_000  # of the automaton of a regular expression; Lucene's default
CLAUSE = re.compile(r"\((.*?)\)\^1\.0(?= \(|$)")  # of a query as a string, (term)^1.0 (term)^1.0 …
TOTAL = re.compile(r'"totalHits":{"value":(\d+)')  # number of matching documents
HIT = re.compile(r'"fields":\[([^,]+),{"bytes":"([^"]*)","offset":0,"length":(\d+)')  # score and id, as JSON
_READING = jvm.using_java("reading an index")


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

    Threads can share it or open several: calls into Java go one at a time, see lucene.jvm.
    """

    @_READING
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
        """What distinguishes the index's words of the documents from other terms; None if it has no words."""
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

    @_READING
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
        return _build_query(self._build_id_query, json.dumps(ids))

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

    @_READING
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

    @_READING
    def matches(
        self, filter: Filter | None = None, query: Any = None, text_index: "LuceneIndex | None" = None
    ) -> Matches:
        """The documents that pass a filter and match a Lucene query, to count; `text_index` as in `counts`."""
        java = jvm.java_class
        filter_query = self._filter_query(filter, text_index) if filter else java(LUCENE + "MatchAllDocsQuery")()
        both = boolean_query(FILTER=[filter_query] if query is None else [filter_query, query])
        manager = java("org.apache.lucene.facet.FacetsCollectorManager")()
        return Matches(self._reader, self._searcher.search(both, manager), self._json)

    @_READING
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

    @_READING
    def document(self, id: str) -> Stored | None:
        """A stored document; None if the index lacks it, or stores no documents."""
        raw = self._utils.documentRaw(self._reader, id)
        return None if raw is None else Stored.parse(id, raw)

    @_READING
    def distinct_terms(self) -> np.ndarray:
        """The number of distinct terms per document of a text index, (documents,)."""
        vectors = self._reader.termVectors()
        terms = (vectors.get(document, FIELD) for document in range(self._reader.maxDoc()))
        return np.array([of_document.size() if of_document else 0 for of_document in terms])

    @_READING
    def document_frequency(self, term: str) -> int:
        return self._reader.docFreq(self._term(FIELD, term))

    def variants_of(self, word: str) -> list[str]:
        """The words that differ from an analyzed word by accents alone."""
        return [] if self.word_prefix is None else [*self._variants.of(word)]

    @_READING
    def documents_with(self, term: str) -> int:
        """The number of documents with a term or, if it is a word, one of its variants."""
        prefix = self.word_prefix or ""
        if not (variants := self.variants_of(term.removeprefix(prefix))):
            return self.document_frequency(term)
        terms = (term, *(prefix + variant for variant in variants))
        queries = [jvm.java_class(LUCENE + "TermQuery")(self._term(FIELD, each)) for each in terms]
        return self._searcher.count(boolean_query(SHOULD=queries))

    @_READING
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

    @_READING
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

    @_READING
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


class LuceneSearcher(LuceneIndex):
    """An open index to search: with text for BM25, {term: impact} for impacts, and vectors for dense indexes.

    `k1` and `b` are parameters of BM25. `two_step` searches impacts in two steps: scores are exact, but documents that
    the first step ranks too low are missed; if it finds too few documents, a search for all terms follows. Scores are
    computed from the forward index, if there is one, instead of Lucene's. Only the queries of one `search_many` run in
    parallel.
    """

    @jvm.using_java("searching")
    def __init__(self, index: Index, k1: float = 0.9, b: float = 0.4, two_step: TwoStep | None = None):
        super().__init__(index)
        java = jvm.java_class
        self._two_step = two_step
        self._idf = cache(self._inverse_document_frequency)
        self._filter: Any = None  # a Lucene query
        self._kind: str = self.manifest.stats["kind"]
        self.query_scale: int = self.manifest.stats.get("query_scale", 1)
        self.document_scale: float = self.manifest.stats.get("document_scale", 1)
        self._max_hits = max(1, self._reader.maxDoc())
        by_score = java(LUCENE + "SortField").FIELD_SCORE
        self._order = java(LUCENE + "Sort")(by_score, self._by_id)  # Anserini's
        *_, self._candidates = graph(self._max_hits)  # of a vector search
        self._builders: dict[type, Any] = {}  # type of queries -> handle that builds Lucene's
        if self._kind == "dense":
            builder = "io.anserini.search.query.VectorQueryGenerator"
            make = batch.virtual(builder, "buildQuery", KNN, STRING, STRING, INTEGER)
            self._builders[np.ndarray] = batch.bind(make, 0, java(builder)(), VECTOR)
        else:
            builder = "org.apache.lucene.util.QueryBuilder"
            make = batch.virtual(builder, "createBooleanQuery", QUERY, STRING, STRING)
            make = batch.bind(make, 0, java(builder)(delimited_analyzer("delimitedBoost")))
            self._builders[dict] = batch.bind(make, 0, FIELD)
        if self._kind == "impact":
            self._searcher.setSimilarity(java("io.anserini.search.similarity.ImpactSimilarity")())
        elif self._kind == "bm25":
            self._searcher.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))
            builder = "io.anserini.search.query.BagOfWordsQueryGenerator"
            make = batch.virtual(builder, "buildQuery", QUERY, STRING, "org.apache.lucene.analysis.Analyzer", STRING)
            self._builders[str] = batch.bind(make, 0, java(builder)(), FIELD, lucene_analyzer(self.language))
        has_forward = two_step and self.manifest.recipe["settings"].get("forward_index")
        self._forward = [ForwardIndex(folder) for folder in self._folders] if has_forward else []
        self._one_step_searches, self._two_step_search = self._compile_searches(lambda build: build)

    def _compile_searches(self, limited: Callable[[Any], Any]) -> tuple[dict[type, Batch], Batch | None]:
        """The searches by one step, by type of queries, and by two steps; `limited` limits a handle that builds queries
        to some documents."""
        one_step = {
            kind: Batch(batch.one_step_search(self._searcher, limited(build), self._order), self._json)
            for kind, build in self._builders.items()
        }
        if not self._two_step:
            return one_step, None
        build = self._builders[dict]
        if self._forward:
            return one_step, Batch(batch.first_step(self._searcher, limited(build)), self._json)
        two_step = batch.two_step_search(self._searcher, limited(build), build, self._order)
        return one_step, Batch(two_step, self._json)

    @jvm.using_java("filtering")
    def filtered(self, filter: Filter, text_index: LuceneIndex | None = None) -> Self:
        """A view whose searches find only documents that pass a filter, with the same scores. `text_index` is an index
        of the same documents that has their words; by default, this one. Raises BadFilter if the indexes lack a field
        or words that the filter needs."""
        if self._kind == "dense":
            raise BadFilter(f"{self._name} has no metadata and cannot be filtered")
        searches = self._filtered_searches  # cached before the copy
        view = copy(self)
        view._one_step_searches, view._two_step_search = searches
        view._filter = self._filter_query(filter, text_index)
        return view

    @cached_property
    def _filtered_searches(self) -> tuple[dict[type, Batch], Batch | None]:
        return self._compile_searches(partial(batch.filtered_query, filter=self._current_filter))

    @cached_property
    def _current_filter(self) -> Any:
        return jvm.java_class(REFERENCE)()

    def with_variants(self, queries: Sequence[Query], threads: int = 1) -> list[Query]:
        """The queries as they are searched with: with the index's variants of their words, see lucene.accents. A text
        without any stays a text; others become {word: weight}."""
        if self.word_prefix is None:
            return [*queries]
        texts = [query for query in queries if isinstance(query, str)]
        words = dict(zip(texts, self._analyze.many(texts, threads), strict=True)) if texts else {}
        expanded: list[Query] = []
        for query in queries:
            assert not isinstance(query, np.ndarray)
            terms = Counter(words[query]) if isinstance(query, str) else query
            added = self._variants.added(terms)
            expanded.append({**terms, **added} if added else query)
        return expanded

    @_READING
    def lucene_query(self, query: Query) -> Any:
        """The Lucene query; None for a query without terms."""
        (query,) = self.with_variants([query])
        return _build_query(self._builders[str if isinstance(query, str) else dict], _text(query))

    def search(self, query: Query, hits: int) -> Hits:
        (ranking,) = self._search([query], hits, 1)
        return ranking

    def search_many(self, queries: dict[str, Query], hits: int, threads: int) -> Iterator[dict[str, Hits]]:
        """Yield the best documents for many queries by query id, batch by batch, in the order of the ids."""
        for ids in batched(sorted(queries), max(1, HITS // hits)):
            yield dict(zip(ids, self._search([queries[id] for id in ids], hits, threads), strict=True))

    @jvm.using_java("scoring")
    def scores(self, query: Query, ids: Sequence[str]) -> dict[str, float]:
        """Scores of documents: BM25 for a text, 0 where no word matches, without a ranking's tie-breaking; or inner
        products with a vector, without documents that the index lacks."""
        count = min(len(ids), self._max_hits)
        if isinstance(query, np.ndarray):  # with no more documents than hits, Lucene compares them all
            nearest = jvm.java_class(KNN)(VECTOR, query.tolist(), count, self._id_query(ids))
            matching, scores = self._best(nearest, self._order, count)
            return dict(zip(matching, _products(scores), strict=True))
        both = boolean_query(MUST=[self.lucene_query(query)], FILTER=[self._id_query(ids)])
        matching, scores = self._best(both, self._order, count)
        return dict.fromkeys(ids, 0.0) | dict(zip(matching, _as_floats(_rounded(scores)), strict=True))

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> list[Hits]:
        hits, queries = min(hits, self._max_hits), self.with_variants(queries, threads)
        rankings: dict[int, Hits] = {number: [] for number, query in enumerate(queries) if _is_empty(query)}
        if self._two_step and self._two_step_search:
            steps = {
                number: first
                for number, query in enumerate(queries)
                if isinstance(query, dict) and (first := self.first_query(query)) and first != query
            }
            best = self._search_in_two_steps([(queries[n], first) for n, first in steps.items()], hits, threads)
            rankings |= {number: ranking for number, ranking in zip(steps, best, strict=True) if ranking is not None}
        candidates = [str(max(hits, self._candidates))] if self._kind == "dense" else []
        for kind, search in self._one_step_searches.items():
            rest = [n for n, query in enumerate(queries) if n not in rankings and isinstance(query, kind)]
            one_step = [(_text(queries[number]), *candidates, str(hits), str(hits)) for number in rest]
            found = self._run(search, one_step, threads)
            rankings |= {number: self._parse(top_docs, hits) for number, top_docs in zip(rest, found, strict=True)}
        return [rankings[number] for number in range(len(queries))]

    def _search_in_two_steps(
        self, queries: Sequence[tuple[Any, dict[str, int]]], hits: int, threads: int
    ) -> Iterator[Hits | None]:
        """The rankings of queries, each with the query of its first step; None if that finds fewer documents than the
        second would score."""
        assert self._two_step and self._two_step_search
        count = min(self._two_step.candidates(hits), self._max_hits)
        if not self._forward:
            steps = [(_text(first), str(count), _text(query), str(count), str(hits)) for query, first in queries]
            for top_docs in self._run(self._two_step_search, steps, threads):
                yield self._parse(top_docs, hits) if TOTAL.findall(top_docs) == [str(count)] else None
            return
        found = self._run(self._two_step_search, [(_text(first), str(count)) for _, first in queries], threads)
        for (query, _), of_query in zip(queries, found, strict=True):
            numbers = np.array(json.loads(of_query), np.int64)
            yield None if len(numbers) < count else self._scaled(*best_documents(self._forward, query, numbers, hits))

    def first_query(self, query: dict[str, int]) -> dict[str, int]:
        """The query of the first of two steps."""
        return pruned(query, self._two_step.mass, self._idf) if self._two_step else query

    def _inverse_document_frequency(self, term: str) -> float:
        """ln(1 + documents / document frequency); 0 for a term that the index lacks."""
        frequency = self.document_frequency(term)
        return math.log1p(self.documents / frequency) if frequency else 0.0

    def _run(self, search: Batch, arguments: Sequence[Sequence[str]], threads: int) -> Iterator[str]:
        """The results as JSON."""
        for part in batch.parts(arguments):
            with jvm.using_java("searching"):
                if self._filter is not None:
                    self._current_filter.set(self._filter)
                results = search(part, threads)
            yield from results

    def _parse(self, top_docs: str, hits: int) -> Hits:
        return self._scaled(*self._parse_hits(top_docs, hits))

    def _scaled(self, ids: list[str], scores: list[float]) -> Hits:
        return list(zip(ids, self._from_lucene(scores), strict=True))

    def _from_lucene(self, scores: list[float]) -> list[float]:
        """Convert Lucene's scores, best first."""
        if self._kind == "dense":
            return _products(scores)
        if self._kind == "bm25":
            return _without_ties(scores)
        scale = self.document_scale * self.query_scale
        return [score / scale for score in scores]


def _build_query(build: Any, text: str) -> Any:
    """Call a handle that makes a Lucene query from a string; None if the query is empty."""
    query = build.invokeWithArguments(jvm.java_class("java.util.Collections").singletonList(text))
    return query and jvm.start().cast(QUERY, query)


def _is_empty(query: Query) -> bool:
    """Whether a query has no terms, or is a zero vector, as of unknown words."""
    return not (query.any() if isinstance(query, np.ndarray) else query)


def _text(query: Query) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, np.ndarray):
        return json.dumps(query.tolist())
    return " ".join([f"{term}{DELIMITER}{weight}" for term, weight in query.items()])


def _products(scores: Sequence[float]) -> list[float]:
    return [2 * score - 1 for score in scores]


def _rounded(scores: Sequence[float]) -> np.ndarray:
    """BM25 scores rounded to 4 decimals in single precision, as in Anserini."""
    return (np.floor(np.array(scores, np.float32).astype(np.float64) * 1e4 + 0.5) / 1e4).astype(np.float32)


def _without_ties(scores: Sequence[float]) -> list[float]:
    """BM25 scores, best first, as in Anserini: rounded, with ties 1e-6 apart.

    Anserini's ScoreTiesAdjusterReranker subtracts 1e-6 times n from the n-th score in a row that is at most 1e-4 below
    the adjusted score before it, in single precision.
    """
    gap, step = np.float32(1e-4), np.float32(1e-6)
    rounded = _rounded(scores)
    ties = 0
    for n in range(1, len(rounded)):
        ties = ties + 1 if rounded[n - 1] - rounded[n] <= gap else 0
        rounded[n] -= step * np.float32(ties)
    return _as_floats(rounded)


def _as_floats(scores: np.ndarray) -> list[float]:
    """Single-precision scores with no more digits than needed."""
    return [float(str(score)) for score in scores]
