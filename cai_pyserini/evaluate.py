"""Evaluate runs with ir_measures, and compare them with a baseline query by query."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cai_pyserini import cli
from cai_pyserini.collection import Qrels, open_collection
from cai_pyserini.config import load_index_config

if TYPE_CHECKING:
    import pandas as pd

MEASURES = ("nDCG@10", "R@100", "RR@10")
PerQuery = dict[str, dict[str, float]]  # measure -> query id -> value


def evaluate(qrels: Qrels, run: "pd.DataFrame", measures: Sequence[str] = MEASURES) -> PerQuery:
    """Every judged query's value of each measure; 0 for a query the run lacks. `run` is in read_run's form."""
    import ir_measures

    parsed = {ir_measures.parse_measure(measure): measure for measure in measures}
    judged = [ir_measures.Qrel(query, doc, grade) for query, docs in qrels.items() for doc, grade in docs.items()]
    values: PerQuery = {measure: dict.fromkeys(qrels, 0.0) for measure in measures}
    for metric in ir_measures.iter_calc(list(parsed), judged, run):
        values[parsed[metric.measure]][metric.query_id] = metric.value
    return values


def mean(values: dict[str, float]) -> float:
    """The mean over queries."""
    return sum(values.values()) / len(values)


class Comparison(NamedTuple):
    """A system against a baseline: the mean difference, and the paired t-test's p, Holm-corrected."""

    difference: float
    p: float


def compare(baseline: dict[str, float], systems: dict[str, dict[str, float]]) -> dict[str, Comparison]:
    """Compare each system's values with a baseline's, query by query (two-sided paired t-test, Holm 1979)."""
    from scipy.stats import ttest_rel

    queries = list(baseline)
    pvalues = {}
    for name, values in systems.items():
        differences = [values[query] - baseline[query] for query in queries]
        differs = len(queries) > 1 and any(abs(d - differences[0]) > 1e-12 for d in differences)
        pvalues[name] = (
            float(ttest_rel([values[q] for q in queries], [baseline[q] for q in queries]).pvalue)
            if differs
            else float(len(queries) == 1 or not any(differences))  # no variance: nothing to test, or all is said
        )
    corrected = holm(list(pvalues.values()))
    return {
        name: Comparison(mean(values) - mean(baseline), p)
        for (name, values), p in zip(systems.items(), corrected, strict=True)
    }


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values for being several."""
    order = sorted(range(len(pvalues)), key=lambda i: pvalues[i])
    corrected = [0.0] * len(pvalues)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, pvalues[i] * (len(pvalues) - rank)))
        corrected[i] = largest
    return corrected


def main() -> None:
    parser = cli.parser(
        "Evaluate TREC runs; the first is the baseline that the others are compared with.",
        "python -m cai_pyserini.evaluate --collection hpo --runs bm25.trec splade-idf.trec",
    )
    parser.add_argument("--collection", required=True, help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--split", help="whose qrels; default: the collection's, test")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="runs to evaluate")
    parser.add_argument("--measures", nargs="+", default=list(MEASURES), help="as ir_measures names them")
    args = parser.parse_args()
    from cai_pyserini.trec import read_run

    config = load_index_config(args.collection)
    qrels = open_collection(config).qrels(args.split or config.split)
    values = {str(path): evaluate(qrels, read_run(path), args.measures) for path in args.runs}
    width = max(map(len, values))
    print(f"{'run':<{width}}  " + "  ".join(f"{measure:>9}" for measure in args.measures))
    for name, measured in values.items():
        print(f"{name:<{width}}  " + "  ".join(f"{mean(measured[measure]):>9.4f}" for measure in args.measures))
    first, *others = values
    main_measure = args.measures[0]
    compared = compare(values[first][main_measure], {name: values[name][main_measure] for name in others})
    for name, comparison in compared.items():
        print(f"{name} - {first}: {comparison.difference:+.4f} {main_measure}, p = {comparison.p:.4f}")


if __name__ == "__main__":
    cli.run(main)
