"""Why does a document have its score for a query? The terms and parts of its scores in systems of a finished run."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, replace
from functools import cache
from itertools import chain
from pathlib import Path
from textwrap import indent
from typing import Any

import pandas as pd

from cai_pyserini.analysis.output import Report, cut, split_text
from cai_pyserini.analysis.settings import ExplainSettings
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.template import template
from cai_pyserini.engine.explanation import Case, Explanation, Part
from cai_pyserini.engine.highlight import TermsOf, marked, word_strengths
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments.names import parse_system, with_parts
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import System
from cai_pyserini.runs.fuse import Shares, shares
from cai_pyserini.runs.trec import read_run

TEMPLATE = Path(__file__).with_name("explain.html.jinja")
LINE_WIDTH, TITLE_WIDTH = 100, 80  # characters
TEXT_WIDTH = 500  # characters of a document before "the rest of the text"


def explain(settings: ExplainSettings) -> Report:
    """The explanations of a query's documents, as text, JSON and an HTML page."""
    run = RunFolder(settings.run)
    opened = Run(run.folder)  # the version that `run` reads
    chosen = settings.model_dump(include={"query", "systems", "depth", "relevant", "documents"})
    case = explain_query(run, opened, **chosen)
    html = page(run, opened, case, settings.terms)
    return Report("explain", text(case, settings.terms), asdict(case), {"explain.html": html})


def explain_query(
    run: RunFolder,
    opened: Run,
    query: str,
    systems: Sequence[str],
    depth: int = 5,
    relevant: int = 3,
    documents: Sequence[str] = (),
) -> Case:
    """Explain the best `depth` documents of each system and `relevant` relevant ones, or only `documents`, if any.

    The relevant ones have the highest grades, and are the same for all systems, at any rank. Raises CaiError for a
    query, system or document that the run does not have, and for a system with a part that cannot be searched
    interactively.
    """
    if query not in run.topics:
        known = cut(", ".join(run.topics), 60)
        raise CaiError(f"no query {query!r} in {run.root}, which has {len(run.topics):,}: {known}")
    if run.experiment.collection.passages:
        raise CaiError(f"{run.root} is a run of passages; explanations are of whole documents")
    requested = [parse_system(name) for name in dict.fromkeys(systems)]
    all_systems = with_parts(requested)
    rankings = {system: system.ranking(run) for system in all_systems}
    engines = {system: opened.open(system.name) for system in all_systems if not rankings[system].method}
    for system in all_systems:
        if not run.has(rankings[system].output):
            runs = ", ".join(sorted(path.stem for path in filter(run.has, run.folder.glob("runs/*.trec"))))
            raise CaiError(f"{run.root} has no run of {system.name}; it has {runs}")
    grades = (run.qrels or {}).get(query, {})
    best_graded = sorted((id for id, grade in grades.items() if grade > 0), key=lambda id: -grades[id])[:relevant]
    ranks = {
        s: {id: rank for rank, id in enumerate(_hits(rankings[s].output, query)["doc_id"], 1)} for s in all_systems
    }
    shown: dict[System, list[str]] = {}
    for system in requested:
        by_rank = sorted(best_graded, key=lambda id: ranks[system].get(id, math.inf))
        shown[system] = list(dict.fromkeys(documents or [*list(ranks[system])[:depth], *by_rank]))
    ids = list(dict.fromkeys(chain.from_iterable(shown.values())))
    contents = run.collection.contents(set(ids), str(run.root))
    explained: dict[System, dict[str, Explanation]] = {}
    for system in all_systems:  # parts come before their hybrids
        if rankings[system].method:
            explanations = _explain_hybrid(run, system, query, explained)
        else:
            explanations = engines[system].explain(run.topics[query], ids)
        explained[system] = {}
        for id in ids:
            no_text = Explanation(system.name, id, None, 0.0, None, [], [])
            explanation = explanations.get(id, no_text)
            explained[system][id] = replace(explanation, rank=ranks[system].get(id), grade=grades.get(id))
    return Case(query, run.topics[query], contents, {s.name: [explained[s][id] for id in shown[s]] for s in requested})


def _hits(path: Path, query: str) -> pd.DataFrame:
    run = read_run(path)
    return run[run["query_id"] == query]


def _explain_hybrid(
    run: RunFolder, hybrid: System, query: str, explained: Mapping[System, Mapping[str, Explanation]]
) -> dict[str, Explanation]:
    """The explanations of a hybrid, from the fused runs and the explanations of its parts."""
    stats = artifact.require(hybrid.ranking(run).output, "fusion fuse").stats
    paths = [run.require(part.ranking(run).output) for part in hybrid.parts]
    fused = shares([_hits(path, query) for path in paths], hybrid.fusion, stats["depth"], stats["weights"])
    explanations = {}
    for id in explained[hybrid.parts[0]]:
        score, part_shares = fused.get(id, Shares(0.0, [0.0] * len(paths)))
        parts = [Part(share, explained[part][id]) for share, part in zip(part_shares, hybrid.parts, strict=True)]
        explanations[id] = Explanation(hybrid.name, id, None, score, None, [], parts)
    return explanations


def text(case: Case, count: int) -> str:
    """All explanations as text for a terminal, each with the first `count` terms."""
    lines = [f"{case.query}: {case.text}"]
    for name, explanations in case.systems.items():
        lines += ["", f"== {name} =="]
        for explanation in explanations:
            contents = cut(case.documents[explanation.document], LINE_WIDTH)
            rows = explanation.table(count)
            lines += ["", explanation.heading, indent(f"{contents}\n{aligned(rows) if rows else 'no terms'}", " " * 4)]
    return "\n".join(lines)


def page(run: RunFolder, opened: Run, case: Case, count: int) -> str:
    """An HTML page that highlights words by their contributions; tables have the first `count` terms."""
    engine = cache(opened.open)

    def terms_of(system: str, word: str) -> Sequence[str]:
        return engine(system).terms_of(system, word)

    return template(TEMPLATE).render(
        title=cut(f"{case.query}: {case.text}", TITLE_WIDTH),
        case=case,
        collection=run.collection.name,
        encoder=run.experiment.encoder.name,
        systems={
            name: [_article(e, case.documents[e.document], count, terms_of) for e in explanations]
            for name, explanations in case.systems.items()
        },
    )


def _article(explanation: Explanation, contents: str, count: int, terms_of: TermsOf) -> dict[str, Any]:
    """The values that the template needs for one document."""
    parts = [part.explanation for part in explanation.parts]
    strengths = word_strengths(contents, parts or [explanation], terms_of)
    shown, rest = split_text(contents, TEXT_WIDTH)
    return {
        "explanation": explanation,
        "shown": marked(shown, strengths),
        "rest": marked(rest, strengths) if rest else [],
        "tables": [_table(e, strengths.keys(), count, terms_of) for e in (explanation, *parts)],
    }


def _table(explanation: Explanation, words: Set[str], count: int, terms_of: TermsOf) -> dict[str, Any]:
    """A table with a bar per row, which says whether its term is an expansion."""
    header, *rows = explanation.table(count) or [[]]
    terms = explanation.terms[:count]
    in_text = {term for word in words for term in terms_of(explanation.system, word)} if terms else set()
    expansions = [term.term not in in_text for term in terms] + [False] * (len(rows) - len(terms))
    return {
        "system": explanation.system,
        "kind": "parts" if explanation.parts else "terms",
        "header": header,
        "rows": list(zip(rows, explanation.bars(count), expansions, strict=True)),
    }
