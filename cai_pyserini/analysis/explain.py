"""Why does a document have its score for a query? The terms and parts of scores in the systems of a finished run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pandas as pd

from cai_pyserini.analysis.finished_run import FinishedRun
from cai_pyserini.analysis.output import Report, cut
from cai_pyserini.analysis.page import page
from cai_pyserini.analysis.settings import ExplainSettings
from cai_pyserini.beir.systems import System, parse_system, with_parts
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.trec import read_run
from cai_pyserini.fusion.fuse import candidates
from cai_pyserini.fusion.fusions import FUSIONS
from cai_pyserini.idf.idf import idf_weights
from cai_pyserini.impact.quantization import Quantizer
from cai_pyserini.retrieval.lucene import LuceneIndex
from cai_pyserini.search.explanation import Case, Explanation, Part, Scored, Term
from cai_pyserini.search.retriever import text_terms
from cai_pyserini.vectors.shards import Shard
from cai_pyserini.words.analyzer import Analyzer

TEXT_WIDTH = 100


def explain(settings: ExplainSettings) -> Report:
    """The explanations of a query's documents, as text, JSON and an HTML page."""
    run = FinishedRun(settings.run_folder)
    case = explain_query(run, settings.query, settings.systems, settings.depth, settings.relevant, settings.documents)
    html = page(run, case, settings.terms)
    return Report("explain", text(case, settings.terms), asdict(case), {"explain.html": html})


def explain_query(
    run: FinishedRun,
    query: str,
    systems: Sequence[str],
    depth: int = 5,
    relevant: int = 3,
    documents: Sequence[str] = (),
) -> Case:
    """Explain the best `depth` documents of each system and `relevant` relevant ones, or else only `documents`.

    The relevant ones are those with the highest grades, the same for all systems, wherever these rank them. Raises
    CaiError for a query, system or document that the run does not have, and for a cross-encoder, whose scores are not
    made of terms.
    """
    if query not in run.topics:
        known = cut(", ".join(run.topics), 60)
        raise CaiError(f"no query {query!r} in {run.layout.folder}, which has {len(run.topics):,}: {known}")
    if run.passages:
        raise CaiError(f"{run.layout.folder} is a run of passages; explanations are of whole documents")
    asked = [parse_system(name) for name in dict.fromkeys(systems)]
    needed = with_parts(asked)
    for system in needed:
        if system.kind == "cross-encoder":
            raise CaiError(f"no explanation of {system.name}: the scores of a cross-encoder are not made of terms")
        if not run.has(system):
            runs = ", ".join(sorted(path.stem for path in run.layout.folder.glob("runs/*.trec")))
            raise CaiError(f"{run.layout.folder} has no run of {system.name}; it has {runs}")
    grades = run.collection.qrels(run.split)[query] if run.collection.has_qrels(run.split) else {}
    best_graded = sorted((id for id, grade in grades.items() if grade > 0), key=lambda id: -grades[id])[:relevant]
    ranks = {system: _ranks(run.layout.run(system), query) for system in needed}
    shown = {
        system: list(documents)
        or [*list(ranks[system])[:depth], *sorted(best_graded, key=lambda id: ranks[system].get(id, math.inf))]
        for system in asked
    }
    ids = list(dict.fromkeys(chain.from_iterable(shown.values())))
    contents = run.collection.contents(set(ids), str(run.layout.folder))
    explained: dict[System, dict[str, Explanation]] = {}
    for system in needed:  # parts come before their hybrids
        parts = _parts(run, system, query, explained) if system.kind == "hybrid" else {}
        scored = _fused(system, parts) if system.kind == "hybrid" else _scored(run, system, query, ids)
        explained[system] = {
            id: Explanation(system.name, id, ranks[system].get(id), score, grades.get(id), terms, parts.get(id, []))
            for id, (score, terms) in scored.items()
        }
    shown_explanations = {s.name: [explained[s][id] for id in dict.fromkeys(shown[s])] for s in asked}
    return Case(query, run.topics[query], contents, shown_explanations)


def _ranks(path: Path, query: str) -> dict[str, int]:
    return {document: rank for rank, document in enumerate(_hits(path, query)["doc_id"], 1)}


def _hits(path: Path, query: str) -> pd.DataFrame:
    run = read_run(path)
    return run[run["query_id"] == query]


