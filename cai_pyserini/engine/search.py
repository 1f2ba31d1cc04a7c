"""Search engines: an open index, or several whose results are fused."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Literal, Self, overload
from weakref import WeakValueDictionary

from cai_pyserini.collections.contract import PAGE
from cai_pyserini.collections.file_listing import FileListing
from cai_pyserini.collections.in_python import Queries, is_table
from cai_pyserini.collections.in_python import topics as topics_of
from cai_pyserini.collections.values import checked_count, checked_id
from cai_pyserini.core.config import ENGLISH, PASSAGE, document_of
from cai_pyserini.core.errors import CaiError, require_utf8
from cai_pyserini.core.metadata import Kind
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.excerpts import DOCUMENTS, PASSAGES, Answer, Excerpt
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.found import SORT_DEPTH, Described, Found, Fusing, Parts
from cai_pyserini.engine.hits import Documents, Hit, Hits, joined
from cai_pyserini.engine.quotes import Quote, find_quote
from cai_pyserini.engine.reasons import Asked, words_with_stems
from cai_pyserini.engine.retriever import Deadline, Retriever, Where
from cai_pyserini.engine.suggest import suggestion
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.facets import Matches
from cai_pyserini.indexes.filters import (
    BadFilter,
    Combined,
    Filter,
    Filters,
    filter_text,
    has_phrase,
    parse_filter,
    require_field,
)
from cai_pyserini.indexes.searcher import Searcher, Stored
from cai_pyserini.runs.trec import run_of

if TYPE_CHECKING:
    import pandas as pd

JOINED = 2  # documents that are kept; joining 8,000 passages takes half a second
KEPT = 1000  # documents of hits that are read when the index closes, at most; it takes up to a second

type Action = Literal["add", "update", "delete"]  # on documents
type Id = str | int | Hit  # of a document


class Engine:
    """A system's retrievers by name, and the fusion of their results if there are several.

    Runs have `most_hits`. With `passages`, the indexes hold passages, and a document has the score of its best one.
    `texts` is an index with the words of the documents, or one that stores them if no retriever's index does;
    `language` is their language, `files` are the files that they were read from, and `change` changes them.
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
        language: str = ENGLISH,
        files: FileListing | None = None,
        change: Callable[[Action, Any], None] | None = None,
    ):
        self.name, self.language, self.files, self._change = name, language, files, change
        self.parts = Parts(name, retrievers, fusing, most_hits, passages)
        self._retrievers = self.parts.retrievers.values()
        self._numbers = count()
        self._joined = lru_cache(maxsize=JOINED)(self._join)
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
        return any(retriever.searcher.word_prefix is not None for retriever in self._retrievers)

    @property
    def metadata(self) -> dict[str, Kind]:
        """The types of metadata fields by name."""
        return self._filter_index.metadata if self._filter_index else {}

    @property
    def countable(self) -> dict[str, Kind]:
        """The types of the metadata fields that `facets` takes by name."""
        return {name: kind for name, kind in self.metadata.items() if name != PAGE or not self.parts.has_passages}

    @overload
    def search(  # type: ignore[overload-overlap]
        self, query: str, k: int = 10, threads: int = 1, filter: Filters = None, sort: str | None = None
    ) -> Hits: ...
    @overload
    def search(
        self, query: Iterable[str], k: int = 10, threads: int = 1, filter: Filters = None, sort: str | None = None
    ) -> list[Hits]: ...
    def search(
        self, query: str | Iterable[str], k: int = 10, threads: int = 1, filter: Filters = None, sort: str | None = None
    ) -> Hits | list[Hits]:
        """The best `k` documents for a query, or for each of several.

        `filter` limits documents by metadata and words: a text such as "year>=2000", see filters, a dict such as
        {"year": {">=": 2000}, "type": ["a", "b"]}, or several, which must all match. `sort` names a metadata field that
        orders the best SORT_DEPTH documents, or `k` if that is more; with `-` before it, largest values first.
        Documents without a value come last. Raises BadFilter if either is invalid.
        """
        texts = texts_of(query, "query", ", which `rank` may take")
        found = self.find(texts, k, threads=threads, filter=filter, sort=sort)
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
        deadline: Deadline | None = None,
    ) -> list[Found]:
        """As `search`, with what explains and describes the hits of each text, without parts that are late."""
        k, threads = checked_count(k, "k"), checked_count(threads, "threads")
        field, depth = str(sort).removeprefix("-"), k
        if sort is not None:
            require_field(field, self.metadata, "sort")
            depth = max(k, SORT_DEPTH)
        documents = Documents(self._read)
        found = self.parts.find(
            _checked(texts),
            self.parts.depth(depth),
            documents,
            threads=threads,
            where=self._where(filter),
            deadline=deadline,
        )
        for each in found:
            each.rank(k, sort, self.metadata.get(field, "string"))
        documents.ids = [hit.stored for hit in islice(chain.from_iterable(each.hits for each in found), KEPT)]
        self._found[next(self._numbers)] = documents
        return found

    def excerpts(self, query: str, budget_tokens: int = 2000, filter: Filters = None) -> list[Excerpt]:
        """Excerpts of the best documents for a query, best first, with `budget_tokens` tokens in all at most: whole
        sentences, none twice, with their places in the documents' texts, for an assistant to quote from.

        A token is 4 bytes of UTF-8 of docids, titles and texts. Nothing is found without stored documents.

        >>> [(each.docid, each.start, each.text) for each in engine.excerpts("high blood pressure", 25)]
        [('d10', 0, 'Short sleep is associated with higher blood pressure and with obesity.')]
        """
        budget, has_passages = checked_count(budget_tokens, "budget_tokens"), self.parts.has_passages
        most = PASSAGES if has_passages else DOCUMENTS
        (found,) = self.parts.of_passages().find(
            _checked([query]), self.parts.depth(most), Documents(self._read), where=self._where(filter)
        )
        found.rank(most)
        return Answer(found, self._read, has_passages).excerpts(budget)

    @overload
    async def search_async(self, query: str, k: int = 10, **options: Any) -> Hits: ...
    @overload
    async def search_async(self, query: Iterable[str], k: int = 10, **options: Any) -> list[Hits]: ...
    async def search_async(self, query: str | Iterable[str], k: int = 10, **options: Any) -> Hits | list[Hits]:
        """As `search`, whose options are keywords, in another thread, so that an event loop goes on meanwhile."""
        from asyncio import to_thread  # who awaits has imported it

        return await to_thread(lambda: self.search(query, k, **options))

    def rank(self, queries: Queries, k: int = 1000, threads: int = 1, filter: Filters = None) -> "pd.DataFrame":
        """The rankings of many queries, a row per hit: `query_id`, `doc_id`, `score` and `rank`, from 1.

        `queries` are {id: text}, texts, whose ids are their numbers from 0, (id, text) pairs, or a table with an id,
        such as `query_id` or `qid`, and `text` or `query`.
        """
        topics = topics_of(queries)
        rankings = self.search([*topics.values()], k, threads, filter) if topics else []
        found = zip(topics, rankings, strict=True)
        return run_of({id: [(hit.id, hit.score) for hit in ranking] for id, ranking in found}).to_dataframe()

    def facets(
        self, names: str | Sequence[str], text: str = "", filter: Filters = None, most: int = 10
    ) -> dict[str, dict[str, int]]:
        """Field -> its `most` frequent values -> the number of documents, of a field or several.

        Counts the documents that pass `filter` and have a word of the text, at any rank; without a text, and in systems
        without BM25, all that pass `filter`. Raises BadFilter for the field `page` of passages, and for an index in
        Milvus, which counts no values.
        """
        for name in (names := [names] if isinstance(names, str) else [*dict.fromkeys(names)]):
            require_field(name, self.countable, "facets")
        if names and (matches := self.matches(text, filter)) is None:
            engines = " and ".join(dict.fromkeys(searcher.engine for searcher in self._searchers))
            raise BadFilter(f"facets: {self.name} is in {engines}, which does not count the values of fields")
        most = checked_count(most, "most")
        return {name: matches.values(name, self.metadata[name], most) for name in names if matches}

    def matches(self, text: str = "", filter: Filters = None) -> Matches | None:
        """The documents that `facets` counts; None if no index of the system can count them."""
        parsed, index, text = self._parse(filter), self._filter_index, _text(text)
        found = (
            retriever.matches(parsed, text, index)
            for retriever in (self._retrievers if text.strip() else ())
            if retriever.searcher.metadata == self.metadata
        )
        matches = next((each for each in found if each), None)
        if matches is None or (parsed and has_phrase(parsed) and not matches.documents):  # see Retriever.search
            matches = index.matches(parsed) if index else None
        return matches.fold() if matches and self.parts.has_passages else matches

    def document_frequencies(self, text: str) -> dict[str, int]:
        """The number of documents that have each word of a text, or of passages, without words that the index leaves
        out; empty if no index has the words of the documents."""
        if (index := self._word_index) is None:
            return {}
        prefix = index.word_prefix or ""
        stems = words_with_stems(_text(text), self._stems.likely(_text(text)))
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

        With passages, the best one of a document is explained, or the passage whose id this is. Documents that the
        indexes lack are left out. In a hybrid, a passage, and a document beyond the fused lists, have score 0 and no
        rank. Raises CaiError for a single document that is not there.
        """
        several = isinstance(document, Iterable) and not isinstance(document, str)
        ids = [*map(_id, document)] if isinstance(document, Iterable) and several else [_id(document)]
        (found,) = self.parts.find(_checked([query]), self.parts.most_hits, Documents(self._read))
        explained = found.explain(ids, self._stored_ids)
        if several:
            return explained
        if ids[0] not in explained:
            raise CaiError(f"{self.name} has no document {ids[0]!r}")
        return explained[ids[0]]

    def asked(self, query: str) -> Asked:
        """The words of a query, to say why a document was found, and to mark them in its text."""
        return Asked(_text(query), self.parts.retrievers, self._stems.likely(_text(query)))

    def suggestion(self, text: str) -> str | None:
        """A text with similar words for those that no document has; None if there is none."""
        index = self._word_index
        return suggestion(_text(text), index, self._stems.likely(_text(text)).stems) if index else None

    @property
    def description(self) -> str:
        """A phrase that says how it finds documents."""
        parts = " + ".join(retriever.description for retriever in self._retrievers)
        return parts if self.parts.fusing is None else f"fusion of {parts}"

    @property
    def documents(self) -> int:
        """The number of documents."""
        searcher = next(iter(self._retrievers)).searcher
        return searcher.documents_in_passages if self.parts.has_passages else searcher.documents

    @property
    def passages(self) -> int:
        """The number of passages, or of documents if they are not split into passages."""
        return next(iter(self._retrievers)).searcher.documents

    def document(self, id: Id) -> Stored | None:
        """A stored document, of an id or a hit, or the passage whose id this is; None if no index stores it."""
        id = _id(id)
        ids = self._stored_ids(id)
        return self._read(ids).get(id) if ids == [id] else self._joined(id, tuple(ids))

    def _join(self, id: str, passages: tuple[str, ...]) -> Stored:
        stored = self._read(passages)
        return joined(id, [stored[each] for each in passages if each in stored])

    def docid(self, id: Id) -> str:
        """The id of the document that has this id, or that has the passage with this id."""
        is_document = not self.parts.has_passages or self._stored_ids(_id(id)) != [_id(id)]
        return _id(id) if is_document else document_of(_id(id))

    def quote(self, document: Id, text: str) -> Quote:
        """Where a text stands in a document, or the place that is most similar to it. Raises CaiError for a document
        that is not stored.

        >>> quote = engine.quote("d5", "lowers  Blood-Pressure")
        >>> print(quote.found, quote.start, quote.end, quote.text)
        True 17 38 lowers blood pressure
        """
        if (stored := self.document(document)) is None:
            raise CaiError(f"{self.name} stores no document {_id(document)!r}")
        return find_quote(stored, text)

    def _stored_ids(self, id: str) -> list[str]:
        """The ids in the indexes of a document, its passages' if it has any; or else of what has this id."""
        first = self._read([f"{id}{PASSAGE}0"]) if self.parts.has_passages else {}
        return [f"{id}{PASSAGE}{n}" for one in first.values() for n in range(one.passages)] or [id]

    def _read(self, ids: Sequence[str]) -> dict[str, Stored]:
        """What the indexes store, by ids in the indexes; each from the first index that has it."""
        found: dict[str, Stored] = {}
        for searcher in self._searchers:
            if missing := [id for id in ids if id not in found]:
                found |= searcher.read(missing)
        return found

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
        self.parts.threads.shutdown()
        for searcher in self._searchers:
            searcher.close()

    @property
    def _word_index(self) -> Searcher | None:
        """An index with the words of the documents, by preference of BM25."""
        with_words = (r.searcher for r in self._retrievers if r.searcher.word_prefix is not None)
        return self._filter_index if self.has_words else next(with_words, None)

    @cached_property
    def _stems(self) -> Analyzer:
        return Analyzer(self.language)

    def _where(self, filter: Filters) -> Where | None:
        parsed = self._parse(filter)
        return (parsed, self._filter_index) if parsed else None

    def _parse(self, filter: Filters) -> Filter | None:
        if not (texts := filter_text(filter)):
            return None
        if self._filter_index is None:
            raise BadFilter(f"{self.name} cannot be filtered: none of its indexes has metadata or words")
        first, *others = (parse_filter(text, self.metadata) for text in texts)
        return Combined("AND", (first, *others)) if others else first


def _id(document: Any) -> str:
    if isinstance(document, str):
        return document
    return document.id if isinstance(document, Hit) else checked_id(document, "the document")


def _text(text: str) -> str:
    if not isinstance(text, str):
        raise CaiError(f"a text is expected, not a {type(text).__name__}")
    return normalized(text)


def _checked(texts: Sequence[str]) -> list[str]:
    """Normalized queries. Raises CaiError for one that is empty or not UTF-8."""
    texts = [*map(_text, texts)]
    for text in texts:
        if not text.strip():
            raise CaiError("the query is empty")
        require_utf8(text, "the query")
    return texts


def texts_of(texts: str | Iterable[str], what: str, advice: str) -> list[str]:
    """A text, or several. Raises CaiError, with `advice`, for what is neither, and names a `what` that is no text."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, Mapping) or is_table(texts) or not isinstance(texts, Iterable):
        raise CaiError(f"a text is expected, or a list of texts; this is a {type(texts).__name__}{advice}")
    several = [*texts]
    for number, text in enumerate(several):
        if not isinstance(text, str):
            raise CaiError(f"{what} {number}, counted from 0, is a {type(text).__name__}: give a text")
    return several
