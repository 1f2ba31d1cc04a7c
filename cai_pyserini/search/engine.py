"""A system that answers queries: an open index, or several whose results are fused."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pandas as pd

from cai_pyserini.core.config import ENGLISH, PASSAGE, Language
from cai_pyserini.core.errors import CaiError, require_utf8
from cai_pyserini.core.metadata import Kind, Value, bounds
from cai_pyserini.core.trec import run_of, scores_by_query
from cai_pyserini.fusion.fuse import Shares, fuse_runs, shares
from cai_pyserini.fusion.fusions import DEPTH, FUSIONS
from cai_pyserini.retrieval.filters import BadFilter as BadFilter
from cai_pyserini.retrieval.filters import Combined, Filter, parse_filter, require_field
from cai_pyserini.retrieval.filters import without_operators as without_operators
from cai_pyserini.retrieval.lucene import LuceneIndex
from cai_pyserini.retrieval.lucene import Stored as Stored
from cai_pyserini.retrieval.search import PASSAGE_HITS
from cai_pyserini.search.explanation import Explanation, Part
from cai_pyserini.search.highlight import Marked, marked, snippet, word_strengths
from cai_pyserini.search.retriever import Effort, Retriever

BEGINNING = 20_000  # characters of a document in which a snippet is looked for; each new word takes 0.1 ms
SORTED = 100  # the best documents, which are sorted by a field
QUERY = "query"  # the query's id where the runs of one query are fused

Filters = str | tuple[str, ...] | None  # of which a document has to pass all


class Hit(NamedTuple):
    """A document of a ranking."""

    rank: int  # from 1
    id: str
    score: float
    stored: str  # the id in the indexes: of the document, or of its best passage


class Described(NamedTuple):
    """A hit, why it has its score, and its title, a snippet and metadata, empty if no index stores the document."""

    hit: Hit
    explanation: Explanation
    title: Marked
    snippet: Marked
    metadata: Mapping[str, Value]


class Engine:
    """The retrievers of a system by name, and the fusion of their results if there are several.

    The best `depth` documents of each are fused, as in `fusion.fuse_runs`; a whole run has `hits`, which some methods
    need. With `passages`, the documents of the indexes are passages, and a document has the score of its best. `texts`
    has the documents' words, or stores them where no index of the retrievers does; their language is `language`.
    Threads can share engines like retrievers. Methods raise CaiError for a text that is empty.
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
        texts: LuceneIndex | None = None,
        language: Language = ENGLISH,
    ):
        self.name, self.language = name, language
        self._retrievers = dict(retrievers)
        self._fusion, self._depth, self._hits, self._weights = fusion, depth, hits, weights
        self._passages = passages
        self._sources: list[Retriever | LuceneIndex] = [*retrievers.values(), *filter(None, [texts])]  # of documents
        self._threads = ThreadPoolExecutor(len(retrievers), "part")  # of parts that may be late
        self._running: dict[str, Future[Any]] = {}  # their last calls
        indexes = [*filter(None, [texts, *(retriever.index for retriever in retrievers.values())])]
        with_words = (index for index in indexes if index.manifest.stats["kind"] == "bm25")
        with_metadata = (index for index in indexes if index.metadata)
        self._filters = next(chain(with_words, with_metadata), None)  # by which documents are filtered
        kinds = {index.manifest.stats["kind"] for index in indexes}
        self.can_filter = self._filters is not None and "dense" not in kinds  # Lucene's search of vectors cannot
        self.has_words = self.can_filter and "bm25" in kinds  # in filters, and in operators of queries

    @property
    def metadata(self) -> dict[str, Kind]:
        """The types of the documents' metadata, by name."""
        return self._filters.metadata if self._filters else {}

    def search(
        self,
        texts: Sequence[str],
        hits: int = 10,
        threads: int = 1,
        filter: Filters = None,
        sort: str | None = None,
        effort: Effort | None = None,
    ) -> list[list[Hit]]:
        """The best documents for each text. What the search takes is added to `effort`, whose deadline is kept.

        `filter` limits them by their metadata and words, see retrieval.filters; of several, all do. `sort` is the name
        of a field by which the best SORTED documents, or `hits` if these are more, are ordered, with `-` before it from
        the largest value; those without one come last. Raises BadFilter for either if it cannot be understood.
        """
        found = self._parts(texts, self._needed(hits, sort), threads, filter, effort)
        return [self._best(parts, hits, sort) for parts in found]

    def facets(
        self, names: Sequence[str], text: str = "", filter: Filters = None, most: int = 10
    ) -> dict[str, dict[str, int]]:
        """Field -> its `most` frequent values -> the number of documents, see LuceneIndex.counts.

        All documents count that `filter` lets through and that have a word of the text, wherever they rank; without a
        text, and in systems without BM25, all that `filter` lets through.
        """
        for name in (names := [*dict.fromkeys(names)]):
            require_field(name, self.metadata, "facets")
        parsed, index = self._parsed(filter), self._filters
        for retriever in self._retrievers.values() if text.strip() else ():
            if retriever.index and retriever.index.metadata and (query := retriever.having_words(text)) is not None:
                return retriever.index.counts(names, most, parsed, query, index)
        return index.counts(names, most, parsed) if index else {}

    def describe(
        self, text: str, hits: int = 10, start: int = 0, filter: Filters = None, sort: str | None = None
    ) -> Iterator[Described]:
        """Yield the best documents for a text, see `search`, but for the first `start`, the words that make their
        scores marked in title and snippet."""
        (parts,) = self._parts([text], self._needed(hits, sort), filter=filter)
        ranking = self._best(parts, hits, sort)[start:]
        explained = self._explain(text, [hit.id for hit in ranking], parts)
        for hit in ranking:
            explanation = explained[hit.id]
            explanations = [part.explanation for part in explanation.parts] or [explanation]
            yield Described(hit, explanation, *self._shown(hit.stored, explanations))

    def snippets(self, text: str, hits: Sequence[Hit]) -> Iterator[str]:
        """Yield the snippet of each hit, as `describe` does."""
        stored = [hit.stored for hit in hits]
        scored = {name: retriever.explain(text, stored) for name, retriever in self._retrievers.items()}
        for id in stored:
            of = {name: of_part[id] for name, of_part in scored.items() if id in of_part}
            explanations = [Explanation(name, id, None, score, None, terms, []) for name, (score, terms) in of.items()]
            yield "".join(piece for piece, _ in self._shown(id, explanations)[1])

    def explain(self, text: str, documents: Sequence[str]) -> dict[str, Explanation]:
        """Why documents have their scores for a text, by id, wherever they rank.

        Documents that the indexes do not have are left out. In a hybrid, a document beyond the fused lists has score 0
        and no rank. With passages, only documents among the hits of a run are explained.
        """
        (parts,) = self._parts([text], self._hits)
        return self._explain(text, documents, parts)

    def suggestion(self, text: str) -> str | None:
        """What was probably meant by a text with words that no document has; None if there are none."""
        suggested = (retriever.suggestion(text) for retriever in self._retrievers.values())
        return next(filter(None, suggested), None)

    def terms_of(self, name: str, word: str) -> Sequence[str]:
        """The terms that a word of a text is to the index of a retriever."""
        return self._retrievers[name].terms_of(word)

    @property
    def description(self) -> str:
        """What it finds documents by, in a phrase."""
        parts = " + ".join(retriever.description for retriever in self._retrievers.values())
        return parts if self._fusion is None else f"fusion of {parts}"

    @property
    def documents(self) -> int:
        """The number of documents; of passages, if its indexes have those."""
        return next(iter(self._retrievers.values())).documents

    def document(self, id: str) -> Stored | None:
        """A document as an index stores it; None if none does."""
        stored = (source.document(id) for source in self._sources)
        return next((document for document in stored if document), None)

    def close(self) -> None:
        self._threads.shutdown()
        for source in self._sources:
            source.close()

    def _needed(self, hits: int, sort: str | None = None) -> int:
        """The hits of each retriever that make `hits` of the system, sorted by a field or not."""
        if sort is not None:
            require_field(sort.removeprefix("-"), self.metadata, "sort")
            hits = max(hits, SORTED)
        if self._fusion is None:
            return hits
        return self._hits if FUSIONS[self._fusion].missing == "last" else self._depth

    def _parsed(self, filter: Filters) -> Filter | None:
        if filter is None:
            return None
        if self._filters is None:
            raise BadFilter(f"{self.name} cannot be filtered: no Lucene index of it has metadata or words")
        texts = [filter] if isinstance(filter, str) else filter
        first, *others = (parse_filter(text, self.metadata) for text in texts)
        return Combined("AND", (first, *others)) if others else first

    def _parts(
        self,
        texts: Sequence[str],
        hits: int,
        threads: int = 1,
        filter: Filters = None,
        effort: Effort | None = None,
    ) -> list[dict[str, list[Hit]]]:
        """The hits of each retriever by its name, for each text; those that are late are missing."""
        if not all(text.strip() for text in texts):
            raise CaiError("the query is empty")
        for text in texts:
            require_utf8(text, "the query")
        parsed = self._parsed(filter)
        calls = {
            name: partial(self._found, retriever, texts, hits, threads, parsed, effort)
            for name, retriever in self._retrievers.items()
        }
        if self._fusion and effort and effort.deadline < math.inf:
            found = self._in_time(calls, effort)
        else:
            found = {name: call() for name, call in calls.items()}
        return [{name: of_part[number] for name, of_part in found.items()} for number in range(len(texts))]

    def _in_time[R](self, calls: Mapping[str, Callable[[], R]], effort: Effort) -> dict[str, R]:
        """The results of calls by a retriever's name, without those that are late, which go on in their threads.

        Retrievers without a model are waited for; if all have one, the first is.
        """
        awaited = [name for name in calls if not self._retrievers[name].needs_model] or [*calls][:1]
        started = {}
        for name in calls:
            running = self._running.get(name)
            if name not in awaited and (running is None or running.done()):
                started[name] = self._running[name] = self._threads.submit(calls[name])
        found = {name: calls[name]() for name in awaited}
        for name, running in started.items():
            with suppress(TimeoutError):
                found[name] = running.result(max(0.0, effort.deadline - time.monotonic()))
        effort.late += [name for name in calls if name not in found]
        return {name: found[name] for name in calls if name in found}

    def _found(
        self,
        retriever: Retriever,
        texts: Sequence[str],
        hits: int,
        threads: int,
        filter: Filter | None,
        effort: Effort | None,
    ) -> list[list[Hit]]:
        """The hits of a retriever; of passages, the best of each document."""
        rankings = []
        most = hits * (PASSAGE_HITS if self._passages else 1)
        for found in retriever.search(texts, most, threads, filter, self._filters, effort):
            best: dict[str, tuple[float, str]] = {}
            for stored, score in found:
                best.setdefault(stored.partition(PASSAGE)[0] if self._passages else stored, (score, stored))
            rankings.append([Hit(rank, id, *value) for rank, (id, value) in enumerate(best.items(), 1)][:hits])
        return rankings

    def _best(self, parts: Mapping[str, list[Hit]], hits: int, sort: str | None) -> list[Hit]:
        """The ranking of one query, or its best documents sorted by a field."""
        if sort is None:
            return self._ranked(parts, hits)
        name, ranking = sort.removeprefix("-"), self._ranked(parts, max(hits, SORTED))
        kind, keys = self.metadata[name], dict[str, Any]()
        for hit in ranking:
            document = self.document(hit.stored)
            if document and (value := document.metadata.get(name)) is not None:
                keys[hit.id] = value if isinstance(value, list) or kind == "string" else bounds(value, kind)[0]
        ordered = sorted((hit for hit in ranking if hit.id in keys), key=lambda hit: keys[hit.id], reverse=sort != name)
        ordered += [hit for hit in ranking if hit.id not in keys]
        return [hit._replace(rank=rank) for rank, hit in enumerate(ordered[:hits], 1)]

    def _ranked(self, parts: Mapping[str, list[Hit]], hits: int) -> list[Hit]:
        """The ranking of one query: the hits of its retriever, or the fusion of those of several."""
        if self._fusion is None or len(parts) == 1:
            (found,) = parts.values()
            return found[:hits]
        stored = {hit.id: hit.stored for part in parts.values() for hit in part}
        weights = self._weights and [
            weight for weight, name in zip(self._weights, self._retrievers, strict=True) if name in parts
        ]
        run = fuse_runs([_run(part) for part in parts.values()], self._fusion, self._depth, hits, weights)
        scores = scores_by_query(run).get(QUERY, {})
        return [Hit(rank, id, score, stored[id]) for rank, (id, score) in enumerate(scores.items(), 1)]

    def _explain(self, text: str, documents: Sequence[str], parts: Mapping[str, list[Hit]]) -> dict[str, Explanation]:
        """Why documents have their scores, from the hits of each retriever."""
        explained = {name: self._explained(name, text, documents, hits) for name, hits in parts.items()}
        if self._fusion is None:
            return explained[self.name]
        fused = shares([_run(hits) for hits in parts.values()], self._fusion, self._depth, self._weights)
        beyond = Shares(0.0, [0.0] * len(parts))  # the fused lists
        ranks = {hit.id: hit.rank for hit in self._ranked(parts, self._hits)}
        known = [id for id in documents if id in fused or any(id in of_part for of_part in explained.values())]
        made = {}
        for id in known:
            score, of_runs = fused.get(id, beyond)
            of_id = [Part(s, of[id]) for s, of in zip(of_runs, explained.values(), strict=True) if id in of]
            made[id] = Explanation(self.name, id, ranks.get(id), score, None, [], of_id)
        return made

    def _explained(
        self, name: str, text: str, documents: Sequence[str], found: Sequence[Hit]
    ) -> dict[str, Explanation]:
        """The explanations of a retriever: of all documents, or, if it has passages, of those that it finds."""
        hits = {hit.id: hit for hit in found}
        stored = {id: hits[id].stored if id in hits else id for id in documents if id in hits or not self._passages}
        scored = self._retrievers[name].explain(text, list(stored.values()))
        ranks = {id: hits[id].rank if id in hits else None for id in stored}
        return {
            id: Explanation(name, id, ranks[id], scored[key].score, None, scored[key].terms, [])
            for id, key in stored.items()
            if key in scored
        }

    def _shown(self, stored: str, explanations: Sequence[Explanation]) -> tuple[Marked, Marked, Mapping[str, Value]]:
        """The title of a document, a snippet of its first BEGINNING characters, and its metadata."""
        document = self.document(stored)
        if document is None:
            return [], [], {}
        beginning = document.contents[:BEGINNING]
        strengths = word_strengths(beginning, explanations, self.terms_of)
        text = beginning.removeprefix(document.title).lstrip()
        return marked(document.title, strengths), snippet(text, strengths), document.metadata


def _run(hits: Sequence[Hit]) -> pd.DataFrame:
    return run_of({QUERY: [(hit.id, hit.score) for hit in hits]})
