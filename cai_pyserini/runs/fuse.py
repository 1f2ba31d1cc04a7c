"""Fuse runs for hybrid search, such as the paper's sum of BM25 and SPLADE scores (section 3.3)."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.runs import trec
from cai_pyserini.runs.fusions import DEFAULT, DEPTH, FUSIONS, Fusion, ranks_within
from cai_pyserini.runs.trec import Ranking

logger = logging.getLogger(__name__)


def require_fusable(runs: Sequence[Path]) -> None:
    """Warn if a run shares fewer than half of its queries or documents with the runs before it. Raises CaiError if it
    shares none. Ignores runs without hits, and documents if the manifests of all runs have a `documents_digest`."""
    ours = all(manifest and manifest.stats.get("documents_digest") for manifest in map(artifact.read_manifest, runs))
    name, queries, documents = "", set[str](), set[str]()
    for run in runs:
        new_queries, new_documents = trec.queries_in(run), trec.documents_in(run)
        if queries and new_queries:
            trec.require_common("queries", len(queries | new_queries), {name: queries, str(run): new_queries})
            if not ours:
                fewer = min(len(documents), len(new_documents))
                trec.require_common("documents", fewer, {name: documents, str(run): new_documents})
        name = f"{name}, {run}" if name else str(run)
        queries, documents = queries | new_queries, documents | new_documents


def fuse(
    runs: Sequence[Path],
    output: Path,
    method: str = DEFAULT,
    *,
    depth: int = DEPTH,
    hits: int = 1000,
    tag: str = "cai_pyserini",
    weights: Sequence[float] | None = None,
) -> Path:
    """Write the fusion of TREC runs, with at most `hits` documents per query; see `fuse_runs`.

    Warns of runs with scores below 0 if the method treats these differently.
    """
    settings: dict[str, Any] = {"depth": depth, "weights": weights and [*map(float, weights)]}
    inputs = {"runs": [trec.run_digest(run) for run in runs]}
    recipe = artifact.recipe("fusion fuse", inputs, method=method, hits=hits, **settings)

    def write(path: Path) -> artifact.Stats:
        documents, seconds, queries = trec.documents_digest(runs), 0.0, 0
        negative: Counter[Path] = Counter()  # run -> number of queries

        def parts() -> Iterator[pd.DataFrame]:
            nonlocal seconds, queries
            for part in trec.read_parts(runs):
                start = time.perf_counter()
                fused = fuse_runs(part, method, depth, hits, weights)
                seconds += time.perf_counter() - start
                queries += fused["query_id"].nunique()
                if FUSIONS[method].negative_warning:
                    counts = (_negative_queries(part, number, FUSIONS[method], depth) for number in range(len(runs)))
                    negative.update(dict(zip(runs, counts, strict=True)))
                yield fused

        trec.write_parts(parts(), path, tag)
        for run, count in (+negative).items():
            consequence = FUSIONS[method].negative_warning
            logger.warning("%s has scores below 0 for %d of %d queries; %s", run, count, queries, consequence)
        latency = trec.add_latency(1000 * seconds / max(queries, 1), runs)
        return {"queries": queries, "ms_per_query": latency, "documents_digest": documents, **settings}

    return artifact.make(output, recipe, write, folder=False)


def _negative_queries(runs: Sequence[pd.DataFrame], number: int, fusion: Fusion, depth: int) -> int:
    """The number of queries for which a run has scores below 0 among its best `depth`; in a sum, only of queries for
    which it also lacks documents of other runs."""
    best = trec.top(runs[number], depth)
    queries = best.loc[best["score"] < 0, "query_id"].unique().astype(object)
    if not len(queries) or not fusion.is_sum:
        return len(queries)
    fused, _ = candidates(runs, fusion, depth)
    own, union = (hits["query_id"].astype(object).value_counts() for hits in (best, fused))
    return int((own[queries] < union[queries]).sum())


def fuse_runs(
    runs: Sequence[pd.DataFrame],
    method: str,
    depth: int = DEPTH,
    hits: int = 1000,
    weights: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Fuse the best `depth` documents per query of two or more runs.

    `weights`, one positive number per run, multiply contributions to a sum; None: all 1. Raises CaiError for an
    unknown method, and for invalid weights.
    """
    fusion = _checked(method, len(runs), weights)
    fused, values = candidates(runs, fusion, depth, weights)
    ranked = trec.sorted_run(fused.assign(score=fusion.combined(values)))  # ties in the order of documents
    return trec.top(ranked, hits)


def _checked(method: str, runs: int, weights: Sequence[float] | None) -> Fusion:
    """The fusion of this method. Raises CaiError for an unknown one, and for weights that it cannot have."""
    if method not in FUSIONS:
        raise CaiError(f"no fusion method {method!r}; known are {', '.join(FUSIONS)}")
    if runs < 2:
        raise CaiError(f"{method} of {runs} runs: it takes two or more")
    fusion = FUSIONS[method]
    if weights is not None:
        if not fusion.is_sum:
            raise CaiError(f"weights have no effect on {method}: leave them out, or choose another method")
        if len(weights) != runs:
            raise CaiError(f"{len(weights)} weights for {runs} runs: give one per run, in the order of the runs")
        if not all(0 < weight < math.inf for weight in weights):
            raise CaiError(f"weights {', '.join(map(str, weights))}: each must be a positive number")
    return fusion


