"""Why documents have their scores for a query: the terms that make them up, in the systems of a finished run.

    SPLADE   contribution = query impact · document impact / (query scale · document scale)
    BM25     contribution = occurrences in the query · Lucene's BM25 weight of the term in the document
    hybrids  share = what fusion makes of the score of a part; 0 where the document is not among the part's best

Contributions and shares add up to the score in the run, to its rounding. The shares of a product multiply.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cai_pyserini import artifact, cli, jvm
from cai_pyserini.analysis.run import FinishedRun
from cai_pyserini.cli import CaiError
from cai_pyserini.report import aligned
from cai_pyserini.systems import System

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_matrix

SYSTEMS = ("bm25", "splade-idf", "hybrid-splade-idf")
WORD = re.compile(r"(\w+)")


@dataclass(frozen=True)
class Term:
    """What a term adds to a score."""

    term: str
    query: float  # weight in the query; of BM25 its occurrences
    document: float  # raw weight in the document; of BM25 its occurrences
    idf: float | None  # SPLADE's raw weight is multiplied with it; None without weighting
    impact: int | None  # quantized weight, as in the index; None of BM25
    contribution: float


@dataclass(frozen=True)
class Explanation:
    """A score, as the sum of the contributions of `terms`, or as the shares of `parts`, of a hybrid."""

    system: str
    document: str
    rank: int | None  # None: the document is not in the run
    score: float
    grade: int | None  # None: it was not judged
    terms: list[Term]  # largest contribution first
    parts: "list[Part]"


@dataclass(frozen=True)
class Part:
    """What a system adds to the score of a hybrid."""

    share: float
    explanation: Explanation


def explain(
    run: FinishedRun, query: str, systems: Sequence[str], depth: int = 5, documents: Sequence[str] = ()
) -> dict[str, list[Explanation]]:
    """What makes the scores of the best `depth` documents of each system for a query, or of the `documents` given.

    Raises CaiError for a query, system or document that the run does not have, and for a system whose scores are not
    sums over terms.
    """
    if query not in run.topics:
        raise CaiError(
            f"no query {query!r} in {run.folder}, which has {len(run.topics):,}: {', '.join(run.topics)[:60]}…"
        )
    asked = {name: System.parse(name) for name in systems}
    single = {part: System.parse(part) for system in asked.values() for part in system.parts or (system.name,)}
    for system in (asked | single).values():
        if system.kind not in ("bm25", "doct5query", "splade") or system.exact:
            raise CaiError(f"no explanation of {system.name}: only scores of BM25, SPLADE and their hybrids are sums")
        if not run.run_path(system).is_file():
            there = ", ".join(sorted(path.stem for path in run.folder.glob("runs/*.trec")))
            raise CaiError(f"{run.folder} has no run of {system.name}; it has {there}")
    hits = {name: _hits(run.run_path(system), query) for name, system in (asked | single).items()}
    shown = {name: list(dict.fromkeys(documents or hits[name].doc_id[:depth])) for name in asked}
    rows = _rows(run, set(chain.from_iterable(shown.values())))
    grades = run.collection.qrels(run.split)[query]
    ranks = {name: {document: rank for rank, document in enumerate(found.doc_id, 1)} for name, found in hits.items()}

    def explanation(name: str, document: str, score: float, terms: list[Term], parts: list[Part]) -> Explanation:
        return Explanation(name, document, ranks[name].get(document), score, grades.get(document), terms, parts)

    explained: dict[str, dict[str, Explanation]] = {}
    for name, system in single.items():
        terms_of = _splade(run, system, query, rows) if system.kind == "splade" else _words(run, system, query, rows)
        explained[name] = {}
        for document, terms in terms_of.items():
            terms.sort(key=lambda term: -term.contribution)
            score = math.fsum(term.contribution for term in terms)
            explained[name][document] = explanation(name, document, score, terms, [])
    for name, system in asked.items():
        if system.fusion:
            combine = math.prod if system.fusion == "product" else math.fsum
            shares = {part: _shares(hits[part], run.run_path(system)) for part in system.parts}
            explained[name] = {}
            for document in rows:
                parts = [Part(shares[part].get(document, 0.0), explained[part][document]) for part in system.parts]
                score = combine(part.share for part in parts)
                explained[name][document] = explanation(name, document, score, [], parts)
    return {name: [explained[name][document] for document in shown[name]] for name in asked}


def _hits(path: Path, query: str) -> "pd.DataFrame":
    from cai_pyserini.trec import read_run

    run = read_run(path)
    return run[run.query_id == query]


def _rows(run: FinishedRun, documents: set[str]) -> "dict[str, csr_matrix]":
    """The raw vectors of these documents."""
    rows: dict[str, csr_matrix] = {}
    for shard in run.document_vectors:
        rows |= {id: shard.matrix[row] for row, id in enumerate(shard.ids) if id in documents}
    if unknown := sorted(documents - rows.keys()):
        raise CaiError(f"document {unknown[0]!r} is not among the {len(run.document_vectors):,} of {run.folder}")
    return rows


def _splade(run: FinishedRun, system: System, query: str, rows: "Mapping[str, csr_matrix]") -> dict[str, list[Term]]:
    from cai_pyserini.impact import weighted

    quantizer, weights = run.quantization(system)
    names, query_scale = run.tokenizer.terms, run.encoder.query_scale
    in_query = run.query_impacts(system)[list(run.topics).index(query)].toarray()[0]  # (vocabulary,)
    terms = {}
    for document, row in rows.items():
        raw = row.toarray()[0]
        impacts = quantizer.impacts(weighted(row, weights)).toarray()[0]
        terms[document] = [
            Term(
                names[v],
                float(in_query[v]) / query_scale,
                float(raw[v]),
                None if weights is None else float(weights[v]),
                int(impacts[v]),
                float(in_query[v]) * int(impacts[v]) / (query_scale * quantizer.scale),
            )
            for v in np.flatnonzero(in_query * impacts)
        ]
    return terms


def _words(run: FinishedRun, system: System, query: str, documents: Iterable[str]) -> dict[str, list[Term]]:
    jvm.start()
    from pyserini.index.lucene import LuceneIndexReader

    reader = LuceneIndexReader(str(run.index(system)))
    k1, b = artifact.require_manifest(run.run_path(system), "search")["recipe"]["settings"]
    counts = Counter(reader.analyze(run.topics[query]))
    term_of = jvm.java_class("org.apache.lucene.index.Term")
    indexed = reader.reader.getDocCount("contents")
    frequencies = {term: reader.reader.docFreq(term_of("contents", term)) for term in counts}
    terms = {}
    for document in documents:
        occurrences = reader.get_document_vector(document) or {}
        terms[document] = [
            Term(
                term,
                count,
                occurrences[term],
                math.log(1 + (indexed - frequencies[term] + 0.5) / (frequencies[term] + 0.5)),
                None,
                count * reader.compute_bm25_term_weight(document, term, analyzer=None, k1=k1, b=b),
            )
            for term, count in counts.items()
            if term in occurrences
        ]
    return terms


def _shares(hits: "pd.DataFrame", hybrid: Path) -> dict[str, float]:
    """What fusion makes of the scores of a part: half of what it makes of the part fused with itself."""
    from cai_pyserini.fuse import fuse

    recipe = artifact.require_manifest(hybrid, "fuse")["recipe"]
    top = hits[: recipe["depth"]]
    if recipe["method"] == "product" or top.empty:
        return dict(zip(top.doc_id, top.score, strict=True))
    fused = fuse([top, top], recipe["method"], recipe["depth"], len(top))
    return dict(zip(fused.doc_id, fused.score / 2, strict=True))


def table(explanation: Explanation, count: int) -> list[list[str]]:
    """The parts of a hybrid, or the first `count` terms and the sum of the others, as rows of text after a header."""
    if explanation.parts:
        parts = [
            [p.explanation.system, f"{p.explanation.score:.4f}", str(p.explanation.rank or "-"), f"{p.share:.4f}"]
            for p in explanation.parts
        ]
        return [["part", "score", "rank", "share"], *parts]
    rows = [["term", "query", "document", "idf", "impact", "contribution"]]
    for term in explanation.terms[:count]:
        idf = "" if term.idf is None else f"{term.idf:.2f}"
        impact = "" if term.impact is None else str(term.impact)
        rows.append([term.term, f"{term.query:.4g}", f"{term.document:.3g}", idf, impact, f"{term.contribution:.4f}"])
    if others := explanation.terms[count:]:
        rows.append([f"{len(others)} others", *[""] * 4, f"{math.fsum(term.contribution for term in others):.4f}"])
    return rows


def text(explained: Mapping[str, list[Explanation]], contents: Mapping[str, str], count: int) -> str:
    """All explanations for a terminal, each with the first `count` terms."""
    lines = []
    for name, explanations in explained.items():
        lines += [f"== {name} ==", ""]
        for e in explanations:
            lines.append(f"{_head(e)}: {' '.join(contents[e.document].split())[:80]}")
            lines += [f"    {line}" for line in aligned(table(e, count))] + [""]
    return "\n".join(lines)


def _head(explanation: Explanation) -> str:
    rank = f"{explanation.rank}." if explanation.rank else "not in the run:"
    grade = "" if explanation.grade is None else f" {'★ ' * (explanation.grade > 0)}grade {explanation.grade}"
    return f"{rank} {explanation.document}, {explanation.score:.4f}{grade}"


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fafafa }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(27rem, 1fr)); gap: 1.5rem }
article { background: #fff; border: 1px solid #ddd; border-left: 5px solid #ccc; padding: .6rem .8rem; margin: .8rem 0 }
article.relevant { border-left-color: #2a8f3c }
h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin: 0 } h3 { font-size: 1rem; margin: 0 0 .3rem }
h4 { font-size: .85rem; margin: .5rem .4rem 0 }
p.text { max-height: 9em; overflow: auto; margin: .3rem 0; font-size: .9rem }
mark { color: inherit; border-radius: 2px }
table { border-collapse: collapse; width: 100%; font-size: .85rem; margin-top: .3rem }
th, td { text-align: right; padding: 0 .4rem; font: inherit; font-variant-numeric: tabular-nums; white-space: nowrap }
th { color: #777 } th:first-child, td:first-child { text-align: left }
tr.expansion td:first-child { font-style: italic; color: #a04000 }
"""


