"""Read and search Lucene indexes.

Queries, similarities and the order of hits are Anserini's, with one difference: the ids of hits come from doc values,
by which equal scores are ordered anyway, instead of stored fields, which would be read and kept whole for every hit.
Impact scores are divided by the scales of documents and queries, so that they are the scores of the paper's equations,
up to quantization; BM25's are rounded as Anserini rounds them. Scores of dense vectors are inner products x, of which
Lucene's are (1 + x) / 2.
"""

import json
import re
import struct
from binascii import a2b_base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import accumulate, batched, groupby
from typing import Any, NamedTuple, Self

import numpy as np

from cai_pyserini.core import artifact, jvm
from cai_pyserini.core.config import ENGLISH, Language
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.json_vectors import DELIMITER
from cai_pyserini.core.metadata import Kind, Value, year_of
from cai_pyserini.core.trec import Hits
from cai_pyserini.encode.queries import Query, TwoStep, pruned
from cai_pyserini.index.hnsw import graph
from cai_pyserini.index.metadata import IDS, PREFIX
from cai_pyserini.index.shards import Index, folders, open_reader, require_index
from cai_pyserini.index.writer import delimited_analyzer, raw_json
from cai_pyserini.retrieval import batch
from cai_pyserini.retrieval.batch import INTEGER, LUCENE, MAPPER, QUERY, REFERENCE, SEARCHER, STRING, Batch
from cai_pyserini.retrieval.filters import BadFilter, Filter, lucene_query, require_field
from cai_pyserini.words.analyzer import lucene_analyzer

FIELD, VECTOR = "contents", "vector"
KNN = "org.apache.lucene.search.KnnFloatVectorQuery"
MOST_LISTED = 100_000  # the most documents that the words of a filter list for another index; 1,000 take about 10 ms
MOST_DOCUMENTS = 500_000  # of an index without metadata whose ids are listed, in the memory of the JVM
HITS = 1 << 16  # the most hits of a batch
CHARACTERS = 1 << 23  # the most characters of queries given to Java at a time, which holds several copies
TOTAL = re.compile(r'"totalHits":{"value":(\d+)')  # the number of documents that Lucene found
HIT = re.compile(r'"fields":\[([^,]+),{"bytes":"([^"]*)","offset":0,"length":(\d+)')  # score and id, as JSON
_READING = jvm.using_java("reading an index")


class Stored(NamedTuple):
    """A document as an index stores it."""

    id: str
    title: str
    contents: str  # what is searched, with the title
    metadata: Mapping[str, Value] = {}

    @property
    def raw(self) -> str:
        """Its stored form."""
        return raw_json(self.id, self.title, self.contents, self.metadata)


