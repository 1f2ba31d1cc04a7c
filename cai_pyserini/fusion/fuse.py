"""Fuse runs: hybrid search, such as the paper's sum of BM25 and SPLADE scores (section 3.3)."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import read_run, top, write_run
from cai_pyserini.fusion.fusions import DEFAULT, DEPTH, FUSIONS, Fusion


def fuse(
    runs: Sequence[Path],
    output: Path,
    method: str = DEFAULT,
    depth: int = DEPTH,
    hits: int = 1000,
    tag: str = "cai_pyserini",
) -> Path:
    """Write the fusion of TREC runs, with at most `hits` documents per query."""
    recipe = {
        "stage": "fusion fuse",
        "runs": [run_digest(run) for run in runs],
        "method": method,
        "depth": depth,
        "hits": hits,
    }

    def write(path: Path) -> artifact.Stats:
        read = [read_run(run) for run in runs]
        start = time.perf_counter()
        fused = fuse_runs(read, method, depth, hits)
        seconds = time.perf_counter() - start
        write_run(fused, path, tag)
        queries = fused["query_id"].nunique()
        return {"queries": queries, "ms_per_query": add_latency(1000 * seconds / queries, runs)}

    return artifact.make(output, recipe, write, folder=False)


def fuse_runs(runs: Sequence[pd.DataFrame], method: str, depth: int = DEPTH, hits: int = 1000) -> pd.DataFrame:
    """Fuse the best `depth` documents per query of two or more runs. Raises CaiError for an unknown method."""
    if method not in FUSIONS:
        raise CaiError(f"no fusion method {method!r}; known are {', '.join(FUSIONS)}")
    if len(runs) < 2:
        raise CaiError(f"{method} of {len(runs)} runs: it takes two or more")
    fusion = FUSIONS[method]
    tops = [top(run, depth) for run in runs]
    tops = [run.assign(score=contributions(run, fusion)) for run in tops]
    ids = {
        name: pd.api.types.union_categoricals([run[name] for run in tops], sort_categories=True)
        for name in ("query_id", "doc_id")
    }
    documents = ids["doc_id"].categories
    keys = ids["query_id"].codes.astype(np.int64) * len(documents) + ids["doc_id"].codes
    values = np.concatenate([run["score"].to_numpy() for run in tops])
    pairs, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    if fusion.combine == "sum":
        scores = np.bincount(places, values, len(pairs))
    else:
        scores = np.ones(len(pairs))
        np.multiply.at(scores, places, values)
        scores[counts < len(runs)] = 0.0
    query, document = np.divmod(pairs, len(documents))
    order = np.lexsort((-scores, query))  # stable: equal scores stay in the order of documents
    fused = pd.DataFrame(
        {
            "query_id": pd.Categorical.from_codes(query[order], ids["query_id"].categories),
            "doc_id": pd.Categorical.from_codes(document[order], documents),
            "score": scores[order],
        }
    )
    return top(fused, hits)


def contributions(run: pd.DataFrame, fusion: Fusion) -> np.ndarray:
    """What each hit of a run contributes to its fused score, float64 (hits,)."""
    scores = run["score"].to_numpy()
    codes = run["query_id"].cat.codes.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    return fusion.normalize(scores, starts) if len(scores) else scores


def run_digest(run: Path) -> str:
    """A digest of a run: of its recipe if this package made it, else of its bytes."""
    if not run.is_file():
        raise CaiError(f"no run {run}")
    manifest = artifact.read_manifest(run)
    return manifest.digest if manifest else artifact.file_digest(run)


def add_latency(own: float, runs: Sequence[Path]) -> float | None:
    """`own` plus the latencies of the runs, in ms per query; None if that of a run is unknown."""
    manifests = [artifact.read_manifest(run) for run in runs]
    latencies = [manifest.stats["ms_per_query"] for manifest in manifests if manifest]
    return own + sum(latencies) if len(latencies) == len(runs) and None not in latencies else None
