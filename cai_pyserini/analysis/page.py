"""Explanations as an HTML page, in which words are marked as strongly as they contribute to a score."""

from collections.abc import Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

from cai_pyserini.analysis.finished_run import FinishedRun
from cai_pyserini.analysis.output import cut, split_text
from cai_pyserini.beir.systems import parse_system
from cai_pyserini.core.template import template
from cai_pyserini.models.tokenizer import WORD
from cai_pyserini.search.explanation import Case, Explanation
from cai_pyserini.search.highlight import SPLIT, TermsOf, word_strengths
from cai_pyserini.words.analyzer import Analyzer

TEMPLATE = Path(__file__).with_name("explain.html.jinja")
TEXT_WIDTH = 500  # characters of a document that are shown at once
TITLE_WIDTH = 80


def page(run: FinishedRun, case: Case, count: int) -> str:
    """The page; tables have the first `count` terms."""
    terms_of = _terms_of(run)
    return template(TEMPLATE).render(
        title=cut(f"{case.query}: {case.text}", TITLE_WIDTH),
        case=case,
        collection=run.collection.name,
        encoder=run.encoder_name,
        systems={
            name: [
                _article(explanation, case.documents[explanation.document], count, terms_of) for explanation in found
            ]
            for name, found in case.systems.items()
        },
    )


def _article(explanation: Explanation, contents: str, count: int, terms_of: TermsOf) -> dict[str, Any]:
    """What the template shows of one document."""
    parts = [part.explanation for part in explanation.parts]
    strengths = word_strengths(contents, parts or [explanation], terms_of)
    shown, rest = split_text(contents, TEXT_WIDTH)
    return {
        "explanation": explanation,
        "shown": [(piece, strengths.get(piece, 0.0)) for piece in SPLIT.split(shown)],
        "rest": [(piece, strengths.get(piece, 0.0)) for piece in SPLIT.split(rest) if piece],
        "tables": [_table(e, strengths.keys(), count, terms_of) for e in (explanation, *parts)],
    }


def _table(explanation: Explanation, words: Set[str], count: int, terms_of: TermsOf) -> dict[str, Any]:
    """A table with a bar per row, as a percentage of the longest, and whether its term is an expansion."""
    header, *rows = explanation.table(count) or [[]]
    in_text = {term for word in words for term in terms_of(explanation.system, word)}
    values = [part.share for part in explanation.parts] or [term.contribution for term in explanation.terms[:count]]
    bars = [max(0.0, 100 * value / (max(values) or 1)) for value in values]
    bars += [0.0] * (len(rows) - len(values))  # the sum of the other terms has none
    expansions = [term.term not in in_text for term in explanation.terms[:count]]
    expansions += [False] * (len(rows) - len(expansions))
    return {
        "system": explanation.system,
        "kind": "parts" if explanation.parts else "terms",
        "header": header,
        "rows": list(zip(rows, bars, expansions, strict=True)),
    }


def _terms_of(run: FinishedRun) -> TermsOf:
    """The tokenizers of the systems of a run, each loaded when it is first needed."""
    analyzer = cache(Analyzer)

    @cache
    def of_kind(kind: str, joint: bool, adapted: bool, word: str) -> Sequence[str]:
        if kind == "splade":
            words = [WORD + stem for stem in analyzer()(word)] if joint else []
            return run.encoder(adapted).tokenizer.pieces(word) + words
        return analyzer()(word) if kind in ("bm25", "doct5query") else []

    def terms_of(name: str, word: str) -> Sequence[str]:
        system = parse_system(name)
        return of_kind(system.kind, system.joint, system.adapted, word)

    return terms_of