class Fused(NamedTuple):
    """The fusion of the rankings of a query: the documents, (documents,), in the order of their ids, their scores, and
    the contributions of each ranking, float64 (rankings, documents)."""

    ids: np.ndarray
    scores: np.ndarray
    contributions: np.ndarray

    @property
    def ranking(self) -> Ranking:
        """The documents as `fuse_runs` ranks them."""
        return Ranking(self.ids, self.scores).as_read()

    @property
    def shares(self) -> dict[str, tuple[float, list[float]]]:
        """Document id -> its score, and the contributions to it."""
        pairs = zip(self.scores.tolist(), self.contributions.T.tolist(), strict=True)
        return dict(zip(self.ids.tolist(), pairs, strict=True))


def fuse_rankings(
    rankings: Sequence[Ranking], method: str, depth: int = DEPTH, weights: Sequence[float] | None = None
) -> Fused:
    """Fuse the rankings of one query, as `fuse_runs` fuses the runs of many."""
    fusion = FUSIONS[method]
    read = [ranking.as_read() for ranking in rankings]
    if fusion.missing == "zero":
        read = [ranking[:depth] for ranking in read]
    ids, codes = np.unique(np.concatenate([ranking.ids for ranking in read]), return_inverse=True)
    scores = np.concatenate([ranking.scores for ranking in read])
    runs = np.repeat(np.arange(len(read)), [*map(len, read)])
    queries = np.zeros(len(codes), np.int64)
    counts = len(read), 1, len(ids)
    fused, values = _contributions(_Hits(runs, queries, codes, scores), counts, fusion, depth, weights)
    return Fused(ids[fused], fusion.combined(values), values)


def candidates(
    runs: Sequence[pd.DataFrame], fusion: Fusion, depth: int, weights: Sequence[float] | None = None
) -> tuple[pd.DataFrame, np.ndarray]:
    """The documents to fuse, and each run's contribution to their scores.

    Returns the columns `query_id` and `doc_id`, sorted, and contributions, float64 (runs, documents).
    """
    if fusion.missing == "zero":
        runs = [trec.top(run, depth) for run in runs]
    query_ids, doc_ids = (_concatenate([run[name].array for run in runs]) for name in ("query_id", "doc_id"))
    run_numbers = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    scores = np.concatenate([run["score"] for run in runs])
    hits = _Hits(run_numbers, query_ids.codes.astype(np.int64), doc_ids.codes.astype(np.int64), scores)
    counts = len(runs), len(query_ids.categories), len(doc_ids.categories)
    fused, values = _contributions(hits, counts, fusion, depth, weights)
    query, document = np.divmod(fused, counts[2])
    columns = {
        "query_id": pd.Categorical.from_codes(query, dtype=query_ids.dtype),
        "doc_id": pd.Categorical.from_codes(document, dtype=doc_ids.dtype),
    }
    return pd.DataFrame(columns), values


class _Hits(NamedTuple):
    """The hits of several runs, one after the other, each sorted by query: arrays (hits,)."""

    runs: np.ndarray  # numbers, as of queries and documents
    queries: np.ndarray
    documents: np.ndarray
    scores: np.ndarray


def _contributions(
    hits: _Hits, counts: tuple[int, int, int], fusion: Fusion, depth: int, weights: Sequence[float] | None
) -> tuple[np.ndarray, np.ndarray]:
    """The candidates, as query * documents + document, sorted, and each run's contribution to their scores, (runs,
    candidates); `counts` are the numbers of runs, queries and documents."""
    runs, queries, documents = counts
    if not len(hits.scores):
        return np.zeros(0, np.int64), np.zeros((runs, 0))
    keys = hits.queries * documents + hits.documents
    starts = np.flatnonzero((np.diff(hits.queries, prepend=-1) != 0) | (np.diff(hits.runs, prepend=-1) != 0))
    contributions = fusion.normalize(hits.scores, starts, depth)
    ordered = np.sort(keys[ranks_within(hits.scores, starts) <= depth])
    fused = ordered[np.diff(ordered, prepend=-1) > 0]  # distinct; np.unique hashes, which is far slower
    values = np.zeros((runs, len(fused)))
    if fusion.missing == "last":
        ends = np.append(starts[1:], len(keys)) - 1
        last = np.zeros((runs, queries))
        last[hits.runs[ends], hits.queries[ends]] = contributions[ends]
        values = last[:, fused // documents]
    positions = np.searchsorted(fused, keys)
    is_fused = fused.take(positions, mode="clip") == keys
    values[hits.runs[is_fused], positions[is_fused]] = contributions[is_fused]
    return fused, values if weights is None else values * np.array(weights)[:, None]


def _concatenate(columns: Sequence[pd.Categorical]) -> pd.Categorical:
    """Concatenate the ids of several runs, with common categories."""
    by_run = [column.categories for column in columns]
    ids = trec.categories(by_run[0].append(by_run[1:]))
    new_codes = np.split(ids.codes, np.cumsum([len(names) for names in by_run[:-1]]))
    codes = [new[column.codes] for new, column in zip(new_codes, columns, strict=True)]
    return pd.Categorical.from_codes(np.concatenate(codes), dtype=ids.dtype)
