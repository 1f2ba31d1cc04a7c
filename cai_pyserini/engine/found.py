"""What a system finds for a query, and why: ranked once, and explained once that is asked for."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cai_pyserini.core.config import WORD
from cai_pyserini.core.metadata import Value, bounds
from cai_pyserini.engine.explanation import Explanation, Part
from cai_pyserini.engine.highlight import Marked, TermsOf, marked, word_strengths
from cai_pyserini.engine.hits import Documents, Hit, Hits, without_title
from cai_pyserini.engine.passages import beginnings, best_snippet
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.runs.fuse import Fused, fuse_rankings
from cai_pyserini.runs.fusions import DEPTH, FUSIONS
from cai_pyserini.runs.trec import Ranking
from cai_pyserini.vectors.queries import Query

if TYPE_CHECKING:
    from cai_pyserini.engine.search import Engine

SORT_DEPTH = 100  # hits to sort by a field


class Fusing(NamedTuple):
    """How the results of several retrievers are fused, see runs.fusions: the best `depth` of each, or whole runs for
    methods that need these; `weights`, one per retriever, multiply contributions to a sum."""

    method: str
    depth: int = DEPTH
    weights: Sequence[float] | None = None

    @property
    def needs_runs(self) -> bool:
        return FUSIONS[self.method].missing == "last"


class PartHits(NamedTuple):
    """What a retriever finds: the query it searched with, the documents and, if the index has passages, the best one of
    each."""

    query: Query
    ranking: Ranking
    passages: Mapping[str, str]


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


class Found:
    """The best documents for a query, `hits`, and why they were found. `parts` are the retrievers' results, without
    those that were late."""

    def __init__(self, engine: "Engine", text: str, parts: Mapping[str, PartHits], documents: Documents):
        self.text, self.hits = text, Hits()
        self._engine, self._parts, self._documents = engine, parts, documents

    def rank(self, k: int, sort: str | None = None) -> None:
        """Set the best `k` hits, by score or sorted by a field."""
        if sort is None:
            self.hits = self._hits(k)
            return
        name, hits = sort.removeprefix("-"), self._hits(max(k, SORT_DEPTH))
        kind, keys = self._engine.metadata[name], dict[str, Any]()
        for hit in hits:
            document = self._engine.document(hit.stored)
            if document and (value := document.metadata.get(name)) is not None:
                keys[hit.id] = value if isinstance(value, list) or kind == "string" else bounds(value, kind)[0]
        ordered = sorted((hit for hit in hits if hit.id in keys), key=lambda hit: keys[hit.id], reverse=sort != name)
        ordered += [hit for hit in hits if hit.id not in keys]
        self.hits = Hits(hit.at(rank) for rank, hit in enumerate(ordered[:k], 1))

    def explain(self, ids: Sequence[str]) -> dict[str, Explanation]:
        """Explanations of documents at any rank, by id, without documents that the indexes lack.

        In a hybrid, a document beyond the fused lists has score 0 and no rank. With passages, only documents that were
        found are explained.
        """
        explained = {name: self._explain_part(name, ids) for name in self._parts}
        if self._fused is None:
            return explained[self._engine.name]
        shares, not_fused = self._fused.shares, (0.0, [0.0] * len(self._parts))
        ranks = {id: rank for rank, id in enumerate(self._by_score.ids[: self._engine.most_hits], 1)}
        explanations = {}
        for id in ids:
            if id in shares or any(id in by_id for by_id in explained.values()):
                score, of_parts = shares.get(id, not_fused)
                pairs = zip(of_parts, explained.values(), strict=True)
                parts = [Part(share, by_id[id]) for share, by_id in pairs if id in by_id]
                explanations[id] = Explanation(self._engine.name, id, ranks.get(id), score, None, [], parts)
        return explanations

    def describe(self, hits: Sequence[Hit]) -> Iterator[Described]:
        """Yield hits with explanations, and with the matching words of title and snippet highlighted."""
        explained = self.explain([hit.id for hit in hits])
        for hit in hits:
            document, explanation = self._engine.document(hit.stored), explained[hit.id]
            title, snippet, page = highlighted(document, self.text, explanation, self._engine.terms_of)
            yield Described(hit, explanation, title, snippet, document, page)

    @cached_property
    def _fused(self) -> Fused | None:
        if (fusing := self._engine.fusing) is None:
            return None
        weights = fusing.weights and [
            weight for weight, name in zip(fusing.weights, self._engine.retrievers, strict=True) if name in self._parts
        ]
        rankings = [part.ranking for part in self._parts.values()]
        return fuse_rankings(rankings, fusing.method, fusing.depth, weights)

    @cached_property
    def _by_score(self) -> Ranking:
        """The documents of a single retriever, or the fusion of several."""
        first, *others = self._parts.values()
        return self._fused.ranking if self._fused and others else first.ranking

    def _hits(self, k: int) -> Hits:
        passages = {id: passage for part in self._parts.values() for id, passage in part.passages.items()}
        numbered = enumerate(self._by_score[:k], 1)
        return Hits(Hit(rank, id, score, passages.get(id, id), self._documents) for rank, (id, score) in numbered)

    def _explain_part(self, name: str, ids: Sequence[str]) -> dict[str, Explanation]:
        """Explanations by a retriever for all documents or, with passages, for those in its ranking."""
        part = self._parts[name]
        places = {id: (rank, score) for rank, (id, score) in enumerate(part.ranking, 1)}
        stored = {id: part.passages.get(id, id) for id in ids if id in places or not self._engine.has_passages}
        scored = self._engine.retrievers[name].searcher.explain(part.query, list(stored.values()))
        explanations = {}
        for id, key in stored.items():
            rank, score = places.get(id, (None, 0.0))
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
    explanations = explanation.scored
    strengths_of = partial(word_strengths, explanations=explanations, terms_of=terms_of)

    def strong_beginnings() -> dict[str, float]:
        terms = {
            term.term.removeprefix(WORD): term.contribution / explanation.terms[0].contribution
            for explanation in explanations
            for term in explanation.terms
            if term.contribution > 0 and not term.term.startswith("##")  # which do not begin words
        }
        return beginnings(terms, strengths_of(query))

    pieces, page_breaks = best_snippet(without_title(document), strengths_of, strong_beginnings)
    first_page = document.metadata.get("page", 1 if "\f" in document.contents else None)
    page = first_page + page_breaks if isinstance(first_page, int) else None
    return marked(document.title, strengths_of(document.title)), pieces, page
