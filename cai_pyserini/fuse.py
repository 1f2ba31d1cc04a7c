"""Fuse runs: hybrid search, the sum of BM25 and SPLADE scores (the paper's section 3.3), and other ways to combine.

    sum            sum of the scores; a document that a run lacks counts 0 there
    minmax         the same, of scores brought to [0, 1] query by query
    rrf            sum of 1 / (60 + rank)                                   (Cormack et al. 2009)
    product        product of the scores, 0 where a run lacks the document  (LaPraDoR, Xu et al. 2022)
    interpolation  alpha * first + (1 - alpha) * second, of two runs

Each run counts with its best `depth` documents a query. All but the product are pyserini.fusion's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cai_pyserini import cli
from cai_pyserini.cli import CaiError

if TYPE_CHECKING:
    import pandas as pd

METHODS = ("sum", "minmax", "rrf", "product", "interpolation")


def fuse(
    runs: Sequence["pd.DataFrame"], method: str, depth: int = 100, hits: int = 1000, alpha: float = 0.5, rrf_k: int = 60
) -> "pd.DataFrame":
    """Fuse runs, as read_run gives them, into one of the same form with at most `hits` documents a query."""
    import pandas as pd
    from pyserini.fusion import interpolation, normalize, reciprocal_rank_fusion
    from pyserini.trectools import AggregationMethod, TrecRun

    if method not in METHODS:
        raise CaiError(f"no fusion method {method!r}; known are {', '.join(METHODS)}")
    if len(runs) < 2 or (method == "interpolation" and len(runs) != 2):
        raise CaiError(
            f"{method} of {len(runs)} runs: it takes {'two' if method == 'interpolation' else 'two or more'}"
        )
    top = [run.groupby("query_id", sort=False).head(depth) for run in runs]
    if method == "product":
        hits_of = (
            pd.concat(top)
            .groupby(["query_id", "doc_id"], as_index=False)
            .agg(score=("score", "prod"), n=("score", "size"))
        )
        fused = hits_of.assign(score=hits_of.score.where(hits_of.n == len(runs), 0.0)).drop(columns="n")
    else:
        trec = [
            TrecRun.from_dataframes(
                [
                    run.assign(q0="Q0", tag="-", rank=run.groupby("query_id", sort=False).cumcount() + 1).rename(
                        columns={"query_id": "topic", "doc_id": "docid"}
                    )
                ]
            )
            for run in top
        ]
        if method == "sum":
            merged = TrecRun.merge(trec, AggregationMethod.SUM)
        elif method == "minmax":
            merged = normalize(trec)
        elif method == "rrf":
            merged = reciprocal_rank_fusion(trec, rrf_k=rrf_k)
        else:
            merged = interpolation(trec, alpha=alpha)
        fused = merged.run_data.rename(columns={"topic": "query_id", "docid": "doc_id"})[
            ["query_id", "doc_id", "score"]
        ]
    fused = fused.sort_values(["query_id", "score", "doc_id"], ascending=[True, False, True], ignore_index=True)
    return fused.groupby("query_id", sort=False).head(hits)


def as_run(frame: "pd.DataFrame") -> dict[str, list[tuple[str, float]]]:
    """A run in the form that write_run takes."""
    return {
        str(query): list(zip(hits.doc_id, hits.score, strict=True))
        for query, hits in frame.groupby("query_id", sort=False)
    }


def main() -> None:
    parser = cli.parser(
        "Fuse TREC runs of any origin.",
        "python -m cai_pyserini.fuse --runs bm25.trec splade-idf.trec --method minmax --output hybrid.trec",
    )
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="two runs or more")
    parser.add_argument("--method", choices=METHODS, default="sum", help="how scores are combined")
    parser.add_argument("--depth", type=int, default=100, help="documents a query that count, of each run")
    parser.add_argument("--hits", type=int, default=1000, help="documents a query in the output")
    parser.add_argument("--alpha", type=float, default=0.5, help="of interpolation: the first run's share")
    parser.add_argument("--rrf-k", type=int, default=60, help="of rrf: added to every rank")
    parser.add_argument("--output", type=Path, required=True, help="run to write")
    args = parser.parse_args()
    from cai_pyserini.trec import read_run, write_run

    fused = fuse([read_run(path) for path in args.runs], args.method, args.depth, args.hits, args.alpha, args.rrf_k)
    write_run(as_run(fused), args.output, args.method)
    print(f"{args.output}: {fused.query_id.nunique():,} queries, {len(fused):,} documents")


if __name__ == "__main__":
    cli.run(main)