class Page:
    """The explanations of a query as one HTML page, in which a word is marked as strongly as its terms contribute."""

    def __init__(self, run: FinishedRun, query: str, contents: Mapping[str, str], count: int):
        self.run = run
        self.query = query
        self.contents = contents
        self.count = count
        self._terms: dict[tuple[bool, str], list[str]] = {}

    def html(self, explained: Mapping[str, list[Explanation]]) -> str:
        """The page."""
        sections = "".join(
            f"<section><h2>{escape(name)}</h2>{''.join(map(self._article, explanations))}</section>\n"
            for name, explanations in explained.items()
        )
        title = escape(f"{self.query}: {self.run.topics[self.query]}")
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
            f"<p>{escape(f'{self.run.collection.name}, encoder {self.run.encoder.name}')}. ★: a relevant document. "
            "Words are marked as strongly as they contribute; bars are contributions; terms in <i>italics</i> are "
            f"expansions, which the text of the document does not have.</p>\n<main>{sections}</main></body></html>\n"
        )

    def _article(self, explanation: Explanation) -> str:
        parts = [part.explanation for part in explanation.parts]
        pieces = WORD.split(self.contents[explanation.document])
        words = set(pieces[1::2])
        strengths = self._strengths(parts or [explanation], words)
        marked = [
            f'<mark style="background: rgb(255 190 0 / {strengths[piece]:.2f})">{escape(piece)}</mark>'
            if strengths.get(piece)
            else escape(piece)
            for piece in pieces
        ]
        tables = [self._table(explanation, words)]
        tables += [f"<h4>{escape(part.system)}</h4>{self._table(part, words)}" for part in parts]
        return (
            f"<article{' class=relevant' * ((explanation.grade or 0) > 0)}><h3>{escape(_head(explanation))}</h3>"
            f'<p class="text">{"".join(marked)}</p>{"".join(tables)}</article>\n'
        )

    def _table(self, explanation: Explanation, words: set[str]) -> str:
        header, *rows = table(explanation, self.count)
        words_terms = {term for word in words for term in self._terms_of(word, explanation.system)}
        expansions = {term.term for term in explanation.terms} - words_terms
        shown = [part.share for part in explanation.parts] or [t.contribution for t in explanation.terms[: self.count]]
        lines = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in header)}</tr>"]
        for row, value in zip(rows, [*shown, 0.0], strict=False):  # the sum of the other terms has no bar
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
            bar = (
                f"background: linear-gradient(to right, #cfe2f3 {100 * value / (max(shown) or 1):.0f}%, transparent 0)"
            )
            lines.append(f'<tr{" class=expansion" * (row[0] in expansions)} style="{bar}">{cells}</tr>')
        return f"<table>{''.join(lines)}</table>"

    def _strengths(self, explanations: Sequence[Explanation], words: set[str]) -> dict[str, float]:
        """From 0 to 1 for each word: the contribution of its best term against the largest, in any explanation."""
        strengths: dict[str, float] = dict.fromkeys(words, 0.0)
        for explanation in explanations:
            of_term = {term.term: term.contribution / explanation.terms[0].contribution for term in explanation.terms}
            for word in words:
                of_word = [of_term.get(term, 0.0) for term in self._terms_of(word, explanation.system)]
                strengths[word] = max(strengths[word], *of_word, 0.0)
        return strengths

    def _terms_of(self, word: str, system: str) -> list[str]:
        """The terms that a word of a document is to a system."""
        splade = System.parse(system).kind == "splade"
        if (splade, word) not in self._terms:
            if splade:
                ids = self.run.tokenizer.encode([word], None, special=False)[0]
                self._terms[splade, word] = [self.run.tokenizer.terms[id] for id in ids]
            else:
                analyze = jvm.java_class("io.anserini.analysis.AnalyzerUtils").analyze
                self._terms[splade, word] = list(analyze(word).toArray())
        return self._terms[splade, word]


