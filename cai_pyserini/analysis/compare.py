"""Do two runs differ by more than chance, and on which queries do they differ most?

The differences per query are tested by the paired t-test, and by a percentile bootstrap of their mean.
"""

from dataclasses import asdict, dataclass
from textwrap import shorten
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from cai_pyserini.analysis.settings import CompareSettings, Report
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.tables import aligned
from cai_pyserini.runs import significance
from cai_pyserini.runs.measures import mean, measure_runs
from cai_pyserini.runs.significance import MIN_QUERIES, NO_P_MEANS, p_text, wins_and_losses

TEXT_WIDTH = 80


@dataclass(frozen=True)
class Difference:
    """The second run minus the first, and the 95% confidence interval of the difference.

    With fewer than MIN_QUERIES queries, there is neither an interval nor a p.
    """

    queries: int
    means: tuple[float, float]
    difference: float
    interval: tuple[float, float] | None
    p_t_test: float | None  # two-sided
    wins: int
    losses: int
    ties: int


def compare(settings: CompareSettings) -> Report:
    """The difference between runs A and B, in total and by query."""
    name = settings.measure
    config = load_index_config(settings.collection)
    collection, split = open_collection(config), settings.split or config.split
    measured = measure_runs(collection, split, settings.trec, [name])
    topics = collection.topics(split)
    a, b = (measured[path][name] for path in settings.trec)
    result = difference(a, b)
    texts = {query: topics.get(query, "") for query in a}
    changes = {query: b[query] - a[query] for query in a}
    ordered = sorted(changes, key=lambda query: -changes[query])
    a_path, b_path = map(str, settings.trec)
    lines = [*summary(result, (a_path, b_path), name), ""]
    largest = ordered[: min(settings.top, result.wins)] + ordered[::-1][: min(settings.top, result.losses)]
    rows = [["queries that changed most", "A", "B", "B - A"]]
    rows += [
        [
            f"{query}: {shorten(texts[query], TEXT_WIDTH, placeholder='…')}",
            f"{a[query]:.4f}",
            f"{b[query]:.4f}",
            f"{changes[query]:+.4f}",
        ]
        for query in largest
    ]
    data: dict[str, Any] = {"a": a_path, "b": b_path, "measure": name} | asdict(result)
    data["changes"] = [
        {"query": query, "text": texts[query], "a": a[query], "b": b[query], "difference": changes[query]}
        for query in ordered
    ]
    return Report("compare", "\n".join([*lines, aligned(rows)]), data)


def summary(result: Difference, names: tuple[str, str], measure: str) -> list[str]:
    """A difference as lines of text."""
    interval = ""
    if result.interval:
        low, high = result.interval
        interval = f", 95% confidence interval {low:+.4f} to {high:+.4f} (bootstrap)"
    lines = [
        f"A: {names[0]}, mean {measure} {result.means[0]:.4f}",
        f"B: {names[1]}, mean {measure} {result.means[1]:.4f}",
        f"B - A: {result.difference:+.4f}{interval}",
        f"p: {p_text(result.p_t_test)} (paired t-test)",
    ]
    if result.p_t_test is None:
        lines.append(NO_P_MEANS)
    counts = f"B wins {result.wins:,}, loses {result.losses:,}, ties {result.ties:,}"
    return [*lines, f"of {result.queries:,} queries, {counts}"]


def difference(first: dict[str, float], second: dict[str, float]) -> Difference:
    values = np.array([second[query] - first[query] for query in first])
    interval = None
    if len(values) >= MIN_QUERIES:
        tested = bootstrap((values,), np.mean, n_resamples=9999, batch=500, method="percentile", rng=0)
        low, high = tested.confidence_interval
        interval = float(low), float(high)
    wins, losses = wins_and_losses(values)
    return Difference(
        queries=len(values),
        means=(mean(first), mean(second)),
        difference=float(values.mean()),
        interval=interval,
        p_t_test=significance.compare(first, {"second": second})["second"].p,
        wins=wins,
        losses=losses,
        ties=len(values) - wins - losses,
    )