class LuceneIndex:
    """An open index of text or impacts, or all shards of one: the terms of documents, and their texts.

    Threads can share it, or have several open: calls into Java go one at a time, see core.jvm.
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
        by, kind = java(LUCENE + "SortField"), java(LUCENE + "SortField$Type")
        self._by_id = by("id", kind.STRING_VAL)
        self._in_order = java(LUCENE + "Sort")(by.FIELD_DOC, self._by_id)
        self.documents: int = self._reader.getDocCount(FIELD)
        # Opened with the index, whose folder an update may replace.
        self._id_files = [(f / IDS).open(encoding="utf-8") for f in self._folders] if self.metadata else []

    @property
    def language(self) -> Language:
        """What the words of an index of text were made with."""
        return self.manifest.recipe["settings"].get("language", ENGLISH)

    @property
    def metadata(self) -> dict[str, Kind]:
        """The types of the documents' metadata, by name."""
        return self.manifest.stats.get("metadata", {})

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the documents, in the order of the index."""
        ids = [id for file in self._id_files for id in file.read().splitlines()]
        ids = ids or self._ids_of()
        artifact.require_count(self._name, len(ids), self._reader.maxDoc())
        return ids

    @cached_property
    def _documents(self) -> Any:
        return batch.documents(self._json)

    @_READING
    def _ids_of(self, query: Any = None, most: int = MOST_DOCUMENTS) -> list[str]:
        """The ids of the documents that match a Lucene query, by default of all, in the order of the index. Raises
        BadFilter for more than `most`."""
        query = jvm.java_class(LUCENE + "MatchAllDocsQuery")() if query is None else query
        count = max(1, self._searcher.count(query))
        if count > most:
            raise BadFilter(f"filter: its words are in {count:,} documents; all but bm25 take {MOST_LISTED:,} in all")
        manager = jvm.java_class(LUCENE + "TopFieldCollectorManager")(self._in_order, count, None, count)
        return self._read(self._json.writeValueAsString(self._searcher.search(query, manager)), count)[0]

    def _these(self, ids: Sequence[str]) -> Any:
        """A Lucene query of documents."""
        return _made(self._documents, json.dumps(ids))

    def _having(self, words: "LuceneIndex", text: str, listed: list[str]) -> Any:
        """A Lucene query of the documents that, in an index `words` of text, have the words of a text next to each
        other; those of another index are added to `listed`. Raises BadFilter for an index of something else, for a text
        without words, and for too many documents."""
        if words.manifest.stats["kind"] != "bm25":
            raise BadFilter(f"filter: {self._name} has no words; they are in an index of BM25, of the same run")
        builder = jvm.java_class("org.apache.lucene.util.QueryBuilder")(lucene_analyzer(words.language))
        if (query := builder.createPhraseQuery(FIELD, text)) is None:
            raise BadFilter(f"filter: {text[:50]!r} has no word that BM25 knows")
        if words.manifest.digest == self.manifest.digest:
            return query
        ids = words._ids_of(query, MOST_LISTED - len(listed))
        listed += ids
        return self._these(ids)

    def _let_through(self, filter: Filter, words: "LuceneIndex | None") -> Any:
        """A Lucene query of what a filter lets through."""
        return lucene_query(filter, self.metadata, partial(self._having, words or self, listed=[]))

    @_READING
    def matching(self, filter: Filter) -> np.ndarray:
        """Which documents a filter lets through, bool (documents,), in the order of the index."""
        found = np.zeros(self._reader.maxDoc(), bool)
        for segment in self._collected(filter).getMatchingDocs():
            start, size = segment.context().docBase, segment.context().reader().maxDoc()
            bits = jvm.java_class("org.apache.lucene.util.FixedBitSet")(size)
            getattr(bits, "or")(segment.bits().iterator())
            words = np.array(bits.getBits(), np.int64)
            found[start : start + size] = np.unpackbits(words.view(np.uint8), count=size, bitorder="little")
        return found

    @_READING
    def counts(
        self,
        names: Sequence[str],
        most: int,
        filter: Filter | None = None,
        among: Any = None,
        words: "LuceneIndex | None" = None,
    ) -> dict[str, dict[str, int]]:
        """Field -> its `most` frequent values, the most frequent first -> the number of documents that have it.

        Of dates, years are counted. Documents are those that a filter lets through and that match a Lucene query, where
        these are given; `words` is as in LuceneSearcher.filtered. Raises BadFilter for a field that the index does not
        have.
        """
        kinds = {name: require_field(name, self.metadata, "facets") for name in names}
        collected = self._collected(filter, among, words)
        return {name: dict(self._counted(PREFIX + name, kind, most, collected)) for name, kind in kinds.items()}

    def _counted(self, field: str, kind: Kind, most: int, collected: Any) -> list[tuple[str, int]]:
        facets = "org.apache.lucene.facet."
        if kind in ("string", "list"):
            state = jvm.java_class(facets + "StringDocValuesReaderState")(self._reader, field)
            counts = jvm.java_class(facets + "StringValueFacetCounts")(state, collected)
            found = counts.getTopChildren(most, field)
        else:
            counts = jvm.java_class(facets + "LongValueFacetCounts")(field, collected)
            found = counts.getAllChildren(field) if kind == "date" else counts.getTopChildren(most, field)
        values = json.loads(self._json.writeValueAsString(found))["labelValues"] if found else []
        pairs = [(each["label"], int(each["value"])) for each in values]
        if kind == "date":
            years: Counter[str] = Counter()
            for label, count in pairs:
                years[year_of(_double(label))] += count
            return years.most_common(most)
        if kind == "number":
            return [(repr(_double(label)).removesuffix(".0"), count) for label, count in pairs]
        return pairs

    def _collected(self, filter: Filter | None, among: Any = None, words: "LuceneIndex | None" = None) -> Any:
        """A FacetsCollector of the documents that match."""
        java = jvm.java_class
        query = self._let_through(filter, words) if filter else java(LUCENE + "MatchAllDocsQuery")()
        clauses, occur = java(LUCENE + "BooleanQuery$Builder")(), java(LUCENE + "BooleanClause$Occur")
        for each in (query, *[among] * (among is not None)):
            clauses.add(each, occur.FILTER)
        return self._searcher.search(clauses.build(), java("org.apache.lucene.facet.FacetsCollectorManager")())

    @_READING
    def impacts(self, documents: Sequence[str], terms: Iterable[str]) -> dict[str, dict[str, int]]:
        """Document id -> term -> impact, or frequency in an index of text, for the terms that the document has.

        Documents that the index does not have are left out.
        """
        numbers = ((self._utils.convertDocidToLuceneDocid(self._reader, id), id) for id in set(documents))
        places = sorted((number, id) for number, id in numbers if number >= 0)
        found: dict[str, dict[str, int]] = {id: {} for _, id in places}
        for term in terms:
            postings: Any = self._postings(self._reader, FIELD, self._bytes(term.encode()))
            for number, id in places if postings else ():
                at = postings.docID()
                if (postings.advance(number) if at < number else at) == number:
                    found[id][term] = postings.freq()
        return found

    @_READING
    def document(self, id: str) -> Stored | None:
        """A document; None if the index does not have it, or stores no documents."""
        raw = self._utils.documentRaw(self._reader, id)
        if raw is None:
            return None
        fields = json.loads(raw)
        return Stored(id, fields.get("title", ""), fields["contents"], fields.get("metadata", {}))

    @_READING
    def distinct_terms(self) -> np.ndarray:
        """The number of distinct terms of every document of an index of text, (documents,)."""
        vectors = self._reader.termVectors()
        found = (vectors.get(document, FIELD) for document in range(self._reader.maxDoc()))
        return np.array([terms.size() if terms else 0 for terms in found])

    @_READING
    def document_frequency(self, term: str) -> int:
        return self._reader.docFreq(self._term(FIELD, term))

    @_READING
    def most_similar(self, term: str, prefix: int, edits: int) -> tuple[str, Stored | None] | None:
        """The most frequent term at most so many edits, 1 or 2, from one, with the same first `prefix` characters, and
        the first document that has it."""
        java = jvm.java_class
        terms = java("org.apache.lucene.index.MultiTerms").getTerms(self._reader, FIELD)
        found = java("org.apache.lucene.search.FuzzyTermsEnum")(terms, self._term(FIELD, term), edits, prefix, True)
        similar: dict[str, int] = {}
        while reference := found.next():
            similar[reference.utf8ToString()] = found.docFreq()
        if not similar:
            return None
        best = max(similar, key=lambda term: similar[term])
        first = self._postings(self._reader, FIELD, self._bytes(best.encode())).nextDoc()
        return best, self.document(self._utils.convertLuceneDocidToDocid(self._reader, first))

    @_READING
    def bm25_weight(self, document: str, term: str, k1: float, b: float) -> float:
        return self._utils.getBM25AnalyzedTermWeightWithParameters(self._reader, document, term, float(k1), float(b))

    def _read(self, best: str, hits: int) -> tuple[list[str], list[float]]:
        """Ids and scores of the best `hits` documents, TopDocs as JSON. Raises CaiError where any cannot be read."""
        found = HIT.findall(best)
        total = TOTAL.search(best)
        if total is None or len(found) != min(hits, int(total[1])):
            raise CaiError(
                f"{self._name}: Lucene found {total and total[1]} documents, but of the best {hits}, {len(found)} "
                "could be read; every document needs a field `id` with doc values, as Anserini writes it"
            )
        ids = [a2b_base64(id)[: int(length)].decode() for _, id, length in found]
        return ids, [float(score) for score, _, _ in found]

    @jvm.using_java("closing an index")
    def close(self) -> None:
        self._reader.close()
        for file in self._id_files:
            file.close()


class LuceneSearcher(LuceneIndex):
    """An open index that is searched with queries: text for BM25, {term: impact} for impacts, vectors for vectors.

    `k1` and `b` are parameters of BM25, and have no effect on impacts. With `two_step`, impacts are searched in two
    steps; scores are exact, but a document that the first step ranks too low is missing. If the first step finds fewer
    documents than asked for, all terms are searched for. Only the queries of one `search_many` are searched in
    parallel.
    """

    @jvm.using_java("searching")
    def __init__(self, index: Index, k1: float = 0.9, b: float = 0.4, two_step: TwoStep | None = None):
        super().__init__(index)
        java = jvm.java_class
        self._two_step = two_step
        self._filter: Any = None  # a Lucene query
        self._kind: str = self.manifest.stats["kind"]
        self.query_scale: int = self.manifest.stats.get("query_scale", 1)
        self.document_scale: float = self.manifest.stats.get("document_scale", 1)
        self._most = max(1, self._reader.maxDoc())  # hits
        by_score = java(LUCENE + "SortField").FIELD_SCORE
        self._order = java(LUCENE + "Sort")(by_score, self._by_id)  # as Anserini's
        *_, self._candidates = graph(self._most)  # of a search for vectors
        if self._kind == "dense":
            builder = "io.anserini.search.query.VectorQueryGenerator"
            make = batch.virtual(builder, "buildQuery", KNN, STRING, STRING, INTEGER)
            build = batch.bound(make, 0, java(builder)(), VECTOR)
        elif self._kind == "impact":
            self._searcher.setSimilarity(java("io.anserini.search.similarity.ImpactSimilarity")())
            builder = "org.apache.lucene.util.QueryBuilder"
            make = batch.virtual(builder, "createBooleanQuery", QUERY, STRING, STRING)
            build = batch.bound(make, 0, java(builder)(delimited_analyzer("delimitedBoost")), FIELD)
        else:
            self._searcher.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))
            builder = "io.anserini.search.query.BagOfWordsQueryGenerator"
            self._queries = java(builder)()
            self._analyzer = lucene_analyzer(self.language)
            make = batch.virtual(builder, "buildQuery", QUERY, STRING, "org.apache.lucene.analysis.Analyzer", STRING)
            build = batch.bound(make, 0, self._queries, FIELD, self._analyzer)
        self._build = build
        self._whole, self._two_steps = self._searches(build)

    def _searches(self, build: Any) -> tuple[Batch, Batch | None]:
        whole = Batch(batch.whole_search(self._searcher, build, self._order), self._json)
        two_steps = batch.two_step_search(self._searcher, build, self._order) if self._two_step else None
        return whole, Batch(two_steps, self._json) if two_steps else None

    @jvm.using_java("filtering")
    def filtered(self, filter: Filter, words: LuceneIndex | None = None) -> Self:
        """This open index, whose searches find only what a filter lets through, with the same scores. The words of
        documents are those in an index `words`, of the same documents, by default its own. Raises BadFilter where
        either lacks what the filter needs."""
        if self._kind == "dense":
            raise BadFilter(f"{self._name} has no metadata by which it could be filtered")
        searches = self._filtered_searches  # made once, before the copy
        one = copy(self)
        one._whole, one._two_steps = searches
        one._filter = self._let_through(filter, words)
        return one

    @cached_property
    def _filtered_searches(self) -> tuple[Batch, Batch | None]:
        return self._searches(batch.filtered(self._build, self._current_filter))

    @cached_property
    def _current_filter(self) -> Any:
        return jvm.java_class(REFERENCE)()

    @_READING
    def lucene_query(self, query: Query) -> Any:
        """A query as Lucene has it; None for one without terms."""
        return _made(self._build, _text(query))

    def search(self, query: Query, hits: int) -> Hits:
        (found,) = self._search([query], hits, 1)
        return found

    def search_many(self, queries: dict[str, Query], hits: int, threads: int) -> Iterator[dict[str, Hits]]:
        """Yield the best documents for many queries by query id, batch by batch, in the order of the ids."""
        for ids in batched(sorted(queries), max(1, HITS // hits)):
            yield dict(zip(ids, self._search([queries[id] for id in ids], hits, threads), strict=True))

    def scores(self, query: Query, ids: Sequence[str]) -> dict[str, float]:
        """BM25 scores of these documents for a text; 0 where no word matches. Unlike in a ranking, ties stay ties. Or
        the products of their vectors with one; documents that the index does not have are left out."""
        java = jvm.java_class
        with jvm.using_java("scoring"):
            these = self._these(ids)
            count = min(len(ids), self._most)
            if isinstance(query, np.ndarray):  # with no more documents than hits, Lucene compares them all
                both = java(KNN)(VECTOR, query.tolist(), count, these)
            else:
                occur = java("org.apache.lucene.search.BooleanClause$Occur")
                clauses = java("org.apache.lucene.search.BooleanQuery$Builder")()
                clauses.add(self._queries.buildQuery(FIELD, self._analyzer, query), occur.MUST)
                clauses.add(these, occur.FILTER)
                both = clauses.build()
            manager = java("org.apache.lucene.search.TopFieldCollectorManager")(self._order, count, None, count)
            found = self._json.writeValueAsString(self._searcher.search(both, manager))
        matching, scores = self._read(found, count)
        if isinstance(query, np.ndarray):
            return dict(zip(matching, _products(scores), strict=True))
        return dict.fromkeys(ids, 0.0) | dict(zip(matching, _as_floats(_rounded(scores)), strict=True))

    def _search(self, queries: Sequence[Query], hits: int, threads: int) -> list[Hits]:
        hits = min(hits, self._most)
        found: dict[int, Hits] = {number: [] for number, query in enumerate(queries) if _finds_nothing(query)}
        if self._two_step and self._two_steps:
            steps = {
                number: parts
                for number, query in enumerate(queries)
                if isinstance(query, dict) and (parts := self._steps(query, hits, self._two_step))
            }
            best = self._run(self._two_steps, list(steps.values()), hits, threads)
            found |= {number: of_query for number, of_query in zip(steps, best, strict=True) if len(of_query) == hits}
        rest = [number for number in range(len(queries)) if number not in found]
        candidates = [str(max(hits, self._candidates))] if self._kind == "dense" else []
        whole = [(_text(queries[number]), *candidates, str(hits), str(hits)) for number in rest]
        found |= zip(rest, self._run(self._whole, whole, hits, threads), strict=True)
        return [found[number] for number in range(len(queries))]

    def _steps(self, query: dict[str, int], hits: int, two_step: TwoStep) -> tuple[str, ...]:
        """The arguments of a search in two steps; none if the first leaves nothing to the second."""
        first = pruned(query, two_step.terms)
        rest = {term: weight for term, weight in query.items() if term not in first}
        candidates = str(min(max(hits, two_step.documents), self._most))
        return (_text(first), candidates, _text(rest), candidates, str(hits)) if rest else ()

    def _run(self, search: Batch, arguments: Sequence[Sequence[str]], hits: int, threads: int) -> list[Hits]:
        found: list[Hits] = []
        ends = accumulate(sum(map(len, strings)) for strings in arguments)
        for _, part in groupby(zip(ends, arguments, strict=True), lambda item: item[0] // CHARACTERS):
            with jvm.using_java("searching"):
                if self._filter is not None:
                    self._current_filter.set(self._filter)
                results = search([strings for _, strings in part], threads)
            for ids, scores in (self._read(best, hits) for best in results):
                found.append(list(zip(ids, self._scaled(scores), strict=True)))
        return found

    def _scaled(self, scores: list[float]) -> list[float]:
        """Scores, best first, from Lucene's."""
        if self._kind == "dense":
            return _products(scores)
        if self._kind == "bm25":
            return _without_ties(scores)
        scale = self.document_scale * self.query_scale
        return [score / scale for score in scores]


