"""What judgments say: do judges agree, which of two systems is better, and how many more would decide it."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from statistics import NormalDist, stdev

import pandas as pd
from sklearn.metrics import cohen_kappa_score

from cai_pyserini.analysis.compare import difference, summary
from cai_pyserini.collection.contract import Qrels
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.trec import top
from cai_pyserini.evaluate.measures import measure
from cai_pyserini.evaluate.significance import MIN_QUERIES
from cai_pyserini.judge.judgments import Judged

FEW = 30  # documents; below that, the standard error of kappa is 0.15 or more
MEASURE = "nDCG(judged_only=True)@10"
LEVEL, POWER = 0.05, 0.8


def agreement(judged: Iterable[Judged]) -> str:
    """A table of Cohen's kappa of each pair of judges, plain and with quadratic weights."""
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
            few |= len(both) < FEW
    if len(rows) == 1:
        return "no document has the grades of two judges"
    note = f"\ntoo few: kappa of fewer than {FEW} documents says little" * few
    return f"{aligned(rows)}{note}\nweighted: by the square of the difference of two grades; –: not defined"


def _kappa(first: list[int], second: list[int], weights: str | None) -> str:
    """Cohen's kappa; it is not defined where both judges gave all documents the same grade."""
    every = range(min(first + second), max(first + second) + 1)  # or a missing grade would bring its neighbours closer
    with warnings.catch_warnings(action="ignore"):
        kappa = cohen_kappa_score(first, second, labels=every, weights=weights)
    return "–" if math.isnan(kappa) else f"{kappa:.3f}"


def verdict(runs: Mapping[str, pd.DataFrame], qrels: Qrels, smallest: float) -> str:
    """The runs of two systems, compared by judgments; `smallest` is a difference that would matter."""
    a, b = runs
    judged = [run[run["query_id"].isin(qrels)] for run in runs.values()]
    first, second = (measure(qrels, run, [MEASURE])[MEASURE] for run in judged)
    found = difference(first, second)
    unjudged = (f"{name} {_unjudged(run, qrels)}" for name, run in zip(runs, judged, strict=True))
    lines = [*summary(found, (a, b), "nDCG@10 of judged documents"), f"unjudged of the best 10: {', '.join(unjudged)}"]
    if missing := len(qrels.keys() - {*judged[0]["query_id"], *judged[1]["query_id"]}):
        lines.append(f"{missing:,} queries have no hits, and count 0 for both")
    if without := sum(not any(grade > 0 for grade in grades.values()) for grades in qrels.values()):
        lines.append(f"{without:,} queries have no relevant document, and count 0 for both")
    spread = stdev(second[query] - first[query] for query in qrels) if len(qrels) > 1 else 0.0
    if found.p_t_test is not None and found.p_t_test < LEVEL:
        lines.append(f"decided: {b if found.difference > 0 else a} is better, p < {LEVEL}")
    elif found.p_t_test is None or spread < 1e-9:
        lines.append(f"not decided; judge at least {MIN_QUERIES} queries on which they differ, for an estimate")
    else:
        lines += [
            "not decided",
            *_needed("queries", len(qrels), spread, {" as observed": abs(found.difference), "": smallest}),
        ]
    return "\n".join(lines)


def _unjudged(run: pd.DataFrame, qrels: Qrels) -> str:
    """The share of the best 10 hits of a run that have no grade."""
    best = top(run, 10)
    hits = [document in qrels[query] for query, document in zip(best["query_id"], best["doc_id"], strict=True)]
    return f"{1 - sum(hits) / len(hits):.1%}" if hits else "no hits"


def _needed(unit: str, count: int, spread: float, differences: dict[str, float]) -> Iterator[str]:
    """How many of a unit a two-sided paired test needs to find a difference: n = ((z_(1 - α/2) + z_power) · s / d)²."""
    factor = NormalDist().inv_cdf(1 - LEVEL / 2) + NormalDist().inv_cdf(POWER)
    chance = f"a chance of {POWER:.0%} of p < {LEVEL}"
    yield f"estimated for {chance}, from the standard deviation of the differences, {spread:.3f}:"
    for name, size in differences.items():
        if size > 0:
            needed = math.ceil((factor * spread / size) ** 2)
            more = max(0, needed - count)
            yield f"  a difference of {size:.4f}{name}: {needed:,} {unit}, {more:,} more"
