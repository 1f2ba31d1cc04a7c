"""Fuse runs: hybrid search, such as the paper's sum of BM25 and SPLADE scores (section 3.3)."""

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
from cai_pyserini.core.trec import (
    add_latency,
    categories,
    documents_digest,
    documents_in,
    queries_in,
    read_parts,
    require_common,
    run_digest,
    sorted_run,
    top,
    write_parts,
)
from cai_pyserini.fusion.fusions import DEFAULT, DEPTH, FUSIONS, Fusion, ranks_within

logger = logging.getLogger(__name__)


def require_fusable(runs: Sequence[Path]) -> None:
    """Warn of a run that has fewer than half of the queries of all, or fewer than half of its documents, in common with
    those before it. Raises CaiError if it has none in common. Runs that find nothing are none of these; and runs of
    ours that say which documents they are of, see `documents_digest`, may find different ones."""
    known = all(manifest and manifest.stats.get("documents_digest") for manifest in map(artifact.read_manifest, runs))
    name, queries, documents = "", set[str](), set[str]()
    for run in runs:
        of_run, in_run = queries_in(run), documents_in(run)
        if queries and of_run:
            require_common("queries", len(queries | of_run), {name: queries, str(run): of_run})
            if not known:
                require_common("documents", min(len(documents), len(in_run)), {name: documents, str(run): in_run})
        name = f"{name}, {run}" if name else str(run)
        queries, documents = queries | of_run, documents | in_run


def fuse(
    runs: Sequence[Path],
    output: Path,
    method: str = DEFAULT,
    depth: int = DEPTH,
    hits: int = 1000,
    tag: str = "cai_pyserini",
    weights: Sequence[float] | None = None,
) -> Path:
    """Write the fusion of TREC runs, with at most `hits` documents per query; see `fuse_runs`.

    Warns of runs with scores below 0, if these change what the method does.
    """
    settings: dict[str, Any] = {"depth": depth, "weights": weights and [*map(float, weights)]}
    inputs = {"runs": [run_digest(run) for run in runs]}
    recipe = artifact.recipe("fusion fuse", inputs, method=method, hits=hits, **settings)

    def write(path: Path) -> artifact.Stats:
        documents, seconds, queries = documents_digest(runs), 0.0, 0
        negative: Counter[Path] = Counter()  # run -> queries

        def parts() -> Iterator[pd.DataFrame]:
            nonlocal seconds, queries
            for read in read_parts(runs):
                start = time.perf_counter()
                fused = fuse_runs(read, method, depth, hits, weights)
                seconds += time.perf_counter() - start
                queries += fused["query_id"].nunique()
                if FUSIONS[method].below_0:
                    negative.update({run: _below_0(read, at, FUSIONS[method], depth) for at, run in enumerate(runs)})
                yield fused

        write_parts(parts(), path, tag)
        for run, count in (+negative).items():
            consequence = FUSIONS[method].below_0
            logger.warning("%s has scores below 0 for %d of %d queries; %s", run, count, queries, consequence)
        latency = add_latency(1000 * seconds / max(queries, 1), runs)
        return {"queries": queries, "ms_per_query": latency, "documents_digest": documents, **settings}

    return artifact.make(output, recipe, write, folder=False)


def _below_0(runs: Sequence[pd.DataFrame], number: int, fusion: Fusion, depth: int) -> int:
    """The number of queries for which a run has scores below 0 among its best `depth`; in a sum, of those for which
    documents of other runs are missing from it."""
    best = top(runs[number], depth)
    queries = best.loc[best["score"] < 0, "query_id"].unique().astype(object)
    if not len(queries) or fusion.combine == "product":
        return len(queries)
    fused, _ = candidates(runs, fusion, depth)
    found, all_found = (hits["query_id"].astype(object).value_counts() for hits in (best, fused))
    return int((found[queries] < all_found[queries]).sum())


