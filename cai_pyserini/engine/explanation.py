"""Explanations of scores: contributions of terms, and of the parts of a hybrid.

    SPLADE   contribution = query impact · document impact / (query scale · document scale); also in joint indexes
    BM25     contribution = occurrences in the query · Lucene's BM25 weight of the term in the document
    hybrids  share = the fusion's value of a part's score, or of a document missing from the part's run

Contributions and shares add up to the score in the run, up to rounding; shares of a product multiply to it.
"""

import math
from dataclasses import dataclass

from cai_pyserini.core.tables import aligned
from cai_pyserini.indexes.searcher import Term


@dataclass(frozen=True)
class Explanation:
    """A score as the sum of `terms` or the fusion of `parts`; both are empty for dense vectors."""

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
    def scored(self) -> "list[Explanation]":
        """The explanations that have terms: its parts', or itself."""
        return [part.explanation for part in self.parts] or [self]

    @property
    def heading(self) -> str:
        rank = f"{self.rank}." if self.rank else "not in the run:"
        judgment = "" if self.grade is None else f", {'★ relevant, ' * self.relevant}grade {self.grade}"
        return f"{rank} {self.document}, score {self.score:.4f}{judgment}"

    def __str__(self) -> str:
        return f"{self.heading}\n{aligned(self.table(10))}"

    def table(self, count: int) -> list[list[str]]:
        """A header and rows of text: the parts, or the first `count` terms and the sum of the others.

        Empty columns are left out.
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
            total = math.fsum(term.contribution for term in others)
            rows.append([f"{len(others)} other{'s' if len(others) > 1 else ''}", "", "", "", "", f"{total:.4f}"])
        columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
        return [list(row) for row in zip(*columns, strict=True)]

    def bars(self, count: int) -> list[float]:
        """The length of a bar, from 0 to 1, for each row of `table` after its header; 0 for the sum of other terms."""
        values = [part.share for part in self.parts] or [term.contribution for term in self.terms[:count]]
        largest = max([*values, 0.0]) or 1.0
        bars = [max(0.0, value) / largest for value in values]
        return [*bars, 0.0] if len(self.terms) > len(values) > 0 else bars


@dataclass(frozen=True)
class Part:
    """A part's share of a hybrid's score."""

    share: float
    explanation: Explanation