def main() -> None:
    parser = cli.parser(
        "Explain the scores of documents for a query: a case study of the systems of a finished run.",
        "python -m cai_pyserini.analysis.explain --run-folder runs/hpo/splade-tiny --query q7 --output analysis",
    )
    parser.add_argument("--run-folder", type=Path, required=True, help="folder of `python -m cai_pyserini.beir`")
    parser.add_argument("--query", required=True, help="id of a query")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help="as in results.json")
    parser.add_argument("--depth", type=int, default=5, help="documents to explain, the best of each system")
    parser.add_argument("--document", nargs="+", help="ids of documents to explain instead, found or not")
    parser.add_argument("--terms", type=int, default=10, help="terms to show of a score; explain.json has all")
    parser.add_argument("--output", type=Path, required=True, help="folder to write explain.json and explain.html into")
    args = parser.parse_args()
    run = FinishedRun(args.run_folder)
    explained = explain(run, args.query, args.systems, args.depth, args.document or ())
    ids = {explanation.document for explanations in explained.values() for explanation in explanations}
    contents = run.collection.contents(ids, str(args.run_folder))
    data: dict[str, Any] = {
        "query": args.query,
        "text": run.topics[args.query],
        "documents": contents,
        "systems": {name: [asdict(e) for e in explanations] for name, explanations in explained.items()},
    }
    page = Page(run, args.query, contents, args.terms).html(explained)
    artifact.write_text(args.output / "explain.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    artifact.write_text(args.output / "explain.html", page)
    print(f"{args.query}: {run.topics[args.query]}\n")
    print(text(explained, contents, args.terms))
    print(f"{args.output}/explain.html, explain.json")


if __name__ == "__main__":
    cli.run(main)
