"""Rankings for a terminal, and as JSON."""

import json
import math
from collections.abc import Iterator
from typing import Any

from cai_pyserini.engine.engine import Engine, Hit
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.highlight import Marked

TERMS = 6  # shown of each score
BOLD, PLAIN = "\033[1m", "\033[0m"


def as_text(engine: Engine, query: str, hits: int, bold: bool) -> Iterator[str]:
    """Yield the hits of a query, each with its title, a snippet, and what makes its score. `bold` marks the words that
    do, for a terminal."""
    for found in _described(engine, query, hits):
        hit, explanation = found["hit"], found["explanation"]
        title, snippet = (_text(found[key], bold) for key in ("title", "snippet"))
        yield f"{hit.rank:>3}. {hit.score:.4f}  {hit.id}  {title}".rstrip()
        yield from [f"     {snippet}"] * bool(snippet)
        yield from [f"     {' · '.join(_contributions(explanation))}"] * bool(explanation.terms or explanation.parts)


def as_json(engine: Engine, query: str, hits: int) -> Iterator[str]:
    """Yield the hits of a query as JSON objects: query, rank, id, score, title, snippet and terms or parts."""
    for found in _described(engine, query, hits):
        hit, explanation = found["hit"], found["explanation"]
        terms = {term.term: round(term.contribution, 4) for term in explanation.terms}
        parts = {part.explanation.system: round(part.share, 4) for part in explanation.parts}
        yield json.dumps(
            {"query": query, "rank": hit.rank, "id": hit.id, "score": round(hit.score, 6)}
            | {key: _text(found[key], bold=False) for key in ("title", "snippet")}
            | ({"parts": parts} if parts else {"terms": terms}),
            ensure_ascii=False,
        )


def _described(engine: Engine, query: str, hits: int) -> Iterator[dict[str, Any]]:
    ranking: list[Hit] = engine.search([query], hits)[0]
    explained = engine.explain(query, [hit.id for hit in ranking])
    for hit in ranking:
        document, explanation = engine.document(hit.stored), explained[hit.id]
        title, snippet = engine.show(document, explanation) if document else ([], [])
        yield {"hit": hit, "explanation": explanation, "title": title, "snippet": snippet}


def _text(pieces: Marked, bold: bool) -> str:
    return "".join(f"{BOLD}{piece}{PLAIN}" if bold and strength else piece for piece, strength in pieces)


def _contributions(explanation: Explanation) -> Iterator[str]:
    """Yield the largest contributions to a score, and the sum of the others."""
    for part in explanation.parts:
        yield f"{part.explanation.system} {part.share:.4g}"
    for term in explanation.terms[:TERMS]:
        yield f"{term.term} {term.contribution:.4g}"
    if others := explanation.terms[TERMS:]:
        yield f"{len(others)} more {math.fsum(term.contribution for term in others):.4g}"
