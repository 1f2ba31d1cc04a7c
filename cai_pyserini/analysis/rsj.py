"""Which words of queries do runs overestimate or underestimate? (Formal et al. 2021; Iida & Okazaki 2022, Appendix B)

The Robertson-Spärck Jones weight of a token t for a query says how well t tells its relevant documents from others:

    RSJ = log (p(t|R) p(¬t|¬R)) / (p(¬t|R) p(t|¬R)) = log ((r + ½)(N - n - |R| + r + ½)) / ((|R| - r + ½)(n - r + ½))

where n of all N documents and r of the relevant documents R have t; the usual ½ keeps the logarithm finite. With the
best K documents of a run in the place of R it is R̂SJ, the weight that the run gives t in effect, and

    ΔRSJ = R̂SJ - RSJ

is positive where the run overestimates t, negative where it underestimates it. (The paper prints the difference with
the other sign, but reads it in this way, which is that of Formal et al.)

Every pair of a query and one of its tokens is in one of four groups: HighRSJ is the 75th percentile of the pairs' RSJ
and above, HighIDF the median of their idf = ln(N / n) and above. Tokens are those of Pyserini's default analyzer:
Porter stems, without stop words. Left out are tokens that no document has, and queries that have no relevant document
or that some run lacks. The order of the best K plays no part: a fusion of SPLADE's best 100 with BM25 has the ΔRSJ of
SPLADE at depth 100 where all it does is to order them anew.
"""

import logging
import math
import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cai_pyserini import artifact, cli, jvm
from cai_pyserini.analysis import output
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import Collection, open_collection
from cai_pyserini.config import load_index_config
from cai_pyserini.figure import figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

GROUPS = ["LowRSJ LowIDF", "LowRSJ HighIDF", "HighRSJ LowIDF", "HighRSJ HighIDF"]
DocumentSets = dict[str, set[str]]  # query id or token -> document ids

logger = logging.getLogger(__name__)


def rsj(holders: AbstractSet[str], relevant: AbstractSet[str], documents: int) -> float:
    """The RSJ weight, natural log, of a token that the documents `holders` have, of `documents` in all."""
    n, r = len(holders), len(holders & relevant)
    odds = (r + 0.5) / (len(relevant) - r + 0.5)
    odds_of_others = (n - r + 0.5) / (documents - n - len(relevant) + r + 0.5)
    return math.log(odds / odds_of_others)


def default_analyzer() -> Callable[[str], list[str]]:
    """Pyserini's default analyzer: text -> tokens."""
    analyzer = jvm.java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newStemmingInstance("porter")
    utils = jvm.java_class("io.anserini.analysis.AnalyzerUtils")

    def analyze(text: str) -> list[str]:
        tokens = utils.analyze(analyzer, text).toString()[1:-1]  # one crossing from Java; no token has white space
        return tokens.split(", ") if tokens else []

    return analyze


def top_documents(run: Path, depth: int) -> DocumentSets:
    """The best `depth` documents of each query of a run."""
    from cai_pyserini.trec import read_run

    hits = read_run(run).groupby("query_id").head(depth)
    return {str(query): set(documents) for query, documents in hits.groupby("query_id")["doc_id"]}


class Analysis(NamedTuple):
    """`pairs` has a row for each query and token of it: `query`, `token`, how many `documents` have the token, `idf`,
    `rsj` and `group`. `delta` has their ΔRSJ, a column a run."""

    pairs: "pd.DataFrame"
    delta: "pd.DataFrame"
    counts: dict[str, int]  # of documents, queries and pairs
    thresholds: dict[str, float]  # of rsj and idf, from which on they are high

    def groups(self) -> "dict[str, pd.DataFrame]":
        """The ΔRSJ of each group that has pairs."""
        return {str(group): part for group, part in self.delta.groupby(self.pairs["group"], observed=True)}