def _made(build: Any, text: str) -> Any:
    """The Lucene query that a handle makes of a string; None if it makes none."""
    made = build.invokeWithArguments(jvm.java_class("java.util.Collections").singletonList(text))
    return made and jvm.start().cast(QUERY, made)


def _finds_nothing(query: Query) -> bool:
    """Whether a query is without terms, or zero, as of unknown words."""
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
    """BM25 scores with 4 decimals, as Anserini's, in single precision."""
    return (np.floor(np.array(scores, np.float32).astype(np.float64) * 1e4 + 0.5) / 1e4).astype(np.float32)


def _without_ties(scores: Sequence[float]) -> list[float]:
    """BM25 scores, best first, as Anserini gives them: rounded, and equal ones 1e-6 apart.

    Its ScoreTiesAdjusterReranker takes 1e-6 times n off the n-th score in a row that is at most 1e-4 below the one
    before it, which has already been adjusted, in single precision.
    """
    least, step = np.float32(1e-4), np.float32(1e-6)
    rounded = _rounded(scores)
    row = 0
    for n in range(1, len(rounded)):
        row = row + 1 if rounded[n - 1] - rounded[n] <= least else 0
        rounded[n] -= step * np.float32(row)
    return _as_floats(rounded)


def _double(sortable: str) -> float:
    """A number from the integer that sorts like it, see NumericUtils.doubleToSortableLong in Lucene."""
    bits = int(sortable)
    bits ^= (bits >> 63) & 0x7FFFFFFFFFFFFFFF
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _as_floats(scores: np.ndarray) -> list[float]:
    """Scores of single precision with no more digits than they need."""
    return [float(str(score)) for score in scores]
