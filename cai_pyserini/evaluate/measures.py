"""Evaluation measures per query, computed with ir_measures."""

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import CalledProcessError

import ir_measures
import pandas as pd
from ir_measures import Measure
from ir_measures.measures import MeanAgg, registry

from cai_pyserini.collection.contract import Collection, Qrels, checked_grade
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import (
    documents_digest,
    documents_in,
    queries_in,
    ranks,
    read_parts,
    require_common,
    run_digest,
    scores_by_query,
    top,
)

logger = logging.getLogger(__name__)

MEASURES = ("nDCG@10", "R@100", "RR@10")
PerQuery = dict[str, dict[str, float]]  # measure -> query id -> value


def evaluate(run: Path, qrels: Qrels, output: Path) -> Path:
    """Write the measures of every query as JSON, see PerQuery."""
    inputs = {"run": run_digest(run), "qrels": artifact.digest(qrels)}
    recipe = artifact.recipe("beir", inputs, result="evaluation", measures=list(MEASURES))

    def write(path: Path) -> artifact.Stats:
        values = measure_run(qrels, run)
        path.write_text(json.dumps(values) + "\n", encoding="utf-8")
        return {name: mean(per_query) for name, per_query in values.items()}

    return artifact.make(output, recipe, write, folder=False)


def parse_measures(names: Sequence[str]) -> dict[str, Measure]:
    """The measure of each name. Raises CaiError for one that ir_measures cannot compute here."""
    measures = {name: _parsed(name) for name in names}
    if unknown := next((name for name, measure in measures.items() if measure is None), None):
        examples = (_parsed(name) or _parsed(f"{name}@10") or _parsed(f"{name}@0.5") for name in registry)
        computable = ", ".join(dict.fromkeys(str(measure) for measure in examples if measure))
        raise CaiError(f"cannot compute {unknown} with ir_measures; it computes here: {computable}")
    return {name: measure for name, measure in measures.items() if measure}


@cache
def _parsed(name: str) -> Measure | None:
    """A measure; None for one that cannot be computed."""
    with suppress(Exception):  # of many kinds, such as SyntaxError and AssertionError
        if _is_computable(measure := ir_measures.parse_measure(name)):
            return measure
    return None


def _is_computable(measure: Measure) -> bool:
    """Whether a measure works here and is a mean over queries, with a value for each, even if nothing is found."""
    if measure.params.get("cutoff", 1) < 1:
        return False  # trec_eval would end the process
    judged = {"1": {"a": 1, "b": 0}, "2": {"a": 1}, "3": {"a": 1}}
    found = ir_measures.iter_calc([measure], judged, {"1": {"b": 2.0, "a": 1.0}, "2": {"b": 1.0}})
    return {metric.query_id for metric in found} == judged.keys() and isinstance(measure.aggregator(), MeanAgg)


def measure(qrels: Qrels, run: pd.DataFrame, measures: Sequence[str] = MEASURES) -> PerQuery:
    """Each measure for every judged query; 0 if the run has no hits. Raises CaiError for what cannot be computed.

    The order of hits is that of the run in all measures: their own rules for ties differ.
    """
    parsed = parse_measures(measures)
    values = {measure: dict.fromkeys(qrels, 0.0) for measure in parsed.values()}
    ids = list(qrels)
    numbers = {id: str(number) for number, id in enumerate(ids)}  # gdeval, which ir_measures uses for ERR, takes no ids
    judged = {
        numbers[query]: {id: checked_grade(grade, f"query {query!r}, document {id!r}") for id, grade in grades.items()}
        for query, grades in qrels.items()
    }
    ranked = run.assign(score=float(len(run)) - ranks(run))
    for cutoff in set(map(_cutoff, values)):
        found = scores_by_query(ranked if cutoff is None else top(ranked, cutoff))
        hits = {numbers[id]: scores for id, scores in found.items() if id in numbers}
        wanted = [measure for measure in values if _cutoff(measure) == cutoff]
        try:
            for metric in ir_measures.iter_calc(wanted, judged, hits):
                values[metric.measure][ids[int(metric.query_id)]] = metric.value
        except (ValueError, CalledProcessError) as error:
            names = ", ".join(map(str, wanted))
            raise CaiError(f"{names} cannot be computed from these judgments: {error}") from None
    return {name: values[measure] for name, measure in parsed.items()}


def measure_run(qrels: Qrels, run: Path, measures: Sequence[str] = MEASURES) -> PerQuery:
    """As `measure`, for a run file, which is read part by part.

    Warns of a run that has hits for fewer than half of the judged queries; raises CaiError for one of other queries.
    """
    values: PerQuery = {name: dict.fromkeys(qrels, 0.0) for name in parse_measures(measures)}
    if queries := queries_in(run):
        require_common("queries", len(qrels), {str(run): queries, "the qrels": qrels.keys()})
    else:
        logger.warning("%s has no hits: it has 0 in every measure", run)
    for (part,) in read_parts([run]):
        judged = {query: qrels[query] for query in part["query_id"].cat.categories if query in qrels}
        for name, found in measure(judged, part, measures).items():
            values[name] |= found
    return values


def measure_runs(
    collection: Collection, split: str, runs: Sequence[Path], measures: Sequence[str] = MEASURES
) -> dict[Path, PerQuery]:
    """As `measure_run`, for runs of a collection. Warns of a run of which fewer than half of the documents are in the
    collection; raises CaiError for one of which none is, and for a run of ours of the documents as they were before."""
    parse_measures(measures)
    if documents_digest(runs):
        documents_digest(runs, collection.documents_digest)
    found = {run: documents_in(run) for run in runs}
    lacking = collection.unknown_documents(split, set().union(*found.values()))
    example = next(collection.records(whole=True)).id
    for run, documents in found.items():
        known = (documents - lacking) | {example}
        require_common("documents", len(documents), {str(run): documents, f"collection {collection.name}": known})
    qrels = collection.qrels(split)
    return {run: measure_run(qrels, run, measures) for run in runs}


def _cutoff(measure: Measure) -> int | None:
    """The rank after which hits do not count; None if all may count, as where unjudged hits are left out first."""
    counts_all = measure.params.get("judged_only") or "cutoff" not in measure.params
    return None if counts_all else measure["cutoff"]


def mean(values: dict[str, float]) -> float:
    return sum(values.values()) / len(values)
