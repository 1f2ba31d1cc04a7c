"""What a system finds for a query, and why: ranked once, and explained once that is asked for."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple

from cai_pyserini.core.config import GRAM, WORD
from cai_pyserini.core.metadata import Kind, Value, bounds
from cai_pyserini.engine.explanation import Explanation, Part
from cai_pyserini.engine.highlight import (
    Marked,
    Strengths,
    TermsOf,
    beginnings,
    best_snippet,
    marked,
    narrowed,
    word_strengths,
)
from cai_pyserini.engine.hits import Documents, Hit, Hits, without_title
from cai_pyserini.engine.retriever import Deadline, Retrieved, Retriever, Where
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.runs.fuse import Fused, fuse_rankings
from cai_pyserini.runs.fusions import DEPTH, FUSIONS
from cai_pyserini.runs.trec import Ranking

SORT_DEPTH = 100  # hits to sort by a field


# What gives the strengths of the words of a text, and those of what such words begin with, see highlight.
type Matching = tuple[Callable[[str], Strengths], Callable[[], Strengths]]
type PassagesOf = Callable[[str], Sequence[str]]  # the ids in the indexes of a document, or of a passage


class Fusing(NamedTuple):
    """How the results of several retrievers are fused, see runs.fusions: the best `depth` of each, or whole runs for
    methods that need these; `weights`, one per retriever, multiply contributions to a sum."""

    method: str
    depth: int = DEPTH
    weights: Sequence[float] | None = None

    @property
    def needs_runs(self) -> bool:
        return FUSIONS[self.method].missing == "last"


class Described(NamedTuple):
    """A hit with its explanation, with title and snippet, which are empty if no index stores the document, and with the
    page of the snippet, None if the document has no pages."""

    hit: Hit
    explanation: Explanation
    title: Marked
    snippet: Marked
    document: Stored | None
    page: int | None

    @property
    def metadata(self) -> Mapping[str, Value]:
        return self.document.metadata if self.document else {}


class Parts:
    """The retrievers of a system by name, and the fusion of their results if there are several; see Engine."""

    def __init__(
        self, system: str, retrievers: Mapping[str, Retriever], fusing: Fusing | None, most_hits: int, passages: bool
    ):
        self.system, self.retrievers, self.fusing = system, dict(retrievers), fusing
        self.most_hits, self.has_passages = most_hits, passages
        self.threads = ThreadPoolExecutor(len(retrievers), "part")  # for parts that may miss a deadline
        self.last_calls: dict[str, Future[Any]] = {}  # by part

    def depth(self, hits: int) -> int:
        """How many hits of each retriever are needed for `hits` of the system."""
        if self.fusing is None:
            return hits
        return self.most_hits if self.fusing.needs_runs else self.fusing.depth

    def terms_of(self, name: str, word: str) -> Sequence[str]:
        """A retriever's index terms for a word."""
        return self.retrievers[name].terms_of(word)

    def of_passages(self) -> "Parts":
        """The same retrievers and fusion, whose hits are the passages of indexes that hold passages."""
        parts = copy(self)
        parts.has_passages = False
        return parts

    def find(
        self,
        texts: Sequence[str],
        depth: int,
        documents: Documents,
        *,
        threads: int = 1,
        where: Where | None = None,
        deadline: Deadline | None = None,
    ) -> "list[Found]":
        """What is found for each text, up to `depth` documents of each retriever, without retrievers that are late."""
        search = (texts, depth, threads, where, self.has_passages)
        calls = {name: partial(retriever.search, *search) for name, retriever in self.retrievers.items()}
        if self.fusing and deadline:
            results = self._call_until_deadline(calls, deadline)
        else:
            results = {name: call() for name, call in calls.items()}
        return [
            Found(self, text, {name: found[number] for name, found in results.items()}, documents)
            for number, text in enumerate(texts)
        ]

    def _call_until_deadline[R](self, calls: Mapping[str, Callable[[], R]], deadline: Deadline) -> dict[str, R]:
        """The results of calls by retriever. Late calls are left out and finish in their threads.

        Always waits for retrievers without a model, or for the first if all have one.
        """
        required = [name for name in calls if not self.retrievers[name].needs_model] or [*calls][:1]
        started = {}
        for name in calls:
            last = self.last_calls.get(name)
            if name not in required and (last is None or last.done()):
                started[name] = self.last_calls[name] = self.threads.submit(calls[name])
        results = {name: calls[name]() for name in required}
        for name, call in started.items():
            with suppress(TimeoutError):
                results[name] = call.result(max(0.0, deadline.time - time.monotonic()))
        deadline.late += [name for name in calls if name not in results]
        return {name: results[name] for name in calls if name in results}


