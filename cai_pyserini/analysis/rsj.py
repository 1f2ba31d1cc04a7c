"""Which query words do runs overestimate or underestimate? (Formal et al. 2021; Iida & Okazaki 2022, Appendix B)

The Robertson-Spärck Jones weight of a token t for a query says how well t tells relevant documents from others:

    RSJ = log (p(t|R) p(¬t|¬R)) / (p(¬t|R) p(t|¬R)) = log ((r + ½)(N - n - |R| + r + ½)) / ((|R| - r + ½)(n - r + ½))

Of N documents, n contain t; of |R| relevant documents, r contain t; the ½ keep the logarithm finite. R̂SJ has the best K
documents of a run in place of R: it is the weight that the run in effect gives to t. The difference

    ΔRSJ = R̂SJ - RSJ

is positive if the run overestimates t. (The paper prints it with the other sign, but reads it this way.)

Each pair of a query and one of its tokens is in one of four groups: HighRSJ starts at the 75th percentile of the pairs'
RSJ, HighIDF at the median of their idf = ln(N / n). Tokens are BM25's words. Tokens that no document contains are left
out, and so are queries that have no relevant document or are missing from a run.
"""

import logging
import math
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import pandas as pd

from cai_pyserini.analysis.settings import Report, RsjSettings
from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.readers import load_in_languages, open_collection
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import aligned
from cai_pyserini.core.terminal import progress
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.runs.trec import documents_digest, read_run, scores_by_query, top

GROUPS = ["LowRSJ LowIDF", "LowRSJ HighIDF", "HighRSJ LowIDF", "HighRSJ HighIDF"]
DocumentSets = dict[str, set[str]]  # query id or token -> document ids

logger = logging.getLogger(__name__)


class Analysis(NamedTuple):
    """The RSJ of each pair of a query and a token, and its ΔRSJ for each run.

    `pairs` has a row per pair: `query`, `token`, the number of `documents` with the token, `idf`, `rsj` and `group`.
    `delta` has the same rows, and a column per run.
    """

    pairs: pd.DataFrame
    delta: pd.DataFrame
    counts: dict[str, int]  # of documents, queries and pairs
    thresholds: dict[str, float]  # the lowest high rsj and idf


def rsj(settings: RsjSettings) -> Report:
    """The ΔRSJ of runs by group, as median and mean, and a table of all pairs."""
    config = load_in_languages(settings.collection)
    split = settings.split or config.split
    runs: dict[str, DocumentSets] = {}
    for path in settings.trec:
        best = scores_by_query(top(read_run(path), settings.depth))
        runs[str(path)] = {query: set(scores) for query, scores in best.items()}
    collection = open_collection(config)
    documents_digest(settings.trec, collection.documents_digest)  # raises CaiError if the runs are of other documents
    analysis = analyze(collection, split, runs)
    groups: dict[str, dict[str, Any]] = {
        str(group): {"pairs": len(delta), "median": delta.median().to_dict(), "mean": delta.mean().to_dict()}
        for group, delta in analysis.delta.groupby(analysis.pairs["group"], observed=True)
    }
    rows = [["median (mean) ΔRSJ", *groups], ["pairs", *(f"{group['pairs']:,}" for group in groups.values())]]
    for name in runs:
        rows.append([name, *(f"{g['median'][name]:+.2f} ({g['mean'][name]:+.2f})" for g in groups.values())])
    data: dict[str, Any] = {"collection": config.name, "split": split, "depth": settings.depth, **analysis.counts}
    data |= {"thresholds": analysis.thresholds, "groups": groups}
    pairs = analysis.pairs.join(analysis.delta.add_prefix("ΔRSJ "))
    table = pairs.to_csv(sep="\t", index=False, float_format="%.4f")
    return Report("rsj", aligned(rows), data, {"rsj.tsv": table})


def rsj_weight(holders: AbstractSet[str], relevant: AbstractSet[str], documents: int) -> float:
    """The RSJ weight (natural log) of a token that is in the documents `holders`, of `documents` in total."""
    n, r = len(holders), len(holders & relevant)
    odds = (r + 0.5) / (len(relevant) - r + 0.5)
    odds_of_others = (n - r + 0.5) / (documents - n - len(relevant) + r + 0.5)
    return math.log(odds / odds_of_others)


def analyze(collection: Collection, split: str, runs: dict[str, DocumentSets]) -> Analysis:
    """Compare the documents that each run retrieves with the relevant ones.

    Raises CaiError if no pair remains, and for a judged or retrieved document that is not in the collection.
    """
    topics, qrels = collection.topics(split), collection.qrels(split)
    relevant = {query: {id for id, grade in judged.items() if grade > 0} for query, judged in qrels.items()}
    queries = [query for query in topics if relevant[query] and all(query in run for run in runs.values())]
    if left_out := len(topics) - len(queries):
        logger.warning(
            "%d of %d queries are left out: no relevant document, or missing from a run", left_out, len(topics)
        )
    tokenize = Analyzer(collection.language)
    tokens = {query: dict.fromkeys(tokenize(topics[query])) for query in queries}
    holders: DocumentSets = {token: set() for query_tokens in tokens.values() for token in query_tokens}
    ids = set()
    for record in progress(collection.records(), collection.size, "analyze"):
        ids.add(record.id)
        for token in holders.keys() & tokenize.of(record.language)(collection.contents_of(record)):
            holders[token].add(record.id)
    for source, sets in {"the qrels": relevant, **runs}.items():
        if unknown := next((id for documents in sets.values() for id in documents - ids), None):
            raise CaiError(f"{source}: document {unknown!r} is not in collection {collection.name}")
    rows, delta = [], []
    for query, query_tokens in tokens.items():
        for token in query_tokens:
            if documents := holders[token]:
                weight = rsj_weight(documents, relevant[query], len(ids))
                rows.append((query, token, len(documents), math.log(len(ids) / len(documents)), weight))
                delta.append({name: rsj_weight(documents, run[query], len(ids)) - weight for name, run in runs.items()})
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