def analyze(collection: Collection, split: str, runs: dict[str, DocumentSets]) -> Analysis:
    """Compare what runs retrieve, by name, with what is relevant.

    Raises CaiError where no pair is left, and where a judged or retrieved document is not in the collection.
    """
    import pandas as pd

    topics, qrels = collection.topics(split), collection.qrels(split)
    relevant = {query: {id for id, grade in judged.items() if grade > 0} for query, judged in qrels.items()}
    queries = [query for query in topics if relevant[query] and all(query in run for run in runs.values())]
    if left_out := len(topics) - len(queries):
        logger.warning("%d of %d queries have no relevant document, or some run lacks them", left_out, len(topics))
    tokenize = default_analyzer()
    tokens = {query: dict.fromkeys(tokenize(topics[query])) for query in queries}
    holders: DocumentSets = {token: set() for part in tokens.values() for token in part}
    ids = set()
    for id, contents in cli.progress(collection.documents(), collection.size, "analyze"):
        ids.add(id)
        for token in holders.keys() & tokenize(contents):
            holders[token].add(id)
    for source, sets in {"the qrels": relevant, **runs}.items():
        if unknown := next((id for documents in sets.values() for id in documents - ids), None):
            raise CaiError(f"{source}: document {unknown!r} is not in collection {collection.name}")
    rows, delta = [], []
    for query, token in [(query, token) for query, part in tokens.items() for token in part if holders[token]]:
        found = holders[token]
        weight = rsj(found, relevant[query], len(ids))
        rows.append((query, token, len(found), math.log(len(ids) / len(found)), weight))
        delta.append({name: rsj(found, run[query], len(ids)) - weight for name, run in runs.items()})
    if not rows:
        raise CaiError(
            f"no query of {collection.name}, split {split!r}, is in every run and has a word of the documents"
        )
    pairs = pd.DataFrame(rows, columns=["query", "token", "documents", "idf", "rsj"])
    thresholds = {"rsj": float(pairs["rsj"].quantile(0.75)), "idf": float(pairs["idf"].median())}
    high = 2 * (pairs["rsj"] >= thresholds["rsj"]) + (pairs["idf"] >= thresholds["idf"])
    pairs["group"] = pd.Categorical([GROUPS[i] for i in high], GROUPS)
    counts = {"documents": len(ids), "queries": len(queries), "pairs": len(pairs)}
    return Analysis(pairs, pd.DataFrame(delta), counts, thresholds)


def short_names(runs: Sequence[Path]) -> list[str]:
    """What tells runs apart: splade and bm25, or base/splade and adapted/splade for base/runs/splade.trec and
    adapted/runs/splade.trec."""
    paths = [run.absolute() for run in runs]
    root = os.path.commonpath([path.parent for path in paths])
    return [str(path.relative_to(root)).removesuffix(".trec").replace("/runs/", "/") for path in paths]


def plot(analysis: Analysis, title: str) -> "Figure":
    """Box plots of ΔRSJ by group and run: quartiles, and whiskers from the 5th to the 95th percentile."""
    made, axes = figure("", "ΔRSJ = R̂SJ − RSJ", title, (9, 4.5))
    groups = analysis.groups()
    names = analysis.delta.columns
    for i, name in enumerate(names):
        axes.boxplot(
            [group[name] for group in groups.values()],
            positions=[place + (i - (len(names) - 1) / 2) * 0.8 / len(names) for place in range(len(groups))],
            widths=0.64 / len(names),
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": f"C{i}", "alpha": 0.7},
            medianprops={"color": "black"},
            label=name,
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), [f"{name}\n{len(group):,} pairs" for name, group in groups.items()])
    axes.grid(visible=False, axis="x")
    made.legend(loc="outside lower center", ncols=3)
    return made


def main() -> None:
    parser = cli.parser(
        "Show whether runs overestimate or underestimate the words of queries, in groups by RSJ weight and IDF.",
        "python -m cai_pyserini.analysis.rsj --collection hpo --runs splade.trec splade-idf.trec --output rsj",
    )
    parser.add_argument("--collection", required=True, help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--split", help="whose queries and qrels; default: the collection's, test")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="runs to compare")
    parser.add_argument("--depth", type=int, default=100, help="documents of a query that are taken for relevant")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for rsj.json, rsj.png and, all pairs, rsj.tsv"
    )
    args = parser.parse_args()
    if args.depth < 1:
        raise CaiError(f"--depth is {args.depth}; it must be at least 1")
    config = load_index_config(args.collection)
    split = args.split or config.split
    runs = {name: top_documents(path, args.depth) for name, path in zip(short_names(args.runs), args.runs, strict=True)}
    analysis = analyze(open_collection(config), split, runs)
    groups: dict[str, dict[str, Any]] = {
        group: {"pairs": len(delta), "median": delta.median().to_dict(), "mean": delta.mean().to_dict()}
        for group, delta in analysis.groups().items()
    }
    rows = [["median (mean) ΔRSJ", *groups], ["pairs", *(f"{group['pairs']:,}" for group in groups.values())]]
    for name in runs:
        rows.append(
            [name, *(f"{group['median'][name]:+.2f} ({group['mean'][name]:+.2f})" for group in groups.values())]
        )
    settings = {"collection": config.name, "split": split, "depth": args.depth}
    found = analysis.counts | {"thresholds": analysis.thresholds, "groups": groups}
    table = analysis.pairs.join(analysis.delta.add_prefix("ΔRSJ "))
    artifact.write_text(args.output / "rsj.tsv", table.to_csv(sep="\t", index=False, float_format="%.4f"))
    plotted = plot(analysis, f"{config.name}, best {args.depth} documents")
    output.write(args.output, "rsj", rows, settings | found, plotted, "rsj.tsv")


if __name__ == "__main__":
    cli.run(main)
