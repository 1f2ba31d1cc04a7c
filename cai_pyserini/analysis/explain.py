"""Why does a document have its score for a query? The terms and parts of its scores in systems of a finished run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from textwrap import indent

import pandas as pd

from cai_pyserini.analysis.output import Report, cut
from cai_pyserini.analysis.settings import ExplainSettings
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.engine.explanation import Case, Explanation, Part
from cai_pyserini.engine.open import Run
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import System, parse_system, with_parts
from cai_pyserini.runs.fuse import Shares, shares
from cai_pyserini.runs.trec import read_run

WIDTH = 100  # characters of a document that are shown


def explain(settings: ExplainSettings) -> Report:
    """The explanations of a query's documents, as text, JSON and an HTML page."""
    run = RunFolder(settings.run)
    opened = Run(run.folder)  # the version that `run` reads
    chosen = settings.model_dump(include={"query", "systems", "depth", "relevant", "documents"})
    case = explain_query(run, opened, **chosen)
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
    engines = {system: opened.open(system.name) for system in all_systems if not system.parts}
    rankings = {system: system.ranking(run).output for system in all_systems}
    for system in all_systems:
        if not run.has(rankings[system]):
            runs = ", ".join(sorted(path.stem for path in filter(run.has, run.folder.glob("runs/*.trec"))))
            raise CaiError(f"{run.root} has no run of {system.name}; it has {runs}")
    grades = (run.qrels or {}).get(query, {})
    best_graded = sorted((id for id, grade in grades.items() if grade > 0), key=lambda id: -grades[id])[:relevant]
    ranks = {s: {id: rank for rank, id in enumerate(_hits(rankings[s], query)["doc_id"], 1)} for s in all_systems}
    shown: dict[System, list[str]] = {}
    for system in requested:
        by_rank = sorted(best_graded, key=lambda id: ranks[system].get(id, math.inf))
        shown[system] = list(dict.fromkeys(documents or [*list(ranks[system])[:depth], *by_rank]))
    ids = list(dict.fromkeys(chain.from_iterable(shown.values())))
    contents = run.collection.contents(set(ids), str(run.root))
    explained: dict[System, dict[str, Explanation]] = {}
    for system in all_systems:  # parts come before their hybrids
        if system.parts:
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
            contents = cut(case.documents[explanation.document], WIDTH)
            rows = explanation.table(count)
            lines += ["", explanation.heading, indent(f"{contents}\n{aligned(rows) if rows else 'no terms'}", " " * 4)]
    return "\n".join(lines)
