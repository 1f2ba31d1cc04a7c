"""Fuse runs for hybrid search, such as the paper's sum of BM25 and SPLADE scores (section 3.3)."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.runs import trec
from cai_pyserini.runs.fusions import DEFAULT, DEPTH, FUSIONS, Fusion, ranks_within
from cai_pyserini.runs.rankings import Numbers, Rankings
from cai_pyserini.runs.trec import Ranking

logger = logging.getLogger(__name__)


def require_fusable(runs: Sequence[Path]) -> None:
    """Warn if a run shares fewer than half of its queries or documents with the runs before it. Raises CaiError if it
    shares none. Ignores runs without hits, and documents if the manifests of all runs have a `documents_digest`."""
    ours = all(manifest and manifest.stats.get("documents_digest") for manifest in map(artifact.read_manifest, runs))
    name, queries, documents = "", set[str](), set[str]()
    for run in dict.fromkeys(runs):
        new_queries, new_documents = {*(found := trec.read_run(run)).query_ids}, {*found.doc_ids}
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
        documents, read = trec.documents_digest(runs), [trec.read_run(run) for run in runs]
        start = time.perf_counter()
        fused = fuse_runs(read, method, depth, hits, weights)
        milliseconds, queries = 1000 * (time.perf_counter() - start), len({*fused.queries.tolist()})
        for run in _with_misleading_scores(dict(zip(runs, read, strict=True)), FUSIONS[method], depth):
            logger.warning("%s has scores below 0: %s", run, FUSIONS[method].negative_warning)
        trec.write_run(fused, path, tag)
        latency = trec.add_latency(milliseconds / max(queries, 1), runs)
        return {"queries": queries, "ms_per_query": latency, "documents_digest": documents, **settings}

    return artifact.make(output, recipe, write, folder=False)


def _with_misleading_scores(runs: Mapping[Path, Rankings], fusion: Fusion, depth: int) -> Iterator[Path]:
    """Yield the runs with scores below 0 among their best `depth`; in a sum, only if they lack documents of others."""
    best = {path: trec.top(run, depth) for path, run in runs.items() if fusion.negative_warning}
    for path, hits in best.items():
        if (hits.scores < 0).any():
            union = {hit[:2] for run in best.values() for hit in run}
            if len(hits) < len(union) or not fusion.is_sum:
                yield path


def fuse_runs(
    runs: Sequence[Rankings], method: str, depth: int = DEPTH, hits: int = 1000, weights: Sequence[float] | None = None
) -> Rankings:
    """Fuse the best `depth` documents per query of two or more runs.

    `weights`, one positive number per run, multiply contributions to a sum; None: all 1. Raises CaiError for an
    unknown method, and for invalid weights.
    """
    fusion = _checked(method, len(runs), weights)
    query_ids, queries = _renumbered([(run.query_ids, run.queries) for run in runs])
    doc_ids, documents = _renumbered([(run.doc_ids, run.documents) for run in runs])
    found = Hits([*map(len, runs)], queries, documents, np.concatenate([run.scores for run in runs]))
    query, document, values = contributions(found, fusion, depth, weights)
    fused = Rankings(query_ids, doc_ids, query, document, fusion.combined(values))
    return trec.top(trec.sorted_run(fused), hits)  # ties in the order of documents


def _renumbered(several: Sequence[tuple[Sequence[str], np.ndarray]]) -> tuple[list[str], np.ndarray]:
    """All ids of several runs, sorted, and the places of the hits' ids among them, one run after the other."""
    numbers = Numbers[str]()
    return numbers.sorted(np.concatenate([numbers.of(ids)[places] for ids, places in several]))


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
    fusion, read = FUSIONS[method], [ranking.as_read() for ranking in rankings]
    ids, documents = np.unique(np.concatenate([ranking.ids for ranking in read]), return_inverse=True)
    scores = np.concatenate([ranking.scores for ranking in read])
    found = Hits([*map(len, read)], np.zeros(len(documents), int), documents, scores)
    _, fused, values = contributions(found, fusion, depth, weights)
    return Fused(ids[fused], fusion.combined(values), values)


class Hits(NamedTuple):
    """The hits of several runs, one run after the other, each sorted by query, best first.

    `sizes` are the numbers of hits of the runs; `queries` and `documents` (hits,) have numbers, `scores` (hits,)
    float64.
    """

    sizes: Sequence[int]
    queries: np.ndarray
    documents: np.ndarray
    scores: np.ndarray


def contributions(
    hits: Hits, fusion: Fusion, depth: int, weights: Sequence[float] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The candidates of a fusion as queries and documents, (candidates,), sorted, and each run's contribution to their
    scores, float64 (runs, candidates)."""
    runs, queries = np.repeat(np.arange(len(hits.sizes)), hits.sizes), hits.queries.astype(np.int64)
    if not len(runs):
        return queries, queries, np.zeros((len(hits.sizes), 0))
    count, size = int(queries.max()) + 1, int(hits.documents.max()) + 1
    keys, scores = queries * size + hits.documents, hits.scores
    starts = np.flatnonzero(np.diff(runs * count + queries, prepend=-1))
    is_best = ranks_within(scores, starts) <= depth
    if fusion.missing == "zero":
        runs, queries, keys, scores = runs[is_best], queries[is_best], keys[is_best], scores[is_best]
        starts, is_best = np.flatnonzero(np.diff(runs * count + queries, prepend=-1)), np.ones(len(keys), bool)
    normalized = fusion.normalize(scores, starts, depth)
    ordered = np.sort(keys[is_best])
    fused = ordered[np.diff(ordered, prepend=-1) > 0]  # distinct; np.unique hashes, which is far slower
    values = np.zeros((len(hits.sizes), len(fused)))
    if fusion.missing == "last":
        ends = np.append(starts[1:], len(keys)) - 1
        last = np.zeros((len(hits.sizes), count))
        last[runs[ends], queries[ends]] = normalized[ends]
        values = last[:, fused // size]
    positions = np.searchsorted(fused, keys)
    is_fused = fused.take(positions, mode="clip") == keys
    values[runs[is_fused], positions[is_fused]] = normalized[is_fused]
    return *np.divmod(fused, size), values if weights is None else values * np.array(weights)[:, None]
