"""What rose and what fell between two runs of a collection that has changed, and why?

Rankings are compared by average overlap (Wu & Crestani 2003): the mean, over depths d = 1, 2, …, of the fraction of
documents that the top d of both share.
"""

from collections.abc import Iterator, Mapping, Sequence

from cai_pyserini.analysis.output import SEARCH_AGAIN, Report, cut
from cai_pyserini.analysis.settings import ChangesSettings
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.open import Run
from cai_pyserini.engine.search import Engine
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.runs.measures import mean, measure_run
from cai_pyserini.runs.trec import read_run, scores_by_query, top

MEASURE = "nDCG@10"
WIDTH = 80


def changes(settings: ChangesSettings) -> Report:
    """The queries whose rankings differ, and the documents that rose or fell in them."""
    run, system = RunFolder(settings.run), parse_system(settings.system)
    if run.experiment.collection.passages:
        raise CaiError(f"{run.root} is a run of passages; this compares whole documents")
    run_folders = [RunFolder(settings.before), run]
    paths = [ranking_of(system, run_folder).output for run_folder in run_folders]
    for run_folder, path in zip(run_folders, paths, strict=True):
        if not run_folder.has(path):
            raise CaiError(f"{run_folder.root} has no run of {system.name}: {SEARCH_AGAIN}")
    hits_before, hits_now = (scores_by_query(top(read_run(path), settings.depth)) for path in paths)
    if not hits_before.keys() & hits_now.keys():
        raise CaiError(f"{paths[0]} and {paths[1]} have no query in common")
    queries = [query for query in run.topics if query in hits_before or query in hits_now]
    rankings = {query: [list(hits_before.get(query, ())), list(hits_now.get(query, ()))] for query in queries}
    overlaps = {query: overlap(pair, settings.depth) for query, pair in rankings.items()}
    values = [measure_run(run.qrels, path, [MEASURE])[MEASURE] for path in paths] if run.qrels else [{}, {}]
    before, now = ({query: scores[query] for query in queries if query in scores} for scores in values)
    gains = {query: now[query] - before[query] for query in now}
    changed = [query for query in rankings if rankings[query][0] != rankings[query][1]]
    changed.sort(key=lambda query: (-abs(gains.get(query, 0.0)), overlaps[query]))
    lines = [
        f"before: {paths[0]}, now: {paths[1]}",
        f"of {len(queries):,} queries with documents in either, {len(changed):,} have different documents among the "
        f"best {settings.depth}, or in another order; mean overlap {mean(overlaps):.3f}",
    ]
    manifests = [artifact.read_manifest(run_folder.checked) for run_folder in run_folders]
    digests = [manifest.recipe["inputs"]["parts"].get("queries") for manifest in manifests if manifest]
    if len(set(digests)) > 1:
        lines.append("the queries have changed in between: a query's new text counts like any other change")
    if gains:
        lines.append(f"mean {MEASURE}: {mean(before):.4f} before, {mean(now):.4f} now, both by the current judgments")
    engines = [Run(run_folder.folder).open(system.name) for run_folder in run_folders]
    data = []
    for query in changed[: settings.top]:
        documents = list(moved(engines, run.topics[query], rankings[query], settings.terms))
        gain = f", {MEASURE} {gains[query]:+.4f}" if query in gains else ""
        heading = f"{query}: {cut(run.topics[query], WIDTH)} (overlap {overlaps[query]:.3f}{gain})"
        lines += ["", heading, *(f"  {before:>3} → {now:>3}  {id}: {why}" for id, before, now, why in documents)]
        data.append({"query": query, "overlap": overlaps[query], "gain": gains.get(query), "documents": documents})
    return Report("changes", "\n".join(lines), {"overlaps": overlaps, "gains": gains, "queries": data})


def overlap(rankings: Sequence[Sequence[str]], depth: int) -> float:
    """The average overlap of two rankings, from 0 to 1; 1 if both are empty."""
    first, second = rankings
    depth = min(depth, max(len(first), len(second)))
    shared = [len({*first[:d]} & {*second[:d]}) / d for d in range(1, depth + 1)]
    return sum(shared) / depth if depth else 1.0


def moved(
    engines: Sequence[Engine], text: str, rankings: Sequence[Sequence[str]], terms: int
) -> Iterator[tuple[str, str, str, str]]:
    """The documents whose rank changed: id, rank before and now (– if not ranked), and why."""
    before, now = ({id: str(rank) for rank, id in enumerate(ranking, 1)} for ranking in rankings)
    ids = [id for id in dict.fromkeys([*now, *before]) if before.get(id) != now.get(id)]
    explained = [engine.explain(text, ids) for engine in engines]
    for id in ids:
        yield id, before.get(id, "–"), now.get(id, "–"), _why(id, engines, explained, terms)


def _why(id: str, engines: Sequence[Engine], explained: Sequence[Mapping[str, Explanation]], terms: int) -> str:
    if id not in explained[0]:
        return "new in the collection"
    if id not in explained[1]:
        return "gone from the collection"
    stored = [engine.document(id) for engine in engines]
    reasons = ["another text"] if all(stored) and stored[0] != stored[1] else []
    before, now = (dict(_contributions(explanations[id])) for explanations in explained)
    differences = {term: now.get(term, 0.0) - before.get(term, 0.0) for term in before | now}
    largest = sorted(differences, key=lambda term: -abs(differences[term]))[:terms]
    reasons += [f"{term} {differences[term]:+.3f}" for term in largest if abs(differences[term]) >= 0.0005]
    return ", ".join(reasons) or "others rose or fell"


def _contributions(explanation: Explanation) -> Iterator[tuple[str, float]]:
    """The contribution of each term to a score, or to the scores of its parts."""
    for term in explanation.terms:
        yield term.term, term.contribution
    for part in explanation.parts:
        for name, contribution in _contributions(part.explanation):
            yield f"{part.explanation.system} {name}", contribution
