"""Evaluation measures per query, computed with ir_measures."""

import json
from collections.abc import Sequence
from pathlib import Path

import ir_measures
import numpy as np
import pandas as pd

from cai_pyserini.collection.contract import Qrels
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import ranks, read_parts, scores_by_query
from cai_pyserini.fusion.fuse import run_digest

MEASURES = ("nDCG@10", "R@100", "RR@10")
PerQuery = dict[str, dict[str, float]]  # measure -> query id -> value


def evaluate(run: Path, qrels: Qrels, output: Path) -> Path:
    """Write the measures of every query as JSON, see PerQuery."""
    recipe = {
        "stage": "beir",
        "result": "evaluation",
        "run": run_digest(run),
        "qrels": artifact.digest(qrels),
        "measures": list(MEASURES),
    }

    def write(path: Path) -> artifact.Stats:
        values = measure_run(qrels, run)
        path.write_text(json.dumps(values) + "\n")
        return {name: mean(per_query) for name, per_query in values.items()}

    return artifact.make(output, recipe, write, folder=False)


def measure(qrels: Qrels, run: pd.DataFrame, measures: Sequence[str] = MEASURES) -> PerQuery:
    """Each measure for every judged query; 0 if the run has no hits. Raises CaiError for an unknown measure."""
    try:
        parsed = {ir_measures.parse_measure(name): name for name in measures}
    except (NameError, ValueError, SyntaxError) as error:
        raise CaiError(
            f"unknown measure: {error}; known are those of ir_measures, such as nDCG@10, R@100, AP"
        ) from None
    values: PerQuery = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    for cutoff in {_cutoff(measure) for measure in parsed}:
        hits = scores_by_query(run if cutoff is None else _up_to(run, cutoff))
        for metric in ir_measures.iter_calc([m for m in parsed if _cutoff(m) == cutoff], qrels, hits):
            values[parsed[metric.measure]][metric.query_id] = metric.value
    return values


def measure_run(qrels: Qrels, run: Path, measures: Sequence[str] = MEASURES) -> PerQuery:
    """As `measure`, of a file, which is read part by part."""
    values: PerQuery = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    for (part,) in read_parts([run]):
        judged = {query: qrels[query] for query in part["query_id"].cat.categories if query in qrels}
        for name, found in measure(judged, part, measures).items():
            values[name] |= found
    return values


def _cutoff(measure: ir_measures.Measure) -> int | None:
    """The cutoff rank of a measure, if it has one."""
    return measure["cutoff"] if "cutoff" in measure.params else None


def _up_to(run: pd.DataFrame, cutoff: int) -> pd.DataFrame:
    """The hits that can count for a measure with this cutoff, however it breaks ties (in single precision)."""
    scores, rank = run["score"].to_numpy(np.float32), ranks(run)
    codes = run["query_id"].cat.codes.to_numpy()
    lowest = np.full(len(run["query_id"].cat.categories), -np.inf, np.float32)
    last = rank == cutoff
    lowest[codes[last]] = scores[last]
    return run[scores >= lowest[codes]]


def mean(values: dict[str, float]) -> float:
    """The mean over queries."""
    return sum(values.values()) / len(values)
