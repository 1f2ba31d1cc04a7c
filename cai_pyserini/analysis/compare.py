"""Do two runs differ by more than chance, and on which queries do they differ most?

Three answers, from the differences per query: the paired t-test, the randomization test, which flips their signs at
random (Smucker et al. 2007), and a percentile bootstrap of their mean.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import bootstrap, permutation_test

from cai_pyserini.analysis.output import Report, cut, labels
from cai_pyserini.analysis.settings import CompareSettings
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.figures import figure
from cai_pyserini.core.tables import aligned
from cai_pyserini.evaluate import significance
from cai_pyserini.evaluate.measures import mean, measure_run, parse_measures
from cai_pyserini.evaluate.significance import MIN_QUERIES, NO_P_MEANS, p_text

RESAMPLES = 9999
BATCH = 500  # resamples at a time: memory
SEED = 0
TIE = 1e-9  # a smaller difference is a rounding error
TEXT_WIDTH = 80


@dataclass(frozen=True)
class Difference:
    """Two runs: the second minus the first. `interval` is the 95% confidence interval of `difference`.

    Below MIN_QUERIES queries there is neither an interval nor a p.
    """

    queries: int
    means: tuple[float, float]
    difference: float
    interval: tuple[float, float] | None
    p_t_test: float | None  # two-sided, as is the next
    p_randomization: float | None
    wins: int
    losses: int
    ties: int


@dataclass(frozen=True)
class Change:
    """The values of one query, and b - a."""

    query: str
    text: str
    a: float
    b: float
    difference: float


def compare(settings: CompareSettings) -> Report:
    """The difference of two runs, A and B, and every query's change."""
    parse_measures([settings.measure])
    config = load_index_config(settings.collection)
    collection = open_collection(config)
    split, name = settings.split or config.split, settings.measure
    qrels, topics = collection.qrels(split), collection.topics(split)
    a, b = (measure_run(qrels, path, [name])[name] for path in settings.runs)
    found = difference(a, b)
    changes = [Change(query, topics.get(query, ""), a[query], b[query], b[query] - a[query]) for query in a]
    changes.sort(key=lambda change: -change.difference)
    runs = labels(settings.runs)
    lines = [
        f"A: {runs[0]}, mean {name} {found.means[0]:.4f}",
        f"B: {runs[1]}, mean {name} {found.means[1]:.4f}",
        f"B - A: {found.difference:+.4f}{_interval(found)}",
        f"p: {p_text(found.p_t_test)} (paired t-test), {p_text(found.p_randomization)} (randomization test)",
        *[NO_P_MEANS] * (found.p_t_test is None),
        f"of {found.queries:,} queries, B wins {found.wins:,}, loses {found.losses:,}, ties {found.ties:,}",
        "",
    ]
    gains, losses = changes[: min(settings.top, found.wins)], changes[::-1][: min(settings.top, found.losses)]
    rows = [["queries that changed most", "A", "B", "B - A"]]
    rows += [
        [f"{c.query}: {cut(c.text, TEXT_WIDTH)}", f"{c.a:.4f}", f"{c.b:.4f}", f"{c.difference:+.4f}"]
        for c in gains + losses
    ]
    data = {
        "a": str(settings.runs[0]),
        "b": str(settings.runs[1]),
        "measure": name,
        **asdict(found),
        "changes": [asdict(change) for change in changes],
    }
    plotted = plot([change.difference for change in changes], found, name, runs)
    return Report("compare", "\n".join([*lines, aligned(rows)]), data, {"compare.png": plotted})


def difference(first: dict[str, float], second: dict[str, float]) -> Difference:
    """Compare the values of two runs query by query."""
    values = np.array([second[query] - first[query] for query in first])
    interval = p = None
    if len(values) >= MIN_QUERIES:
        resampling = {"n_resamples": RESAMPLES, "batch": BATCH, "rng": SEED}
        p = float(permutation_test((values,), np.mean, permutation_type="samples", **resampling).pvalue)
        low, high = bootstrap((values,), np.mean, method="percentile", **resampling).confidence_interval
        interval = float(low), float(high)
    wins, losses = int((values > TIE).sum()), int((values < -TIE).sum())
    return Difference(
        len(values),
        (mean(first), mean(second)),
        float(values.mean()),
        interval,
        significance.compare(first, {"second": second})["second"].p,
        p,
        wins,
        losses,
        len(values) - wins - losses,
    )


def _interval(found: Difference) -> str:
    if found.interval is None:
        return ""
    low, high = found.interval
    return f", 95% confidence interval {low:+.4f} to {high:+.4f} (bootstrap)"


def plot(differences: Sequence[float], found: Difference, measure: str, runs: Sequence[str]) -> Figure:
    """The differences of all queries, in falling order."""
    made, axes = figure("queries, in order of the difference", f"{measure}, B - A")
    axes.set_title(f"A: {runs[0]}\nB: {runs[1]}", fontsize="medium", loc="left")
    values = np.array(differences)
    axes.stairs(values.clip(min=0), fill=True, color="tab:green", label=f"B wins {found.wins:,}")
    axes.stairs(values.clip(max=0), fill=True, color="tab:red", label=f"B loses {found.losses:,}")
    axes.axhline(found.difference, color="black", linewidth=1, linestyle="--", label=f"mean {found.difference:+.4f}")
    axes.legend()
    return made
