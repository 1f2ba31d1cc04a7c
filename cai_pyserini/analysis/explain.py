"""Why does a document have its score for a query? The terms and parts of its scores in systems of a finished run."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from textwrap import indent, shorten

from cai_pyserini.analysis.settings import ExplainSettings, Report
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments.run_folder import RunFolder

WIDTH = 100  # characters of a document that are shown


@dataclass(frozen=True)
class Case:
    """A query and its explanations by system."""

    query: str
    text: str
    documents: dict[str, str]  # contents of every explained document
    systems: dict[str, list[Explanation]]


def explain(settings: ExplainSettings) -> Report:
    """The explanations of a query's documents, as text and JSON."""
    chosen = settings.model_dump(include={"query", "systems", "depth", "relevant", "documents"})
    run = RunFolder(settings.run)
    case = explain_query(run, Run(run.folder), **chosen)  # the version that `run` reads
    return Report("explain", text(case, settings.terms), asdict(case))


def explain_query(
    run: RunFolder,
    opened: Run,
    query: str,
    systems: Sequence[str],
    *,
    depth: int = 5,
    relevant: int = 3,
    documents: Sequence[str] = (),
) -> Case:
    """Explain the best `depth` documents of each system and `relevant` relevant ones, or only `documents`, if any.

    The relevant ones have the highest grades, and are the same for all systems, at any rank. Raises CaiError for a
    query, system or document that the run does not have, and for a system that cannot be searched interactively.
    """
    if query not in run.topics:
        known = shorten(", ".join(run.topics), 60, placeholder="…")
        raise CaiError(f"no query {query!r} in {run.root}, which has {len(run.topics):,}: {known}")
    searched = run.topics[query]
    grades = (run.qrels or {}).get(query, {})
    best_graded = sorted((id for id, grade in grades.items() if grade > 0), key=lambda id: -grades[id])[:relevant]
    explained: dict[str, list[Explanation]] = {}
    for name in dict.fromkeys(systems):
        engine = opened.open(name)
        best = [hit.id for hit in engine.search(searched, depth)] if depth and not documents else []
        found = engine.explain(searched, [*documents, *best, *best_graded])
        no_text = {id: Explanation(name, id, None, 0.0, None, [], []) for id in (*documents, *best_graded)}
        all_found = {id: replace(each, grade=grades.get(id)) for id, each in (no_text | found).items()}
        by_rank = sorted(best_graded, key=lambda id: all_found[id].rank or math.inf)
        explained[name] = [all_found[id] for id in dict.fromkeys(documents or [*best, *by_rank])]
    ids = {each.document: engine.docid(each.document) for each in chain.from_iterable(explained.values())}
    contents = run.collection.contents({*ids.values()}, str(run.root))
    return Case(query, searched, {id: contents[docid] for id, docid in ids.items()}, explained)


def text(case: Case, count: int) -> str:
    """All explanations as text for a terminal, each with the first `count` terms."""
    lines = [f"{case.query}: {case.text}"]
    for name, explanations in case.systems.items():
        lines += ["", f"== {name} =="]
        for explanation in explanations:
            contents = shorten(case.documents[explanation.document], WIDTH, placeholder="…")
            rows = explanation.table(count)
            lines += ["", explanation.heading, indent(f"{contents}\n{aligned(rows) if rows else 'no terms'}", " " * 4)]
    return "\n".join(lines)
