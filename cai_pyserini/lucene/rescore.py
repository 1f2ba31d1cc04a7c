"""Rescore the documents that other systems retrieved, for exact hybrids.

In the paper's hybrid, a document missing from one of the two runs has score 0 there (Iida & Okazaki 2022, section 3.3),
although the system would score it, just below the last of its run. Here both systems score the union of both runs:
scores come from the run, or else from Lucene (text) or the vectors.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import batched
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.impacts.weighting import impacts_of_index
from cai_pyserini.lucene.retrieve import open_searcher
from cai_pyserini.lucene.searcher import LuceneSearcher
from cai_pyserini.runs.trec import (
    add_latency,
    documents_digest,
    read_run,
    run_digest,
    run_of,
    scores_by_query,
    top,
    write_run,
)
from cai_pyserini.vectors.queries import Queries
from cai_pyserini.vectors.shards import Matrix, Shard, Vectors, without_zero_vectors

PAIRS = 8192  # query-document pairs per batch

Candidates = dict[str, list[str]]  # query id -> document ids
Scores = dict[str, dict[str, float]]  # query id -> document id -> score
Scorer = Callable[[Candidates], Scores]


def rescore(own: Path, others: Sequence[Path], scorer: Scorer, output: Path, depth: int, tag: str) -> Path:
    """Write a system's run with scores for the best `depth` documents per query of all runs.

    `own` is the system's run; `scorer` scores the documents missing from it, except those without a vector.
    """
    inputs = {"runs": [run_digest(run) for run in (own, *others)]}
    recipe = artifact.recipe("beir", inputs, result="rescored", depth=depth)

    def write(path: Path) -> artifact.Stats:
        documents = documents_digest([own, *others])
        runs = [read_run(run) for run in (own, *others)]
        start = time.perf_counter()
        rescored = rescore_runs(runs[0], runs[1:], depth, scorer)
        seconds = time.perf_counter() - start
        write_run(rescored, path, tag)
        queries = max(rescored["query_id"].nunique(), 1)
        latency = add_latency(1000 * seconds / queries, [own])
        return {"queries": queries, "ms_per_query": latency, "documents_digest": documents}

    return artifact.make(output, recipe, write, folder=False)


def rescore_runs(own: pd.DataFrame, others: Sequence[pd.DataFrame], depth: int, scorer: Scorer) -> pd.DataFrame:
    """The best `depth` documents per query of all runs, with scores of the system that made `own`."""
    scores, union, missing = scores_by_query(own), Scores(), Candidates()
    for run in (own, *others):
        for query, documents in scores_by_query(top(run, depth)).items():
            union.setdefault(query, {}).update(documents)
    for query, documents in union.items():
        if absent := [id for id in documents if id not in scores.setdefault(query, {})]:
            missing[query] = absent
    for query, documents in scorer(missing).items():
        scores[query].update(documents)
    rescored = {}
    for query, documents in union.items():
        rescored[query] = [(id, scores[query][id]) for id in documents if id in scores[query]]
    return run_of(rescored)


def text_scorer(index: Path, topics: dict[str, str], k1: float, b: float) -> Scorer:
    def score(candidates: Candidates) -> Scores:
        searcher = open_searcher(index, k1, b)
        assert isinstance(searcher, LuceneSearcher)
        scores = {query: searcher.scores(topics[query], ids) for query, ids in candidates.items()}
        searcher.close()
        return scores

    return score


def impact_scorer(index: Path, vectors: Path, words: Path, expansion: Path, queries: Queries) -> Scorer:
    """A scorer by the impacts of an index, recomputed from the raw vectors (and words) it was built from."""

    def score(candidates: Candidates) -> Scores:
        impacts = impacts_of_index(index, vectors, words, expansion)
        query_scale = artifact.require(index, "index").stats["query_scale"]
        scaled = impacts.queries(queries) / (impacts.quantizer.scale * query_scale)
        return vector_scores(candidates, list(queries.topics), scaled, impacts)

    return score


def dense_scorer(vectors: Path, queries: Queries) -> Scorer:
    def score(candidates: Candidates) -> Scores:
        shards = without_zero_vectors(Vectors(vectors))
        return vector_scores(candidates, list(queries.topics), queries.encoded.vectors, shards)

    return score


def vector_scores(candidates: Candidates, ids: Sequence[str], queries: Matrix, shards: Iterable[Shard]) -> Scores:
    """Inner products of queries (queries, width), with ids `ids`, and document vectors, read shard by shard."""
    rows = {id: row for row, id in enumerate(ids)}
    queries_of: dict[str, list[str]] = {}
    for query, documents in candidates.items():
        for document in documents:
            queries_of.setdefault(document, []).append(query)
    scores: Scores = {query: {} for query in candidates}
    for shard in shards:
        pairs = ((row, query) for row, id in enumerate(shard.ids) for query in queries_of.get(id, ()))
        for batch in batched(pairs, PAIRS):
            left = shard.vectors[[row for row, _ in batch]]
            right = queries[[rows[query] for _, query in batch]]
            products = left.multiply(right).sum(1) if isinstance(left, csr_matrix) else (left * right).sum(1)
            for (row, query), product in zip(batch, np.asarray(products).ravel().tolist(), strict=True):
                scores[query][shard.ids[row]] = product
    return scores
