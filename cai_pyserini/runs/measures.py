"""Evaluation measures per query, with ir_measures."""

import json
import logging
from collections.abc import Sequence, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import CalledProcessError

import ir_measures
from ir_measures import Measure
from ir_measures.measures import MeanAgg

from cai_pyserini.collections.contract import Collection, Qrels, checked_grade
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import MEASURES
from cai_pyserini.runs import trec
from cai_pyserini.runs.rankings import Rankings

logger = logging.getLogger(__name__)

EXAMPLES = "nDCG@10, R@100, RR@10, P@10, AP, Success@1, Judged@10"  # for errors
PerQuery = dict[str, dict[str, float]]  # measure -> query id -> value


def evaluate(run: Path, qrels: Qrels, output: Path, measures: Sequence[str] = MEASURES) -> Path:
    """Write the measures of every query as JSON, a PerQuery."""
    inputs = {"run": trec.run_digest(run), "qrels": artifact.digest(qrels)}
    recipe = artifact.recipe("beir", inputs, "evaluation", result="evaluation", measures=[*measures])

    def write(path: Path) -> artifact.Stats:
        values = measure_run(qrels, run, measures)
        path.write_text(json.dumps(values) + "\n", encoding="utf-8")
        return {name: mean(per_query) for name, per_query in values.items()}

    return artifact.make(output, recipe, write, folder=False)


def parse_measures(names: Sequence[str]) -> dict[str, Measure]:
    """Measures by name. Raises CaiError for one that ir_measures cannot compute in this environment."""
    measures = {name: _parse(name) for name in names}
    if unknown := next((name for name, measure in measures.items() if measure is None), None):
        raise CaiError(f"cannot compute {unknown} with ir_measures; it can compute {EXAMPLES} and others")
    return {name: measure for name, measure in measures.items() if measure}


@cache
def _parse(name: str) -> Measure | None:
    """Parse a measure; None if it cannot be computed."""
    with suppress(Exception):  # many kinds, such as SyntaxError and AssertionError
        if _is_computable(measure := ir_measures.parse_measure(name)):
            return measure
    return None


def _is_computable(measure: Measure) -> bool:
    """Whether a measure works here and is a mean over queries, with a value for each, even one without hits."""
    if measure.params.get("cutoff", 1) < 1:
        return False  # trec_eval would end the process
    judged = {"1": {"a": 1, "b": 0}, "2": {"a": 1}, "3": {"a": 1}}
    metrics = ir_measures.iter_calc([measure], judged, {"1": {"b": 2.0, "a": 1.0}, "2": {"b": 1.0}})
    return {metric.query_id for metric in metrics} == judged.keys() and isinstance(measure.aggregator(), MeanAgg)


def measure(qrels: Qrels, run: Rankings, measures: Sequence[str] = MEASURES) -> PerQuery:
    """Each measure for every judged query; 0 if the run has no hits. Raises CaiError for measures that cannot be
    computed. All measures see the run's order of hits, because their own rules for ties differ.
    """
    parsed = parse_measures(measures)
    values = {measure: dict.fromkeys(qrels, 0.0) for measure in parsed.values()}
    ids = list(qrels)
    numbers = {id: str(number) for number, id in enumerate(ids)}  # gdeval, which ir_measures uses for ERR, takes no ids
    judged = {
        numbers[query]: {id: checked_grade(grade, f"query {query!r}, document {id!r}") for id, grade in grades.items()}
        for query, grades in qrels.items()
    }
    ranked = run.with_scores(float(len(run)) - run.ranks)
    for cutoff in set(map(_cutoff, values)):
        ranking = trec.scores_by_query(ranked if cutoff is None else trec.top(ranked, cutoff))
        hits = {numbers[id]: scores for id, scores in ranking.items() if id in numbers}
        with_cutoff = [measure for measure in values if _cutoff(measure) == cutoff]
        try:
            for metric in ir_measures.iter_calc(with_cutoff, judged, hits):
                values[metric.measure][ids[int(metric.query_id)]] = metric.value
        except (ValueError, CalledProcessError) as error:
            names = ", ".join(map(str, with_cutoff))
            raise CaiError(f"{names} cannot be computed from these judgments: {error}") from None
    return {name: values[measure] for name, measure in parsed.items()}


def measure_run(qrels: Qrels, run: Path, measures: Sequence[str] = MEASURES) -> PerQuery:
    """Like `measure`, for a run file. Warns if it has hits for fewer than half of the judged queries; raises CaiError
    if it has none for them."""
    hits = trec.read_run(run)
    require_judged({*hits.query_ids}, qrels, str(run))
    return measure(qrels, hits, measures)


def require_judged(queries: Set[str], qrels: Qrels, run: str) -> None:
    """Log if a run has no hits for some of the judged queries, as a warning if for over half. Raises CaiError if it has
    none for them, or if there are no judgments."""
    if not qrels:
        raise CaiError("the qrels have no judgments")
    if queries:
        trec.require_common("queries", len(qrels), {run: queries, "the qrels": qrels.keys()})
        if without := len(qrels.keys() - queries):
            logger.info("%s has no hits for %d of %d judged queries, which count as 0", run, without, len(qrels))
    else:
        logger.warning("%s has no hits: it has 0 in every measure", run)


def measure_runs(
    collection: Collection, split: str, runs: Sequence[Path], measures: Sequence[str] = MEASURES
) -> dict[Path, PerQuery]:
    """Like `measure_run`, for runs of a collection. Warns if the collection has fewer than half of a run's documents;
    raises CaiError if it has none, and for a run of ours on another version of the documents."""
    parse_measures(measures)
    if trec.documents_digest(runs):
        trec.documents_digest(runs, collection.documents_digest)
    retrieved = {run: {*trec.read_run(run).doc_ids} for run in runs}
    unknown = collection.unknown_documents(split, set().union(*retrieved.values()))
    example = next(collection.records(whole=True)).id
    for run, documents in retrieved.items():
        known = (documents - unknown) | {example}
        trec.require_common("documents", len(documents), {str(run): documents, f"collection {collection.name}": known})
    qrels = collection.qrels(split)
    return {run: measure_run(qrels, run, measures) for run in runs}


def _cutoff(measure: Measure) -> int | None:
    """The rank after which hits do not count; None if all may count, as in measures that remove unjudged hits first."""
    counts_all = measure.params.get("judged_only") or "cutoff" not in measure.params
    return None if counts_all else measure["cutoff"]


def mean(values: dict[str, float]) -> float:
    return sum(values.values()) / len(values)
