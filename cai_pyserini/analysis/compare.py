"""Whether two runs differ by more than chance, and on which queries they differ most.

Three looks at the differences of the queries, second run minus first: the paired t-test, the randomization test (the
signs of the differences are drawn anew; Smucker et al. 2007), and a percentile bootstrap of their mean.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini import cli
from cai_pyserini.analysis import output
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import open_collection
from cai_pyserini.config import load_index_config
from cai_pyserini.evaluate import compare, evaluate, mean
from cai_pyserini.figure import figure

RESAMPLES = 9999
BATCH = 500  # resamples at a time: memory
SEED = 0
TIE = 1e-9  # a smaller difference is rounding


@dataclass(frozen=True)
class Difference:
    """Of two runs, the second minus the first. `interval` is the 95% confidence interval of `difference`."""

    queries: int
    means: tuple[float, float]
    difference: float
    interval: tuple[float, float]
    p_t_test: float
    p_randomization: float
    wins: int
    losses: int
    ties: int


def difference(first: dict[str, float], second: dict[str, float]) -> Difference:
    """Compare every query's values of two runs. Both p are two-sided. Raises CaiError for fewer than two queries."""
    from scipy.stats import bootstrap, permutation_test

    if len(first) < 2:
        raise CaiError("significance takes two judged queries or more")
    values = np.array([second[query] - first[query] for query in first])
    tested = permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=RESAMPLES, batch=BATCH, rng=SEED
    )
    interval = bootstrap(
        (values,), np.mean, method="percentile", n_resamples=RESAMPLES, batch=BATCH, rng=SEED
    ).confidence_interval
    wins, losses = int((values > TIE).sum()), int((values < -TIE).sum())
    return Difference(
        len(values),
        (mean(first), mean(second)),
        float(values.mean()),
        (float(interval.low), float(interval.high)),
        compare(first, {"second": second})["second"].p,
        float(tested.pvalue),
        wins,
        losses,
        len(values) - wins - losses,
    )


def main() -> None:
    parser = cli.parser(
        "Compare two runs query by query: tests of significance, and the queries that differ most.",
        "python -m cai_pyserini.analysis.compare --collection hpo --runs bm25.trec splade-idf.trec --output analysis",
    )
    parser.add_argument("--collection", required=True, help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--split", help="whose qrels; default: the collection's, test")
    parser.add_argument("--runs", type=Path, nargs=2, required=True, metavar=("A", "B"), help="two TREC runs")
    parser.add_argument("--measure", default="nDCG@10", help="as ir_measures names it")
    parser.add_argument("--top", type=int, default=10, help="queries to show that gained most, and that lost most")
    parser.add_argument("--output", type=Path, required=True, help="folder to write compare.json and compare.png into")
    args = parser.parse_args()
    import ir_measures

    from cai_pyserini.trec import read_run

    try:
        ir_measures.parse_measure(args.measure)
    except (NameError, ValueError) as error:
        raise CaiError(f"--measure {args.measure}: {error}; such as nDCG@10, R@100, RR@10, AP") from None
    config = load_index_config(args.collection)
    collection = open_collection(config)
    split = args.split or config.split
    qrels, topics = collection.qrels(split), collection.topics(split)
    a, b = (evaluate(qrels, read_run(path), [args.measure])[args.measure] for path in args.runs)
    found = difference(a, b)

    changes: list[dict[str, Any]] = [
        {"query": query, "text": topics[query], "a": a[query], "b": b[query], "difference": b[query] - a[query]}
        for query in sorted(a, key=lambda query: a[query] - b[query])
    ]
    names = output.labels(args.runs)
    print(f"A: {names[0]}, mean {args.measure} {found.means[0]:.4f}")
    print(f"B: {names[1]}, mean {args.measure} {found.means[1]:.4f}")
    low, high = found.interval
    print(f"B - A: {found.difference:+.4f}, 95% confidence interval {low:+.4f} to {high:+.4f} (bootstrap)")
    print(f"p = {found.p_t_test:.3g} (paired t-test), {found.p_randomization:.3g} (randomization test)")
    print(f"of {found.queries:,} queries, B wins {found.wins:,}, loses {found.losses:,}, ties {found.ties:,}\n")
    ends = changes[: min(args.top, found.wins)], changes[::-1][: min(args.top, found.losses)]
    rows = [["queries that changed most", "A", "B", "B - A"]] + [
        [f"{c['query']}: {_cut(c['text'])}", f"{c['a']:.4f}", f"{c['b']:.4f}", f"{c['difference']:+.4f}"]
        for end in ends
        for c in end
    ]
    plot, axes = figure("queries, in order of the difference", f"{args.measure}, B - A")
    axes.set_title(f"A: {names[0]}\nB: {names[1]}", fontsize="medium", loc="left")
    values = np.array([change["difference"] for change in changes])
    axes.stairs(values.clip(min=0), fill=True, color="tab:green", label=f"B wins {found.wins:,}")
    axes.stairs(values.clip(max=0), fill=True, color="tab:red", label=f"B loses {found.losses:,}")
    axes.axhline(found.difference, color="black", linewidth=1, linestyle="--", label=f"mean {found.difference:+.4f}")
    axes.legend()
    data = {
        "a": str(args.runs[0]),
        "b": str(args.runs[1]),
        "measure": args.measure,
        **asdict(found),
        "changes": changes,
    }
    output.write(args.output, "compare", rows, data, plot)


def _cut(text: str, width: int = 80) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


if __name__ == "__main__":
    cli.run(main)
