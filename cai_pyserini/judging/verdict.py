"""Conclusions from judgments: whether judges agree, which of two systems is better, and how many more to judge."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from statistics import NormalDist, stdev

import numpy as np
from sklearn.metrics import cohen_kappa_score

from cai_pyserini.collections.contract import Qrels
from cai_pyserini.core.tables import aligned
from cai_pyserini.judging.judgments import Judgment
from cai_pyserini.runs.compared import Compared
from cai_pyserini.runs.measures import measure
from cai_pyserini.runs.rankings import Rankings
from cai_pyserini.runs.significance import ALPHA, MIN_QUERIES
from cai_pyserini.runs.trec import top

MIN_DOCUMENTS = 30  # with fewer, the standard error of kappa is 0.15 or more
MEASURE = "nDCG(judged_only=True)@10"
POWER = 0.8


def agreement(judged: Iterable[Judgment]) -> str:
    """A table of Cohen's kappa of each pair of judges, unweighted and with quadratic weights."""
    grades: dict[str, dict[tuple[str, str, str], int]] = {}
    for query, document, judge, grade, texts in judged:
        grades.setdefault(judge, {})[query, document, texts] = grade
    rows, few = [["judges", "documents", "same grade", "kappa", "weighted kappa"]], False
    for pair in combinations(sorted(grades), 2):
        both = sorted(grades[pair[0]].keys() & grades[pair[1]].keys())
        if both:
            first, second = ([grades[judge][key] for key in both] for judge in pair)
            same = sum(a == b for a, b in zip(first, second, strict=True)) / len(both)
            kappas = [_kappa(first, second, weights) for weights in (None, "quadratic")]
            rows.append([" and ".join(pair), str(len(both)), f"{same:.0%}", *kappas])
            few |= len(both) < MIN_DOCUMENTS
    if len(rows) == 1:
        return "no document has the grades of two judges"
    note = f"\ntoo few: kappa of fewer than {MIN_DOCUMENTS} documents says little" if few else ""
    return f"{aligned(rows)}{note}\nweighted: by the squared difference of two grades; –: not defined"


def _kappa(first: list[int], second: list[int], weights: str | None) -> str:
    """Cohen's kappa as text; undefined if both judges gave all documents the same grade."""
    labels = range(min(first + second), max(first + second) + 1)  # unused grades included, for the distances
    with warnings.catch_warnings(action="ignore"):
        kappa = cohen_kappa_score(first, second, labels=labels, weights=weights)
    return "–" if math.isnan(kappa) else f"{kappa:.3f}"


def verdict(runs: Mapping[str, Rankings], qrels: Qrels, smallest: float) -> str:
    """Compare the runs of two systems by judgments; `smallest` is the smallest difference that would matter."""
    a, b = runs
    judged = [run[np.array([id in qrels for id in run.query_ids], bool)[run.queries]] for run in runs.values()]
    first, second = (measure(qrels, run, [MEASURE])[MEASURE] for run in judged)
    label = "nDCG@10 of judged documents"
    compared = Compared.of({a: {label: first}, b: {label: second}})
    found = compared.comparisons[b]
    unjudged = (f"{name} {_unjudged(run, qrels)}" for name, run in zip(runs, judged, strict=True))
    lines = [str(compared), f"unjudged of the best 10: {', '.join(unjudged)}"]
    if no_hits := len(qrels.keys() - {id for run in judged for id in run.columns[0]}):
        lines.append(f"{no_hits:,} queries have no hits, and count 0 for both")
    if no_relevant := sum(not any(grade > 0 for grade in grades.values()) for grades in qrels.values()):
        lines.append(f"{no_relevant:,} queries have no relevant document, and count 0 for both")
    deviation = stdev(second[query] - first[query] for query in qrels) if len(qrels) > 1 else 0.0
    if found.significant:
        lines.append(f"decided: {b if found.difference > 0 else a} is better, p < {ALPHA}")
    elif found.p is None or deviation < 1e-9:
        lines.append(f"not decided; judge at least {MIN_QUERIES} queries on which they differ, for an estimate")
    else:
        lines += ["not decided", *_sample_sizes(len(qrels), deviation, abs(found.difference), smallest)]
    return "\n".join(lines)


def _unjudged(run: Rankings, qrels: Qrels) -> str:
    """The share of the best 10 hits of a run that have no grade."""
    best = top(run, 10)
    unjudged = sum(id not in qrels[query] for query, id, _ in best)
    return f"{unjudged / len(best):.1%}" if len(best) else "no hits"


def _sample_sizes(queries: int, deviation: float, observed: float, smallest: float) -> Iterator[str]:
    """The queries that a two-sided paired test needs to find a difference d: n = ((z_(1 - α/2) + z_power) · s / d)²."""
    factor = NormalDist().inv_cdf(1 - ALPHA / 2) + NormalDist().inv_cdf(POWER)
    yield (
        f"estimated for a chance of {POWER:.0%} of p < {ALPHA}, from the standard deviation of the differences, "
        f"{deviation:.3f}:"
    )
    for note, size in ((" as observed", observed), ("", smallest)):
        if size > 0:
            needed = math.ceil((factor * deviation / size) ** 2)
            yield f"  a difference of {size:.4f}{note}: {needed:,} queries, {max(0, needed - queries):,} more"
