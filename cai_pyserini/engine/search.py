"""Search engines: an open index, or several whose results are fused."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self, overload
from weakref import WeakValueDictionary

import pandas as pd

from cai_pyserini.collections.ids import checked_id
from cai_pyserini.collections.in_python import Queries
from cai_pyserini.collections.in_python import topics as topics_of
from cai_pyserini.collections.values import checked_count
from cai_pyserini.core.config import ENGLISH, PASSAGE, WORD, Language
from cai_pyserini.core.errors import CaiError, require_utf8
from cai_pyserini.core.metadata import Kind, Value, bounds
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.explanation import Explanation, Part
from cai_pyserini.engine.highlight import Marked, marked, word_strengths
from cai_pyserini.engine.passages import beginnings, best_snippet
from cai_pyserini.engine.reasons import Asked, words_of
from cai_pyserini.engine.retriever import Effort, Retriever
from cai_pyserini.indexes.analyzer import CachedAnalyzer
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import BadFilter as BadFilter
from cai_pyserini.indexes.filters import Combined, Filter, filter_text, parse_filter, require_field
from cai_pyserini.indexes.filters import Filters as Filters
from cai_pyserini.indexes.filters import without_operators as without_operators
from cai_pyserini.indexes.reader import LuceneIndex
from cai_pyserini.indexes.reader import Stored as Stored
from cai_pyserini.indexes.retrieve import PASSAGE_HITS
from cai_pyserini.runs.fuse import Shares, fuse_runs, shares
from cai_pyserini.runs.fusions import DEPTH, FUSIONS
from cai_pyserini.runs.trec import ranks, run_of, scores_by_query

if TYPE_CHECKING:
    from cai_pyserini.engine.milvus import MilvusSearcher

SORT_DEPTH = 100  # hits to sort by a field
KEPT = 1000  # documents of hits that are read when the index closes, at most; it takes up to a second
QUERY = "query"  # query id for fusing the runs of a single query


class Documents:
    """The stored documents of the hits of one search, which hits read one by one, or all when the index closes."""

    def __init__(self, read: Callable[[str], Stored | None]):
        self._read, self._kept = read, dict[str, Stored | None]()
        self.ids: list[str] = []  # of the hits, in the indexes

    def document(self, stored: str) -> Stored | None:
        return self._kept[stored] if stored in self._kept else self._read(stored)

    def keep(self, most: int) -> int:
        """Read `most` documents and return how many there were. Reading others raises CaiError then."""
        self._kept = {id: self._read(id) for id in self.ids[:most]}
        self._read = _closed
        return len(self._kept)


def _closed(id: str) -> NoReturn:
    raise CaiError(f"the index is closed, and document {id!r} was not read before: read hits while it is open")


class StoredHit:
    """What a hit reads from the index when it is asked for."""

    rank: int  # first, as polars takes the order of columns from here
    id: str
    stored: str  # id in the indexes: of the document or its best passage
    _documents: Documents

    @cached_property
    def _document(self) -> Stored:
        return self._documents.document(self.stored) or Stored(self.id, "", "")

    @cached_property
    def title(self) -> str:
        return self._document.title

    @cached_property
    def text(self) -> str:
        """The text of the document, or of its best passage, without the title."""
        return _without_title(self._document)

    @cached_property
    def metadata(self) -> Mapping[str, Value]:
        return self._document.metadata

    @cached_property
    def page(self) -> int | None:
        """The page where its best passage begins; None without passages or pages."""
        page = self.metadata.get("page")
        return page if isinstance(page, int) else None


@dataclass(frozen=True, init=False)
class Hit(StoredHit):
    """A document in a ranking. Title, text, page and metadata are read from the index when they are asked for, or when
    it closes; they are empty if no index stores the documents. A DataFrame of hits, of pandas or polars, has a row per
    hit."""

    rank: int  # from 1
    id: str
    score: float
    title: str = field(repr=False, compare=False)
    text: str = field(repr=False, compare=False)
    page: int | None = field(repr=False, compare=False)
    metadata: Mapping[str, Value] = field(repr=False, compare=False)

    def __init__(self, rank: int, id: str, score: float, stored: str, documents: Documents):
        vars(self).update(rank=rank, id=id, score=score, stored=stored, _documents=documents)

    def at(self, rank: int, score: float | None = None) -> "Hit":
        """This hit at another rank."""
        return Hit(rank, self.id, self.score if score is None else score, self.stored, self._documents)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as JSON has them."""
        return asdict(self)

    def __getstate__(self) -> dict[str, Any]:
        return asdict(self) | {"stored": self.stored}


