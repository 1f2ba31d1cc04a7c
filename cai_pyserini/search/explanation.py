"""Explanations of scores: what they consist of, and how they are shown.

    SPLADE   contribution = query impact · document impact / (query scale · document scale); also of joint indexes
    BM25     contribution = occurrences in the query · Lucene's BM25 weight of the term in the document
    hybrids  share = what fusion makes of a part's score, or of its absence from the part's best documents

Contributions and shares add up to the score in the run, up to rounding; the shares of a product are multiplied.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Term:
    """What a term adds to a score."""

    term: str
    query: float  # weight in the query; BM25: occurrences
    document: float  # weight in the index, IDF included; BM25: occurrences, except in a joint index
    idf: float | None  # BM25's; None for SPLADE and in a joint index
    impact: int | None  # quantized weight, as in the index; None for BM25
    contribution: float


class Scored(NamedTuple):
    """A score, and the terms that add up to it, if it is a sum over terms."""

    score: float
    terms: list[Term]  # largest contribution first

    @classmethod
    def of(cls, terms: Iterable[Term]) -> "Scored":
        ordered = sorted(terms, key=lambda term: -term.contribution)
        return cls(math.fsum(term.contribution for term in ordered), ordered)


@dataclass(frozen=True)
class Explanation:
    """A score: the sum of the contributions of `terms`, or the fusion of `parts`; neither for dense vectors."""

    system: str
    document: str
    rank: int | None  # None: not in the run
    score: float
    grade: int | None  # None: not judged
    terms: list[Term]  # largest contribution first
    parts: "list[Part]"

    @property
    def relevant(self) -> bool:
        return (self.grade or 0) > 0

    @property
    def heading(self) -> str:
        rank = f"{self.rank}." if self.rank else "not in the run:"
        judgment = "" if self.grade is None else f", {'★ relevant, ' * self.relevant}grade {self.grade}"
        return f"{rank} {self.document}, score {self.score:.4f}{judgment}"

    def table(self, count: int) -> list[list[str]]:
        """The parts, or the first `count` terms and the sum of the others, as rows of text after a header.

        Columns without a value are left out.
        """
        if self.parts:
            parts = [
                [p.explanation.system, f"{p.explanation.score:.4f}", str(p.explanation.rank or "-"), f"{p.share:.4f}"]
                for p in self.parts
            ]
            return [["part", "score", "rank", "share"], *parts]
        rows = [["term", "query", "document", "idf", "impact", "contribution"]]
        for term in self.terms[:count]:
            idf = "" if term.idf is None else f"{term.idf:.2f}"
            impact = "" if term.impact is None else str(term.impact)
            cells = [f"{term.query:.4g}", f"{term.document:.3g}", idf, impact, f"{term.contribution:.4f}"]
            rows.append([term.term, *cells])
        if others := self.terms[count:]:
            sum_of_others = math.fsum(term.contribution for term in others)
            rows.append([f"{len(others)} other{'s' * (len(others) > 1)}", *[""] * 4, f"{sum_of_others:.4f}"])
        filled = [column for column in zip(*rows, strict=True) if any(column[1:])]
        return [list(row) for row in zip(*filled, strict=True)]

    def bars(self, count: int) -> list[float]:
        """The length of a bar, from 0 to 1, for each row of `table` after its header; for the sum of other terms 0."""
        values = [part.share for part in self.parts] or [term.contribution for term in self.terms[:count]]
        largest = max([*values, 0.0]) or 1.0
        return [max(0.0, value) / largest for value in values] + [0.0] * (len(self.terms) > len(values) > 0)


@dataclass(frozen=True)
class Part:
    """What a system adds to the score of a hybrid."""

    share: float
    explanation: Explanation


@dataclass(frozen=True)
class Case:
    """A query, and the explanations of each system."""

    query: str
    text: str
    documents: dict[str, str]  # the contents of every document that is explained
    systems: dict[str, list[Explanation]]