def _parts(
    run: FinishedRun, hybrid: System, query: str, explained: Mapping[System, Mapping[str, Explanation]]
) -> dict[str, list[Part]]:
    """The parts of a hybrid's score for every document."""
    recipe = artifact.require(run.layout.run(hybrid), "fusion fuse").recipe
    paths = [run.layout.rescored(hybrid, part) if hybrid.exact else run.layout.run(part) for part in hybrid.parts]
    runs = [_hits(path, query) for path in paths]
    fused, values = candidates(runs, FUSIONS[hybrid.fusion], recipe["depth"], recipe["weights"])
    parts: dict[str, list[Part]] = {}
    for part, of_part in zip(hybrid.parts, values, strict=True):
        shares = dict(zip(fused["doc_id"], of_part.tolist(), strict=True))
        for id, explanation in explained[part].items():
            parts.setdefault(id, []).append(Part(shares.get(id, 0.0), explanation))
    return parts


def _fused(hybrid: System, parts: Mapping[str, Sequence[Part]]) -> dict[str, Scored]:
    combine = math.prod if FUSIONS[hybrid.fusion].combine == "product" else math.fsum
    return {id: Scored(combine(part.share for part in of_document), []) for id, of_document in parts.items()}


def _scored(run: FinishedRun, system: System, query: str, documents: Sequence[str]) -> dict[str, Scored]:
    """The scores of a system that is not a hybrid."""
    if system.kind == "dense":
        return _dense(run, system, query, documents)
    terms = _splade(run, system, query, documents) if system.kind == "splade" else _words(run, system, query, documents)
    return {id: Scored.of(found) for id, found in terms.items()}


def _dense(run: FinishedRun, system: System, query: str, documents: Sequence[str]) -> dict[str, Scored]:
    in_query = run.queries(system).encoded.vectors[list(run.topics).index(query)]
    return {id: Scored(float(in_query @ row), []) for id, row in _rows(run.vectors(system), documents).items()}


def _splade(run: FinishedRun, system: System, query: str, documents: Sequence[str]) -> dict[str, list[Term]]:
    """The tokens, and in a joint index the words, that a query shares with each document."""
    index = run.layout.index(system)
    stats = artifact.require(index, "index").stats
    impacts = run.impacts(system)
    config = load_encoder(str(index))
    weights = idf_weights(config, run.vectors(system).vocabulary)
    word_scale = Quantizer.of(config.joint.bits, config.joint.range).scale if config.joint else 1.0
    in_query = impacts.queries(run.queries(system))[list(run.topics).index(query)].toarray()[0]  # (columns,)
    raw = _rows(run.vectors(system), documents)
    terms = {}
    for document, row in _rows(impacts, documents).items():
        in_document, tokens = row.toarray()[0], raw[document].toarray()[0]
        terms[document] = [
            Term(
                impacts.terms[column],
                float(in_query[column]) / stats["query_scale"],
                float(tokens[column] if column < len(tokens) else in_document[column] / word_scale),
                float(weights[column]) if weights is not None and column < len(tokens) else None,
                int(in_document[column]),
                float(in_query[column] * in_document[column]) / (stats["query_scale"] * stats["document_scale"]),
            )
            for column in np.flatnonzero(in_query * in_document)
        ]
    return terms


def _rows(shards: Iterable[Shard], documents: Sequence[str]) -> dict[str, Any]:
    """The rows of these documents."""
    ids = set(documents)
    return {id: shard.vectors[row] for shard in shards for row, id in enumerate(shard.ids) if id in ids}


def _words(run: FinishedRun, system: System, query: str, documents: Sequence[str]) -> dict[str, list[Term]]:
    k1, b = artifact.require(run.layout.run(system), "search").recipe["bm25"]
    found = text_terms(LuceneIndex(run.layout.index(system)), Analyzer()(run.topics[query]), documents, k1, b)
    return {id: [] for id in documents} | found  # an empty document is not in the index


def text(case: Case, count: int) -> str:
    """All explanations for a terminal, each with the first `count` terms."""
    lines = [f"{case.query}: {case.text}"]
    for name, explanations in case.systems.items():
        lines += ["", f"== {name} =="]
        for explanation in explanations:
            contents = cut(case.documents[explanation.document], TEXT_WIDTH)
            rows = explanation.table(count)
            lines += ["", explanation.heading, indent(f"{contents}\n{aligned(rows) if rows else 'no terms'}", " " * 4)]
    return "\n".join(lines)