class Hits(list[Hit]):
    """The hits for a query, the best first."""

    def to_dataframe(self) -> pd.DataFrame:
        """A row per hit: `rank`, `id`, `score`, `title`, `text`, `page` and `metadata`."""
        return pd.DataFrame(self, columns=[each.name for each in fields(Hit)])


type Action = Literal["add", "update", "delete"]  # on documents
type Id = str | int | Hit  # of a document


class Described(NamedTuple):
    """A hit with its explanation, title, snippet and metadata, which are empty if no index stores it, and the page of
    the snippet, None if the document has no pages."""

    hit: Hit
    explanation: Explanation
    title: Marked
    snippet: Marked
    metadata: Mapping[str, Value]
    page: int | None


class Snippet(NamedTuple):
    """A snippet as text, with its page; None if the document has no pages."""

    text: str
    page: int | None


class Engine:
    """A system's retrievers by name, and the fusion of their results if there are several.

    Fuses the best `depth` documents of each, as `runs.fuse.fuse_runs` does, or `hits` for methods that need whole runs.
    With `passages`, the indexes hold passages, and a document has the score of its best one. `texts` is an index with
    the words of the documents, or one that stores them if no retriever's index does; `language` is their language, and
    `change` changes them.
    Threads can share engines. Queries are normalized (core.text). Methods raise CaiError for an empty query.

    >>> engine = cai.open("runs/tiny")["joint"]
    >>> for hit in engine.search("high blood pressure", k=2, filter="year>=2000"):
    ...     print(hit.rank, hit.id, hit.title)
    1 d10 Sleep
    2 d5 Hypertension
    >>> engine.explain("high blood pressure", "d5").terms[0].term
    'pressure'
    """

    def __init__(
        self,
        name: str,
        retrievers: Mapping[str, Retriever],
        fusion: str | None = None,
        depth: int = DEPTH,
        hits: int = 1000,
        weights: Sequence[float] | None = None,
        passages: bool = False,
        texts: "LuceneIndex | MilvusSearcher | None" = None,
        language: Language = ENGLISH,
        change: Callable[[Action, Any], None] | None = None,
    ):
        self.name, self.language, self._change = name, language, change
        self._retrievers = dict(retrievers)
        self._fusion, self._depth, self._hits, self._weights = fusion, depth, hits, weights
        self._passages = passages
        self._stores: list[Retriever | LuceneIndex | MilvusSearcher] = [*retrievers.values()]
        if texts:
            self._stores.append(texts)
        self._threads = ThreadPoolExecutor(len(retrievers), "part")  # for parts that may miss a deadline
        self._last_calls: dict[str, Future[Any]] = {}  # by part
        self._numbers = count()
        self._found = WeakValueDictionary[int, Documents]()  # of the searches whose hits are alive
        opened = (texts, *(retriever.index for retriever in retrievers.values()))
        indexes = [index for index in opened if index]
        with_words = [index for index in indexes if index.manifest.stats["kind"] == "bm25"]
        with_metadata = (index for index in indexes if index.metadata)
        self._filter_index = next(chain(with_words, with_metadata), None)
        self._has_word_index = bool(with_words)
        kinds = {index.manifest.stats["kind"] for index in indexes}
        self.can_filter = self._filter_index is not None and "dense" not in kinds  # Lucene's vector search cannot
        self.has_words = self.can_filter and "bm25" in kinds  # for filters and query operators

    @property
    def matches_words(self) -> bool:
        """Whether `matches` of a text are the documents with a word of it, not all."""
        return any(retriever.word_prefix is not None for retriever in self._retrievers.values())

    @property
    def metadata(self) -> dict[str, Kind]:
        """The types of metadata fields by name."""
        return self._filter_index.metadata if self._filter_index else {}

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        query: str,
        k: int = 10,
        threads: int = 1,
        filter: Filters = None,
        sort: str | None = None,
        effort: Effort | None = None,
    ) -> Hits: ...
    @overload
    def search(
        self,
        query: Iterable[str],
        k: int = 10,
        threads: int = 1,
        filter: Filters = None,
        sort: str | None = None,
        effort: Effort | None = None,
    ) -> list[Hits]: ...
    def search(
        self,
        query: str | Iterable[str],
        k: int = 10,
        threads: int = 1,
        filter: Filters = None,
        sort: str | None = None,
        effort: Effort | None = None,
    ) -> Hits | list[Hits]:
        """The best `k` documents for a query, or for each of several.

        Respects the deadline of `effort` and adds the time taken to it.

        `filter` limits documents by metadata and words: a text such as "year>=2000", see filters, a dict such as
        {"year": {">=": 2000}, "type": ["a", "b"]}, or several, which must all match. `sort` names a metadata field that
        orders the best SORT_DEPTH documents, or `k` if that is more; with `-` before it, largest values first.
        Documents without a value come last. Raises BadFilter if either is invalid.
        """
        texts, k, threads = _texts(query), checked_count(k, "k"), checked_count(threads, "threads")
        found = Documents(self.document)
        results = self._search_parts(texts, self._part_depth(k, sort), threads, filter, effort, found)
        rankings = [Hits(self._ranking(parts, k, sort)) for parts in results]
        found.ids = [hit.stored for hit in islice(chain.from_iterable(rankings), KEPT)]
        self._found[next(self._numbers)] = found
        return rankings[0] if isinstance(query, str) else rankings

    @overload
    async def search_async(self, query: str, k: int = 10, **options: Any) -> Hits: ...
    @overload
    async def search_async(self, query: Iterable[str], k: int = 10, **options: Any) -> list[Hits]: ...
    async def search_async(self, query: str | Iterable[str], k: int = 10, **options: Any) -> Hits | list[Hits]:
        """As `search`, whose options are keywords, in another thread, so that an event loop goes on meanwhile."""
        from asyncio import to_thread  # who awaits has imported it

        return await to_thread(lambda: self.search(query, k, **options))

    def rank(self, queries: Queries, k: int = 1000, threads: int = 1, filter: Filters = None) -> pd.DataFrame:
        """The rankings of many queries, a row per hit: `query_id`, `doc_id`, `score` and `rank`, from 1.

        `queries` are {id: text}, texts, whose ids are their numbers from 0, (id, text) pairs, or a table with an id,
        such as `query_id` or `qid`, and `text` or `query`.
        """
        topics = topics_of(queries)
        rankings = self.search([*topics.values()], k, threads, filter) if topics else []
        found = zip(topics, rankings, strict=True)
        run = run_of({id: [(hit.id, hit.score) for hit in ranking] for id, ranking in found})
        return run.astype({"query_id": object, "doc_id": object}).assign(rank=ranks(run))

    def facets(
        self, names: str | Sequence[str], text: str = "", filter: Filters = None, most: int = 10
    ) -> dict[str, dict[str, int]]:
        """Field -> its `most` frequent values -> the number of documents, of a field or several.

        Counts the documents that pass `filter` and have a word of the text, at any rank; without a text, and in systems
        without BM25, all that pass `filter`. In an index of passages, passages are counted. Raises BadFilter for an
        index in Milvus, which counts no values.
        """
        for name in (names := [names] if isinstance(names, str) else [*dict.fromkeys(names)]):
            require_field(name, self.metadata, "facets")
        if names and (matches := self.matches(text, filter)) is None:
            raise BadFilter(f"facets: {self.name} is in Milvus, which does not count the values of fields")
        most = checked_count(most, "most")
        return {name: matches.values(name, self.metadata[name], most) for name in names if matches}

    def matches(self, text: str = "", filter: Filters = None) -> Matches | None:
        """The documents that `facets` counts; None if no Lucene index of the system has metadata or words."""
        parsed, index, text = self._parse(filter), self._lucene_filter_index, _text(text)
        for retriever in self._retrievers.values() if text.strip() else ():
            own, query = retriever.index, retriever.any_word_query(text)
            if isinstance(own, LuceneIndex) and query is not None and own.metadata == self.metadata:
                return own.matches(parsed, query, index)
        return index.matches(parsed) if index else None

    def document_frequencies(self, text: str) -> dict[str, int]:
        """The number of documents that have each word of a text, without words that the index leaves out; empty if no
        index has the words of the documents."""
        for retriever in self._retrievers.values():
            if retriever.index and (prefix := retriever.word_prefix) is not None:
                index = retriever.index
                break
        else:
            if self._filter_index is None or not self._has_word_index:
                return {}
            index, prefix = self._filter_index, ""
        documents_with = index.documents_with if isinstance(index, LuceneIndex) else index.document_frequency
        stems = {word: self._stems(word) for word in words_of(_text(text))}
        return {
            word: max(documents_with(prefix + stem) for stem in of_word) for word, of_word in stems.items() if of_word
        }

    def describe(
        self, text: str, k: int = 10, start: int = 0, filter: Filters = None, sort: str | None = None
    ) -> Iterator[Described]:
        """Yield the best documents for a text, see `search`, from the one after `start`, with explanations and the
        matching words of title and snippet highlighted."""
        text, k = _text(text), checked_count(k, "k")
        (parts,) = self._search_parts([text], self._part_depth(k, sort), filter=filter)
        ranking = self._ranking(parts, k, sort)[start:]
        explained = self._explain(text, [hit.id for hit in ranking], parts)
        for hit in ranking:
            explanation = explained[hit.id]
            yield Described(hit, explanation, *self._highlight(hit.stored, text, explanation.scored))

    def snippets(self, text: str, hits: Sequence[Hit]) -> Iterator[Snippet]:
        """Yield the snippet of each hit, as `describe` does."""
        ids, text = [hit.stored for hit in hits], _text(text)
        scored = {name: retriever.explain(text, ids) for name, retriever in self._retrievers.items()}
        for id in ids:
            explanations = [
                Explanation(name, id, None, by_id[id].score, None, by_id[id].terms, [])
                for name, by_id in scored.items()
                if id in by_id
            ]
            _, pieces, _, page = self._highlight(id, text, explanations)
            yield Snippet("".join(piece for piece, _ in pieces), page)

    @overload
    def explain(self, query: str, document: Id) -> Explanation: ...  # type: ignore[overload-overlap]
    @overload
    def explain(self, query: str, document: Iterable[Id]) -> dict[str, Explanation]: ...
    def explain(self, query: str, document: Id | Iterable[Id]) -> Explanation | dict[str, Explanation]:
        """Explain the score of a document, a hit or an id, for a query, at any rank, or the scores of several, by id.

        Documents that the indexes lack are left out. In a hybrid, a document beyond the fused lists has score 0 and no
        rank. With passages, only documents among the hits of a run are explained. Raises CaiError for a single
        document that is not there.
        """
        several = isinstance(document, Iterable) and not isinstance(document, str)
        ids = [*map(_id, document)] if isinstance(document, Iterable) and several else [_id(document)]
        (parts,) = self._search_parts([query := _text(query)], self._hits)
        explained = self._explain(query, ids, parts)
        if several:
            return explained
        if ids[0] not in explained:
            raise CaiError(f"{self.name} has no document {ids[0]!r}" + " among the hits" * self._passages)
        return explained[ids[0]]

    def asked(self, query: str) -> Asked:
        """The words of a query, to say why a document was found, and to mark them in its text."""

        def is_word(name: str, term: str) -> bool:
            prefix = self._retrievers[name].word_prefix
            return prefix is not None and term.startswith(prefix)

        def variants(name: str, word: str) -> list[str]:
            retriever = self._retrievers[name]
            return [variant for stem in self._stems(word) for variant in retriever.variants_of(stem)]

        def terms_of(name: str, word: str) -> list[str]:
            prefix = self._retrievers[name].word_prefix or ""
            return [*self.terms_of(name, word), *(prefix + variant for variant in variants(name, word))]

        query = _text(query)
        words = {
            word: [*self._stems(word), *(variant for name in self._retrievers for variant in variants(name, word))]
            for word in words_of(query)
        }
        return Asked(words, self._stems, terms_of, is_word)

    def read(self, id: str, query: str = "") -> tuple[Stored, Explanation | None, Marked] | None:
        """A stored document or passage, why a query finds it, if it does, and its snippet; None if it is not stored."""
        if (document := self.document(id)) is None:
            return None
        if not (query := _text(query)).strip():
            return document, None, []
        explanation = self.explain(query, [of := self.document_of(id)]).get(of)
        if explanation is None:
            return document, None, []
        return document, explanation, self._highlight(id, query, explanation.scored)[1]

    def suggestion(self, text: str) -> str | None:
        """A text with similar words for those that no document has; None if there is none."""
        suggested = (retriever.suggestion(_text(text)) for retriever in self._retrievers.values())
        return next(filter(None, suggested), None)

    def terms_of(self, name: str, word: str) -> Sequence[str]:
        """A retriever's index terms for a word."""
        return self._retrievers[name].terms_of(word)

    @property
    def description(self) -> str:
        """A phrase that says how it finds documents."""
        parts = " + ".join(retriever.description for retriever in self._retrievers.values())
        return parts if self._fusion is None else f"fusion of {parts}"

    @property
    def documents(self) -> int:
        """The number of documents, or of passages if its indexes hold passages."""
        return next(iter(self._retrievers.values())).documents

    @property
    def unit(self) -> str:
        """What `documents` and facets count: document or passage."""
        return "passage" if self._passages else "document"

    def document_of(self, stored: str) -> str:
        """The id of a document, given the id in the indexes: its own, or that of a passage."""
        return stored.partition(PASSAGE)[0] if self._passages else stored

    def document(self, id: Id) -> Stored | None:
        """A stored document, of an id or a hit; None if no index stores it."""
        id = id.stored if isinstance(id, Hit) else _id(id)
        stored = (store.document(id) for store in self._stores)
        return next((document for document in stored if document), None)

    def add(self, documents: Any) -> None:
        """Add documents, as `cai.index` takes them, to an index that it made of a program's documents, as
        `cai-pyserini update` does: what has not changed is not encoded again. Meanwhile, no other thread may search;
        other threads and processes that change the same documents wait.

        Raises CaiError for an id that is there, and for an index of files, which change where they are.
        """
        self._changed("add", documents)

    def update(self, documents: Any) -> None:
        """Replace the documents with the same ids, and add those with new ones; see `add`."""
        self._changed("update", documents)

    def delete(self, ids: Id | Iterable[Id]) -> None:
        """Delete documents by id, or those of hits; see `add`. Raises CaiError for an id that is not there."""
        self._changed("delete", [*ids] if isinstance(ids, Iterable) and not isinstance(ids, str) else [ids])

    def _changed(self, action: Action, documents: Any) -> None:
        if self._change is None:
            raise CaiError(f"{self.name} is not opened as a run, so its documents cannot change")
        self._change(action, documents)

    def keep_hits(self) -> None:
        """Read the documents of hits that are in use, the latest KEPT, before this or an engine that shares an index
        closes."""
        left = KEPT
        for found in reversed([*self._found.values()]):
            left -= found.keep(max(left, 0))
        self._found.clear()

    def become(self, engine: Self) -> None:
        """Take the place of another engine, which is not used any more, and close what was open before."""
        self.close()
        vars(self).update(vars(engine))

    def __len__(self) -> int:
        """As `documents`."""
        return self.documents

    def __repr__(self) -> str:
        return f"<{self.name}: {self.documents:,} documents, {self.description}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.keep_hits()
        self._threads.shutdown()
        for store in self._stores:
            store.close()

    @property
    def _lucene_filter_index(self) -> LuceneIndex | None:
        return self._filter_index if isinstance(self._filter_index, LuceneIndex) else None

    @cached_property
    def _stems(self) -> CachedAnalyzer:
        return CachedAnalyzer(self.language)

    def _part_depth(self, hits: int, sort: str | None = None) -> int:
        """How many hits of each retriever are needed for `hits` of the system."""
        if sort is not None:
            require_field(str(sort).removeprefix("-"), self.metadata, "sort")
            hits = max(hits, SORT_DEPTH)
        if self._fusion is None:
            return hits
        return self._hits if FUSIONS[self._fusion].missing == "last" else self._depth

    def _parse(self, filter: Filters) -> Filter | None:
        if not (texts := filter_text(filter)):
            return None
        if self._filter_index is None:
            raise BadFilter(f"{self.name} cannot be filtered: none of its indexes has metadata or words")
        first, *others = (parse_filter(text, self.metadata) for text in texts)
        return Combined("AND", (first, *others)) if others else first

    def _search_parts(
        self,
        texts: Sequence[str],
        hits: int,
        threads: int = 1,
        filter: Filters = None,
        effort: Effort | None = None,
        found: Documents | None = None,
    ) -> list[dict[str, list[Hit]]]:
        """For each text, the hits by retriever, without retrievers that are late."""
        texts = [*map(normalized, texts)]
        if not all(text.strip() for text in texts):
            raise CaiError("the query is empty")
        for text in texts:
            require_utf8(text, "the query")
        parsed, found = self._parse(filter), found or Documents(self.document)
        calls = {
            name: partial(self._search_part, retriever, texts, hits, threads, parsed, effort, found)
            for name, retriever in self._retrievers.items()
        }
        if self._fusion and effort and effort.deadline < math.inf:
            results = self._call_until_deadline(calls, effort)
        else:
            results = {name: call() for name, call in calls.items()}
        return [{name: rankings[number] for name, rankings in results.items()} for number in range(len(texts))]

    def _call_until_deadline[R](self, calls: Mapping[str, Callable[[], R]], effort: Effort) -> dict[str, R]:
        """The results of calls by retriever. Late calls are left out and finish in their threads.

        Always waits for retrievers without a model, or for the first if all have one.
        """
        required = [name for name in calls if not self._retrievers[name].needs_model] or [*calls][:1]
        started = {}
        for name in calls:
            last = self._last_calls.get(name)
            if name not in required and (last is None or last.done()):
                started[name] = self._last_calls[name] = self._threads.submit(calls[name])
        results = {name: calls[name]() for name in required}
        for name, call in started.items():
            with suppress(TimeoutError):
                results[name] = call.result(max(0.0, effort.deadline - time.monotonic()))
        effort.late += [name for name in calls if name not in results]
        return {name: results[name] for name in calls if name in results}

    def _search_part(
        self,
        retriever: Retriever,
        texts: Sequence[str],
        hits: int,
        threads: int,
        filter: Filter | None,
        effort: Effort | None,
        found: Documents,
    ) -> list[list[Hit]]:
        """The hits of a retriever for each text; of passages, only the best of each document."""
        rankings = []
        depth = hits * (PASSAGE_HITS if self._passages else 1)
        for ranking in retriever.search(texts, depth, threads, filter, self._lucene_filter_index, effort):
            best: dict[str, tuple[float, str]] = {}
            for stored, score in ranking:
                best.setdefault(self.document_of(stored), (score, stored))
            numbered = enumerate(islice(best.items(), hits), 1)
            rankings.append([Hit(rank, id, *value, found) for rank, (id, value) in numbered])
        return rankings

    def _ranking(self, parts: Mapping[str, list[Hit]], hits: int, sort: str | None) -> list[Hit]:
        """The ranking for one query, by score or sorted by a field."""
        if sort is None:
            return self._by_score(parts, hits)
        name, ranking = sort.removeprefix("-"), self._by_score(parts, max(hits, SORT_DEPTH))
        kind, keys = self.metadata[name], dict[str, Any]()
        for hit in ranking:
            document = self.document(hit.stored)
            if document and (value := document.metadata.get(name)) is not None:
                keys[hit.id] = value if isinstance(value, list) or kind == "string" else bounds(value, kind)[0]
        ordered = sorted((hit for hit in ranking if hit.id in keys), key=lambda hit: keys[hit.id], reverse=sort != name)
        ordered += [hit for hit in ranking if hit.id not in keys]
        return [hit.at(rank) for rank, hit in enumerate(ordered[:hits], 1)]

    def _by_score(self, parts: Mapping[str, list[Hit]], hits: int) -> list[Hit]:
        """The ranking for one query: the hits of a single retriever, or the fusion of several."""
        if self._fusion is None or len(parts) == 1:
            (ranking,) = parts.values()
            return ranking[:hits]
        hits_by_id = {hit.id: hit for part in parts.values() for hit in part}
        weights = self._weights and [
            weight for weight, name in zip(self._weights, self._retrievers, strict=True) if name in parts
        ]
        run = fuse_runs([_run(part) for part in parts.values()], self._fusion, self._depth, hits, weights)
        scores = scores_by_query(run).get(QUERY, {})
        return [hits_by_id[id].at(rank, score) for rank, (id, score) in enumerate(scores.items(), 1)]

    def _explain(self, text: str, documents: Sequence[str], parts: Mapping[str, list[Hit]]) -> dict[str, Explanation]:
        """Explain the scores of documents, given the hits of each retriever."""
        explained = {name: self._explain_part(name, text, documents, hits) for name, hits in parts.items()}
        if self._fusion is None:
            return explained[self.name]
        fused = shares([_run(hits) for hits in parts.values()], self._fusion, self._depth, self._weights)
        not_fused = Shares(0.0, [0.0] * len(parts))
        ranks = {hit.id: hit.rank for hit in self._by_score(parts, self._hits)}
        explanations = {}
        for id in documents:
            if id in fused or any(id in by_id for by_id in explained.values()):
                score, part_shares = fused.get(id, not_fused)
                pairs = zip(part_shares, explained.values(), strict=True)
                of_parts = [Part(share, by_id[id]) for share, by_id in pairs if id in by_id]
                explanations[id] = Explanation(self.name, id, ranks.get(id), score, None, [], of_parts)
        return explanations

    def _explain_part(
        self, name: str, text: str, documents: Sequence[str], ranking: Sequence[Hit]
    ) -> dict[str, Explanation]:
        """Explanations by a retriever for all documents or, with passages, for those in its ranking."""
        hits = {hit.id: hit for hit in ranking}
        stored = {id: hits[id].stored if id in hits else id for id in documents if id in hits or not self._passages}
        scored = self._retrievers[name].explain(text, list(stored.values()))
        ranks = {id: hits[id].rank if id in hits else None for id in stored}
        return {
            id: Explanation(name, id, ranks[id], scored[key].score, None, scored[key].terms, [])
            for id, key in stored.items()
            if key in scored
        }

    def _highlight(
        self, stored: str, query: str, explanations: Sequence[Explanation]
    ) -> tuple[Marked, Marked, Mapping[str, Value], int | None]:
        """Title, snippet, metadata and page of a document."""
        document = self.document(stored)
        if document is None:
            return [], [], {}, None
        strengths_of = partial(word_strengths, explanations=explanations, terms_of=self.terms_of)

        def strong_beginnings() -> dict[str, float]:
            terms = {
                term.term.removeprefix(WORD): term.contribution / explanation.terms[0].contribution
                for explanation in explanations
                for term in explanation.terms
                if term.contribution > 0 and not term.term.startswith("##")  # which do not begin words
            }
            return beginnings(terms, strengths_of(query))

        pieces, page_breaks = best_snippet(_without_title(document), strengths_of, strong_beginnings)
        first_page = document.metadata.get("page", 1 if "\f" in document.contents else None)
        page = first_page + page_breaks if isinstance(first_page, int) else None
        return marked(document.title, strengths_of(document.title)), pieces, document.metadata, page


def _without_title(document: Stored) -> str:
    return document.contents.removeprefix(document.title).lstrip(" ")


def _id(document: Any) -> str:
    if isinstance(document, str):
        return document
    return document.id if isinstance(document, Hit) else checked_id(document, "the document")


def _text(text: str) -> str:
    if not isinstance(text, str):
        raise CaiError(f"a text is expected, not a {type(text).__name__}")
    return normalized(text)


def _texts(query: str | Iterable[str]) -> list[str]:
    if isinstance(query, str):
        return [query]
    if isinstance(query, Mapping | pd.DataFrame) or not isinstance(query, Iterable):
        kind = type(query).__name__
        raise CaiError(f"a query is a text, or several are a list of texts; this is a {kind}, which `rank` may take")
    texts = [*query]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise CaiError(f"query {number}, counted from 0, is a {type(text).__name__}: give a text")
    return texts


def _run(hits: Sequence[Hit]) -> pd.DataFrame:
    return run_of({QUERY: [(hit.id, hit.score) for hit in hits]})
