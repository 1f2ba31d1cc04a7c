"""The weight of BM25 beside SPLADE, without labels.

    alpha = mean over queries of deviation(SPLADE's best scores) / mean over queries of deviation(BM25's best scores)

brings both to one scale: score = alpha * BM25 + SPLADE. Queries are spans of the documents; the best are 100 a query;
BM25 is that without expansion. (The mean of the ratios would be no estimate: it explodes on a query that matches a
handful of documents.)
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import Representation, encode_queries
from cai_pyserini.impact.bm25 import Bm25, Span
from cai_pyserini.impact.weighting import weighted
from cai_pyserini.vectors.shards import Vectors

BEST = 100  # documents per query


def estimate_alpha(
    vectors: Vectors, weights: np.ndarray | None, bm25: Bm25, encoder: Encoder
) -> dict[Representation, float]:
    """Alpha for both representations of queries.

    `vectors` are raw, `weights` (vocabulary,) their IDF. Raises CaiError where documents are too short to have spans.
    """
    spans = [span for span in bm25.spans if span.words]
    kinds: list[Representation] = ["splade", "bow"]
    if bm25.alpha is not None:
        return dict.fromkeys(kinds, bm25.alpha)
    if not spans:
        raise CaiError(f"{bm25.folder}: the documents are too short to estimate alpha from them: give --alpha")
    queries = {kind: encode_queries(encoder, [span.text for span in spans], kind) for kind in kinds}
    words = _word_counts(spans, bm25.words)
    bm25 = replace(bm25, expansion=None)
    best: dict[str, np.ndarray] = {kind: np.zeros((len(spans), 0)) for kind in (*kinds, "bm25")}
    bar = progress(vectors, vectors.shards, "alpha", "shard")
    for shard, of_words in zip(bar, bm25.shards(), strict=True):
        documents = weighted(shard.vectors, weights)
        for kind, matrix in queries.items():
            best[kind] = _merge(best[kind], matrix @ documents.T)
        best["bm25"] = _merge(best["bm25"], words @ of_words.vectors.T)
    spread = {kind: float(scores.std(1).mean()) for kind, scores in best.items()}
    if not all(spread.values()):
        raise CaiError(f"{bm25.folder}: the documents are too few to estimate alpha from them: give --alpha")
    return {kind: round(spread[kind] / spread["bm25"], 4) for kind in kinds}


def _word_counts(spans: Sequence[Span], words: Sequence[str]) -> csr_matrix:
    """Counts (spans, words)."""
    of_spans = {word for span in spans for word in span.words}
    columns = {word: column for column, word in enumerate(words) if word in of_spans}
    entries = [(row, columns[w], n) for row, span in enumerate(spans) for w, n in span.words.items() if w in columns]
    rows, indices, counts = np.array(entries).T
    return csr_matrix((counts.astype(np.float32), (rows, indices)), shape=(len(spans), len(words)))


def _merge(best: np.ndarray, scores: csr_matrix) -> np.ndarray:
    """The best scores of each query so far (queries, at most BEST), and of a shard (queries, documents)."""
    every = np.hstack([best, scores.toarray()])
    return every if every.shape[1] <= BEST else np.partition(every, -BEST, axis=1)[:, -BEST:]
