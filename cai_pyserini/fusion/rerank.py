"""Rerank the best documents of a run with a cross-encoder, which scores pairs of query and document."""

import time
from pathlib import Path

from cai_pyserini.collection.contract import Collection
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.core.trec import add_latency, read_run, run_digest, sorted_run, top, write_run
from cai_pyserini.fusion.fusions import DEPTH
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.device import Precision


def rerank(
    run: Path,
    topics: dict[str, str],
    collection: Collection,
    checkpoint: Path,
    output: Path,
    depth: int = DEPTH,
    device: str = "auto",
    precision: Precision = "auto",
    tag: str = "cross-encoder",
) -> Path:
    """Write the best `depth` documents per query of a run, scored by the cross-encoder.

    Raises CaiError for a query that is not among the topics, and for a document that is not in the collection.
    """
    inputs = {"run": run_digest(run), "topics": artifact.digest(topics), "checkpoint": checkpoint_digest(checkpoint)}
    recipe = artifact.recipe("fusion rerank", inputs, depth=depth)

    def write(path: Path) -> artifact.Stats:
        from cai_pyserini.models.cross_encoder import CrossEncoder  # imports torch, which takes seconds

        candidates = top(read_run(run), depth)
        queries, documents = (candidates[column].astype(object) for column in ("query_id", "doc_id"))
        if unknown := sorted(set(queries) - topics.keys()):
            raise CaiError(f"{run} has results of query {unknown[0]!r}, which is not among the topics")
        contents = collection.contents(set(documents), str(run))
        model = CrossEncoder(checkpoint, device, precision)
        texts = [topics[query] for query in queries], [contents[document] for document in documents]
        start = time.perf_counter()
        with progress(range(0), len(candidates), "rerank", "pair") as bar:
            scores = model.score(*texts, bar.update, [*documents])
        ms = 1000 * (time.perf_counter() - start) / len(topics)
        write_run(sorted_run(candidates.assign(score=scores.astype(float))), path, tag)
        return {"queries": len(topics), "ms_per_query": add_latency(ms, [run])}

    return artifact.make(output, recipe, write, folder=False)
