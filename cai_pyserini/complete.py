"""Scores for documents that a system has not found: what an exact hybrid needs.

The paper's hybrid counts 0 where one of two lists lacks a document (Iida & Okazaki 2022, section 3.3). Such a document
has a score all the same, below that of the list's last. Here every document of both lists gets the score of either
system: from its run where it is there, else from Lucene, for words, or from the vectors.
"""

from collections.abc import Callable, Iterable
from itertools import batched
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.trec import Run
from cai_pyserini.vectors import Shard

if TYPE_CHECKING:
    import pandas as pd

PAIRS = 8192  # that are multiplied at a time

Wanted = dict[str, list[str]]  # query id -> document ids
Scores = dict[str, dict[str, float]]  # query id -> document id -> score


def complete(own: "pd.DataFrame", other: "pd.DataFrame", depth: int, score: Callable[[Wanted], Scores]) -> Run:
    """The documents among the first `depth` of either run, as read_run gives them, with the scores of the system of
    `own`. `score` gives those that its run lacks."""
    known: Scores = {str(q): dict(zip(hits.doc_id, hits.score, strict=True)) for q, hits in own.groupby("query_id")}
    union: dict[str, dict[str, None]] = {}
    for run in (own, other):
        top = run.groupby("query_id", sort=False).head(depth)
        for query, document in zip(top.query_id, top.doc_id, strict=True):
            union.setdefault(query, {})[document] = None
    wanted = {query: [d for d in documents if d not in known.get(query, {})] for query, documents in union.items()}
    found = score({query: documents for query, documents in wanted.items() if documents})
    completed: Run = {}
    for query, documents in union.items():
        scores = known.get(query, {}) | found.get(query, {})
        completed[query] = sorted(((d, scores[d]) for d in documents), key=lambda hit: (-hit[1], hit[0]))
    return completed


def vector_scores(wanted: Wanted, ids: list[str], queries: csr_matrix, shards: Iterable[Shard]) -> Scores:
    """Dot products of queries (queries, width), whose ids are `ids`, with the vectors of documents, shard by shard."""
    rows = {id: row for row, id in enumerate(ids)}
    asking: dict[str, list[str]] = {}
    for query, documents in wanted.items():
        for document in documents:
            asking.setdefault(document, []).append(query)
    scores: Scores = {query: {} for query in wanted}
    for shard in shards:
        for pairs in batched(((row, q) for row, id in enumerate(shard.ids) for q in asking.get(id, ())), PAIRS):
            left = shard.matrix[[row for row, _ in pairs]]
            right = queries[[rows[query] for _, query in pairs]]
            products = np.asarray(left.multiply(right).sum(1)).ravel()
            for (row, query), product in zip(pairs, products.tolist(), strict=True):
                scores[query][shard.ids[row]] = product
    return scores