class Found:
    """The best documents for a query, `hits`, and why they were found. `results` are the retrievers' results, without
    those that were late."""

    def __init__(self, parts: Parts, text: str, results: Mapping[str, Retrieved], documents: Documents):
        self.text, self.hits = text, Hits()
        self._parts, self._results, self._documents = parts, results, documents

    def rank(self, k: int, sort: str | None = None, kind: Kind = "string") -> None:
        """Set the best `k` hits, by score or sorted by a field of a kind."""
        if sort is None:
            self.hits = self._hits(k)
            return
        name, hits, keys = sort.removeprefix("-"), self._hits(max(k, SORT_DEPTH)), dict[str, Any]()
        for hit in hits:
            if (value := hit.metadata.get(name)) is not None:
                keys[hit.id] = value if isinstance(value, list) or kind == "string" else bounds(value, kind)[0]
        ordered = sorted((hit for hit in hits if hit.id in keys), key=lambda hit: keys[hit.id], reverse=sort != name)
        ordered += [hit for hit in hits if hit.id not in keys]
        self.hits = Hits(hit.at(rank) for rank, hit in enumerate(ordered[:k], 1))

    def explain(self, ids: Sequence[str], passages_of: PassagesOf | None = None) -> dict[str, Explanation]:
        """Explanations of documents at any rank, by id, without documents that the indexes lack.

        In a hybrid, a document beyond the fused lists has score 0 and no rank. With passages, the best one of each
        document is explained, of those that `passages_of` gives; without it, only documents that were found are.
        """
        system = self._parts.system
        explained = {name: self._explain_part(name, ids, passages_of) for name in self._results}
        if self._fused is None:
            return explained[system]
        shares, not_fused = self._fused.shares, (0.0, [0.0] * len(self._results))
        ranks = {id: rank for rank, id in enumerate(self._by_score.ids[: self._parts.most_hits], 1)}
        explanations = {}
        for id in ids:
            if id in shares or any(id in by_id for by_id in explained.values()):
                score, of_parts = shares.get(id, not_fused)
                pairs = zip(of_parts, explained.values(), strict=True)
                parts = [Part(share, by_id[id]) for share, by_id in pairs if id in by_id]
                explanations[id] = Explanation(system, id, ranks.get(id), score, None, [], parts)
        return explanations

    def matching(self, hit: Hit) -> Matching:
        """The strengths of words that a hit has its score for."""
        return matching(self.text, self.explain([hit.id])[hit.id], self._parts.terms_of)

    def describe(self, hits: Sequence[Hit]) -> Iterator[Described]:
        """Yield hits with explanations, and with the matching words of title and snippet highlighted."""
        explained = self.explain([hit.id for hit in hits])
        for hit in hits:
            explanation = explained[hit.id]
            title, snippet, page = highlighted(hit.document, self.text, explanation, self._parts.terms_of)
            yield Described(hit, explanation, title, snippet, hit.document, page)

    @cached_property
    def _fused(self) -> Fused | None:
        if (fusing := self._parts.fusing) is None:
            return None
        weights = fusing.weights and [
            weight for weight, name in zip(fusing.weights, self._parts.retrievers, strict=True) if name in self._results
        ]
        rankings = [found.ranking for found in self._results.values()]
        return fuse_rankings(rankings, fusing.method, fusing.depth, weights)

    @cached_property
    def _by_score(self) -> Ranking:
        """The documents of a single retriever, or the fusion of several."""
        first, *others = self._results.values()
        return self._fused.ranking if self._fused and others else first.ranking

    def _hits(self, k: int) -> Hits:
        passages = {id: passage for found in self._results.values() for id, passage in found.passages.items()}
        numbered = enumerate(self._by_score[:k], 1)
        return Hits(Hit(rank, id, score, passages.get(id, id), self._documents) for rank, (id, score) in numbered)

    def _explain_part(self, name: str, ids: Sequence[str], passages_of: PassagesOf | None) -> dict[str, Explanation]:
        """Explanations by a retriever, see `explain`."""
        found, searcher = self._results[name], self._parts.retrievers[name].searcher
        places = {id: (rank, score) for rank, (id, score) in enumerate(found.ranking, 1)}
        stored: dict[str, str] = {}
        for id in ids:
            if id in places or not self._parts.has_passages:
                stored[id] = found.passages.get(id, id)
            elif passages_of:
                first, *others = passages = passages_of(id)
                stored[id] = (searcher.best_of(found.query, passages) if others else None) or first
        of_passages = {found.passages[id]: place for id, place in places.items() if id in found.passages}
        scored = searcher.explain(found.query, list(stored.values()))
        explanations = {}
        for id, key in stored.items():
            rank, score = places.get(id) or (key == id and of_passages.get(id)) or (None, 0.0)
            if key in scored:
                explanations[id] = Explanation(name, id, rank, scored[key].score, None, scored[key].terms, [])
            elif rank:  # by an engine that does not explain scores
                explanations[id] = Explanation(name, id, rank, score, None, [], [])
        return explanations


def highlighted(
    document: Stored | None, query: str, explanation: Explanation, terms_of: TermsOf
) -> tuple[Marked, Marked, int | None]:
    """Title, snippet and page of a document."""
    if document is None:
        return [], [], None
    strengths_of, strong_beginnings = matching(query, explanation, terms_of)
    scored = (term for each in explanation.scored for term in each.terms)
    terms = {
        term.term.removeprefix(WORD) for term in scored if term.contribution > 0 and not term.term.startswith(GRAM)
    }
    pieces, page_breaks = best_snippet(without_title(document), strengths_of, strong_beginnings)
    first_page = document.metadata.get("page", 1 if "\f" in document.contents else None)
    page = first_page + page_breaks if isinstance(first_page, int) else None
    title = marked(document.title, strengths_of(document.title))
    return narrowed(title, terms), narrowed(pieces, terms), page


def matching(query: str, explanation: Explanation, terms_of: TermsOf) -> Matching:
    explanations = explanation.scored
    strengths_of = partial(word_strengths, explanations=explanations, terms_of=terms_of)

    def strong_beginnings() -> Strengths:
        terms = {
            term.term.removeprefix(WORD): term.contribution / explanation.terms[0].contribution
            for explanation in explanations
            for term in explanation.terms
            if term.contribution > 0 and not term.term.startswith(("##", GRAM))  # which do not begin words
        }
        return beginnings(terms, strengths_of(query))

    return strengths_of, strong_beginnings