def fuse_runs(
    runs: Sequence[pd.DataFrame],
    method: str,
    depth: int = DEPTH,
    hits: int = 1000,
    weights: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Fuse the best `depth` documents per query of two or more runs.

    `weights`, one positive number per run, multiply what the runs contribute to a sum; None is 1 for all. Raises
    CaiError for an unknown method, and for wrong weights.
    """
    if method not in FUSIONS:
        raise CaiError(f"no fusion method {method!r}; known are {', '.join(FUSIONS)}")
    if len(runs) < 2:
        raise CaiError(f"{method} of {len(runs)} runs: it takes two or more")
    fusion = FUSIONS[method]
    if weights is not None:
        if fusion.combine == "product":
            raise CaiError(f"weights do not change the order of a {method}: leave them out, or choose another method")
        if len(weights) != len(runs):
            raise CaiError(f"{len(weights)} weights for {len(runs)} runs: give one per run, in the order of the runs")
        if not all(0 < weight < math.inf for weight in weights):
            raise CaiError(f"weights {', '.join(map(str, weights))}: each must be a positive number")
    fused, values = candidates(runs, fusion, depth, weights)
    return top(sorted_run(fused.assign(score=fusion.combined(values))), hits)  # ties in the order of documents


class Shares(NamedTuple):
    """The fused score of a document, and what each run contributes to it."""

    score: float
    of_runs: list[float]


def shares(
    runs: Sequence[pd.DataFrame], method: str, depth: int, weights: Sequence[float] | None = None
) -> dict[str, Shares]:
    """The shares of every candidate of one query, whose hits are all that the runs have."""
    fusion = FUSIONS[method]
    fused, values = candidates(runs, fusion, depth, weights)
    scores = fusion.combined(values).tolist()
    return dict(zip(fused["doc_id"].astype(object), map(Shares, scores, values.T.tolist()), strict=True))


def candidates(
    runs: Sequence[pd.DataFrame], fusion: Fusion, depth: int, weights: Sequence[float] | None = None
) -> tuple[pd.DataFrame, np.ndarray]:
    """The documents to fuse, and what each run contributes to their scores.

    Returns the columns `query_id` and `doc_id`, sorted, and float64 (runs, documents).
    """
    if fusion.missing == "zero":
        runs = [top(run, depth) for run in runs]
    query_ids, doc_ids = (_concatenated([run[name].array for run in runs]) for name in ("query_id", "doc_id"))
    of_run = np.repeat(np.arange(len(runs)), [len(run) for run in runs])  # of all hits, as are the next three
    scores = np.concatenate([run["score"] for run in runs])
    keys = query_ids.codes.astype(np.int64) * len(doc_ids.categories) + doc_ids.codes
    starts = np.flatnonzero((np.diff(query_ids.codes, prepend=-1) != 0) | (np.diff(of_run, prepend=-1) != 0))
    if not len(scores):
        return pd.DataFrame({"query_id": query_ids, "doc_id": doc_ids}), np.zeros((len(runs), 0))
    contributed = fusion.normalize(scores, starts, depth)
    ordered = np.sort(keys[ranks_within(scores, starts) <= depth])
    fused = ordered[np.diff(ordered, prepend=-1) > 0]  # without repetitions; np.unique hashes, which is far slower
    query, document = np.divmod(fused, len(doc_ids.categories))
    values = np.zeros((len(runs), len(fused)))
    if fusion.missing == "last":
        ends = np.append(starts[1:], len(scores)) - 1
        last = np.zeros((len(runs), len(query_ids.categories)))
        last[of_run[ends], query_ids.codes[ends]] = contributed[ends]
        values = last[:, query]
    places = np.searchsorted(fused, keys)
    found = fused.take(places, mode="clip") == keys
    values[of_run[found], places[found]] = contributed[found]
    if weights is not None:
        values *= np.array(weights)[:, None]
    columns = {
        "query_id": pd.Categorical.from_codes(query, dtype=query_ids.dtype),
        "doc_id": pd.Categorical.from_codes(document, dtype=doc_ids.dtype),
    }
    return pd.DataFrame(columns), values


def _concatenated(columns: Sequence[pd.Categorical]) -> pd.Categorical:
    """The ids of several runs, in categories that they share."""
    known = [column.categories for column in columns]
    ids = categories(known[0].append(known[1:]))
    places = np.split(ids.codes, np.cumsum([len(names) for names in known[:-1]]))
    codes = [place[column.codes] for place, column in zip(places, columns, strict=True)]
    return pd.Categorical.from_codes(np.concatenate(codes), dtype=ids.dtype)
