"""Search engines: an open index, or several whose results are fused."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, count, islice
from typing import Any, Literal, Self, overload
from weakref import WeakValueDictionary

import pandas as pd

from cai_pyserini.collections.in_python import Queries
from cai_pyserini.collections.in_python import topics as topics_of
from cai_pyserini.collections.values import checked_count, checked_id
from cai_pyserini.core.config import ENGLISH, PASSAGE, Language
from cai_pyserini.core.errors import CaiError, require_utf8
from cai_pyserini.core.metadata import Kind
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.found import SORT_DEPTH, Described, Found, Fusing, PartHits, highlighted
from cai_pyserini.engine.highlight import Marked
from cai_pyserini.engine.hits import Documents, Hit, Hits
from cai_pyserini.engine.reasons import Asked, words_of
from cai_pyserini.engine.retriever import Effort, Retrieved, Retriever, Where
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import BadFilter, Combined, Filter, Filters, filter_text, parse_filter, require_field
from cai_pyserini.indexes.retrieve import PASSAGE_HITS
from cai_pyserini.indexes.searcher import Searcher, Stored
from cai_pyserini.runs.trec import Ranking, ranks, run_of

KEPT = 1000  # documents of hits that are read when the index closes, at most; it takes up to a second

type Action = Literal["add", "update", "delete"]  # on documents
type Id = str | int | Hit  # of a document


class Engine:
    """A system's retrievers by name, and the fusion of their results if there are several.

    Runs have `most_hits`. With `passages`, the indexes hold passages, and a document has the score of its best one.
    `texts` is an index with the words of the documents, or one that stores them if no retriever's index does;
    `language` is their language, and `change` changes them.
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
        fusing: Fusing | None = None,
        *,
        most_hits: int = 1000,
        passages: bool = False,
        texts: Searcher | None = None,
        language: Language = ENGLISH,
        change: Callable[[Action, Any], None] | None = None,
    ):
        self.name, self.language, self._change = name, language, change
        self.retrievers, self.fusing = dict(retrievers), fusing
        self.most_hits, self.has_passages = most_hits, passages
        self._threads = ThreadPoolExecutor(len(retrievers), "part")  # for parts that may miss a deadline
        self._last_calls: dict[str, Future[Any]] = {}  # by part
        self._numbers = count()
        self._found = WeakValueDictionary[int, Documents]()  # of the searches whose hits are alive
        own, others = [retriever.searcher for retriever in retrievers.values()], [texts] if texts else []
        self._searchers = [*dict.fromkeys([*own, *others])]  # documents are read from the first that stores them
        with_phrases = (searcher for searcher in (*others, *own) if searcher.has_phrases)
        with_metadata = (searcher for searcher in (*others, *own) if searcher.metadata)
        self._filter_index = next(chain(with_phrases, with_metadata), None)

    @property
    def can_filter(self) -> bool:
        return self._filter_index is not None

    @property
    def has_words(self) -> bool:
        """Whether filters and operators of queries can have words."""
        return self._filter_index is not None and self._filter_index.has_phrases

    @property
    def matches_words(self) -> bool:
        """Whether `matches` of a text are the documents with a word of it, not all."""
        return any(retriever.searcher.word_prefix is not None for retriever in self.retrievers.values())

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
        found = self.find(_texts(query), k, threads=threads, filter=filter, sort=sort, effort=effort)
        rankings = [each.hits for each in found]
        return rankings[0] if isinstance(query, str) else rankings

    def find(
        self,
        texts: Sequence[str],
        k: int = 10,
        *,
        threads: int = 1,
        filter: Filters = None,
        sort: str | None = None,
        effort: Effort | None = None,
    ) -> list[Found]:
        """As `search`, with what explains and describes the hits of each text."""
        k, threads = checked_count(k, "k"), checked_count(threads, "threads")
        documents = Documents(self.document)
        depth = self._part_depth(k, sort)
        found = self._find(texts, depth, documents, threads=threads, filter=filter, effort=effort)
        for each in found:
            each.rank(k, sort)
        documents.ids = [hit.stored for hit in islice(chain.from_iterable(each.hits for each in found), KEPT)]
        self._found[next(self._numbers)] = documents
        return found

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
            raise BadFilter(f"facets: {self.name} is in {self._engines}, which does not count the values of fields")
        most = checked_count(most, "most")
        return {name: matches.values(name, self.metadata[name], most) for name in names if matches}

    def matches(self, text: str = "", filter: Filters = None) -> Matches | None:
        """The documents that `facets` counts; None if no index of the system can count them."""
        parsed, index, text = self._parse(filter), self._filter_index, _text(text)
        for retriever in self.retrievers.values() if text.strip() else ():
            if retriever.searcher.metadata == self.metadata and (found := retriever.matches(parsed, text, index)):
                return found
        return index.matches(parsed) if index else None

    def document_frequencies(self, text: str) -> dict[str, int]:
        """The number of documents that have each word of a text, without words that the index leaves out; empty if no
        index has the words of the documents."""
        with_words = (r.searcher for r in self.retrievers.values() if r.searcher.word_prefix is not None)
        if (index := next(with_words, self._filter_index if self.has_words else None)) is None:
            return {}
        prefix = index.word_prefix or ""
        stems = {word: self._stems(word) for word in words_of(_text(text))}
        return {
            word: max(index.documents_with(prefix + stem) for stem in of_word)
            for word, of_word in stems.items()
            if of_word
        }

    def describe(
        self, text: str, k: int = 10, start: int = 0, filter: Filters = None, sort: str | None = None
    ) -> Iterator[Described]:
        """Yield the best documents for a text, see `search`, from the one after `start`, with explanations and the
        matching words of title and snippet highlighted."""
        (found,) = self.find([text], k, filter=filter, sort=sort)
        yield from found.describe(found.hits[start:])

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
        (found,) = self._find([query], self.most_hits, Documents(self.document))
        explained = found.explain(ids)
        if several:
            return explained
        if ids[0] not in explained:
            raise CaiError(f"{self.name} has no document {ids[0]!r}" + " among the hits" * self.has_passages)
        return explained[ids[0]]

    def asked(self, query: str) -> Asked:
        """The words of a query, to say why a document was found, and to mark them in its text."""

        def is_word(name: str, term: str) -> bool:
            prefix = self.retrievers[name].searcher.word_prefix
            return prefix is not None and term.startswith(prefix)

        def variants(name: str, word: str) -> list[str]:
            searcher = self.retrievers[name].searcher
            return [variant for stem in self._stems(word) for variant in searcher.variants_of(stem)]

        def terms_of(name: str, word: str) -> list[str]:
            prefix = self.retrievers[name].searcher.word_prefix or ""
            return [*self.terms_of(name, word), *(prefix + variant for variant in variants(name, word))]

        query = _text(query)
        words = {
            word: [*self._stems(word), *(variant for name in self.retrievers for variant in variants(name, word))]
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
        return document, explanation, highlighted(document, query, explanation, self.terms_of)[1]

    def suggestion(self, text: str) -> str | None:
        """A text with similar words for those that no document has; None if there is none."""
        suggested = (retriever.suggestion(_text(text)) for retriever in self.retrievers.values())
        return next(filter(None, suggested), None)

    def terms_of(self, name: str, word: str) -> Sequence[str]:
        """A retriever's index terms for a word."""
        return self.retrievers[name].terms_of(word)

    @property
    def description(self) -> str:
        """A phrase that says how it finds documents."""
        parts = " + ".join(retriever.description for retriever in self.retrievers.values())
        return parts if self.fusing is None else f"fusion of {parts}"

    @property
    def documents(self) -> int:
        """The number of documents, or of passages if its indexes hold passages."""
        return next(iter(self.retrievers.values())).searcher.documents

    @property
    def unit(self) -> str:
        """What `documents` and facets count: document or passage."""
        return "passage" if self.has_passages else "document"

    def document_of(self, stored: str) -> str:
        """The id of a document, given the id in the indexes: its own, or that of a passage."""
        return stored.partition(PASSAGE)[0] if self.has_passages else stored

    def document(self, id: Id) -> Stored | None:
        """A stored document, of an id or a hit; None if no index stores it."""
        id = id.stored if isinstance(id, Hit) else _id(id)
        stored = (searcher.document(id) for searcher in self._searchers)
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
        for searcher in self._searchers:
            searcher.close()

    @property
    def _engines(self) -> str:
        return " and ".join(dict.fromkeys(searcher.engine for searcher in self._searchers))

    @cached_property
    def _stems(self) -> Analyzer:
        return Analyzer(self.language)

    def _part_depth(self, hits: int, sort: str | None = None) -> int:
        """How many hits of each retriever are needed for `hits` of the system."""
        if sort is not None:
            require_field(str(sort).removeprefix("-"), self.metadata, "sort")
            hits = max(hits, SORT_DEPTH)
        if self.fusing is None:
            return hits
        return self.most_hits if self.fusing.needs_runs else self.fusing.depth

    def _parse(self, filter: Filters) -> Filter | None:
        if not (texts := filter_text(filter)):
            return None
        if self._filter_index is None:
            raise BadFilter(f"{self.name} cannot be filtered: none of its indexes has metadata or words")
        first, *others = (parse_filter(text, self.metadata) for text in texts)
        return Combined("AND", (first, *others)) if others else first

    def _find(
        self,
        texts: Sequence[str],
        depth: int,
        documents: Documents,
        *,
        threads: int = 1,
        filter: Filters = None,
        effort: Effort | None = None,
    ) -> list[Found]:
        """What is found for each text, up to `depth` documents of each retriever, without retrievers that are late."""
        texts = [*map(_text, texts)]
        if not all(text.strip() for text in texts):
            raise CaiError("the query is empty")
        for text in texts:
            require_utf8(text, "the query")
        parsed = self._parse(filter)
        where = Where(parsed, self._filter_index) if parsed else None
        calls = {
            name: partial(self._search_part, retriever, texts, depth, threads, where, effort)
            for name, retriever in self.retrievers.items()
        }
        if self.fusing and effort and effort.deadline < math.inf:
            results = self._call_until_deadline(calls, effort)
        else:
            results = {name: call() for name, call in calls.items()}
        return [
            Found(self, text, {name: hits[number] for name, hits in results.items()}, documents)
            for number, text in enumerate(texts)
        ]

    def _call_until_deadline[R](self, calls: Mapping[str, Callable[[], R]], effort: Effort) -> dict[str, R]:
        """The results of calls by retriever. Late calls are left out and finish in their threads.

        Always waits for retrievers without a model, or for the first if all have one.
        """
        required = [name for name in calls if not self.retrievers[name].needs_model] or [*calls][:1]
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
        depth: int,
        threads: int,
        where: Where | None,
        effort: Effort | None,
    ) -> list[PartHits]:
        """What a retriever finds for each text; of passages, only the best of each document."""
        most = depth * (PASSAGE_HITS if self.has_passages else 1)
        found = retriever.search(texts, most, threads, where, effort)
        return [self._part_hits(each, depth) for each in found]

    def _part_hits(self, found: Retrieved, depth: int) -> PartHits:
        if not self.has_passages:
            return PartHits(found.query, found.ranking, {})
        best: dict[str, tuple[float, str]] = {}
        for passage, score in found.ranking:
            best.setdefault(self.document_of(passage), (score, passage))
        ranking = Ranking([*best], [score for score, _ in best.values()])[:depth]
        return PartHits(found.query, ranking, {id: best[id][1] for id in ranking.ids})


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
