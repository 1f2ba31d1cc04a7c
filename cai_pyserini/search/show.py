"""Rankings for a terminal, and as JSON."""

import json
import math
from collections.abc import Iterator
from typing import NamedTuple

from cai_pyserini.core.terminal import BOLD, PLAIN, printable
from cai_pyserini.search.engine import Engine, Hit, Shown
from cai_pyserini.search.explanation import Explanation
from cai_pyserini.search.highlight import Marked

TERMS = 6  # shown of each score


class Described(NamedTuple):
    """A hit, why it is one, and what is shown of its document, if an index stores it."""

    hit: Hit
    explanation: Explanation
    shown: Shown


def describe(engine: Engine, query: str, hits: int) -> Iterator[Described]:
    """Yield the hits of a query."""
    for hit, explanation in engine.describe(query, hits):
        document = engine.document(hit.stored)
        shown = engine.show(document, explanation) if document else Shown([], [])
        yield Described(hit, explanation, shown)


def as_text(engine: Engine, query: str, hits: int, bold: bool) -> Iterator[str]:
    """Yield the hits of a query, each with its title, a snippet, and what makes its score. `bold` marks the words that
    do, for a terminal."""
    for hit, explanation, shown in describe(engine, query, hits):
        title = " ".join(_text(shown.title, bold).split())
        yield f"{hit.rank:>3}. {hit.score:.4f}  {hit.id}  {title}".rstrip()
        yield from [f"     {_text(shown.snippet, bold)}"] * bool(shown.snippet)
        yield from [f"     {' · '.join(_contributions(explanation))}"] * bool(explanation.terms or explanation.parts)


def as_json(engine: Engine, query: str, hits: int) -> Iterator[str]:
    """Yield the hits of a query as JSON objects: query, rank, id, score, title, snippet and terms or parts."""
    for hit, explanation, shown in describe(engine, query, hits):
        terms = {term.term: _significant(term.contribution) for term in explanation.terms}
        parts = {part.explanation.system: _significant(part.share) for part in explanation.parts}
        yield json.dumps(
            {
                "query": query,
                "rank": hit.rank,
                "id": hit.id,
                "score": hit.score,
                "title": _text(shown.title),
                "snippet": _text(shown.snippet),
                **({"parts": parts} if parts else {"terms": terms}),
            },
            ensure_ascii=False,
        )


def _significant(value: float) -> float:
    return float(f"{value:.6g}")


def _text(pieces: Marked, bold: bool = False) -> str:
    """The pieces as one text; for a terminal, strong ones in bold, which they cannot be by themselves."""
    if not bold:
        return "".join(piece for piece, _ in pieces)
    return "".join(f"{BOLD}{printable(p)}{PLAIN}" if strength else printable(p) for p, strength in pieces)


def _contributions(explanation: Explanation) -> Iterator[str]:
    """Yield the largest contributions to a score, and the sum of the others."""
    for part in explanation.parts:
        yield f"{part.explanation.system} {part.share:.4g}"
    for term in explanation.terms[:TERMS]:
        yield f"{term.term} {term.contribution:.4g}"
    if others := explanation.terms[TERMS:]:
        yield f"{len(others)} more {math.fsum(term.contribution for term in others):.4g}"
