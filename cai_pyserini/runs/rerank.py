"""Rerank the best documents of a run, or of one query by a deadline, with a cross-encoder, which scores pairs of query
and document."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest, load_checkpoint
from cai_pyserini.models.device import Precision
from cai_pyserini.runs.fusions import DEPTH
from cai_pyserini.runs.rankings import Rankings
from cai_pyserini.runs.trec import add_latency, documents_digest, read_run, run_digest, sorted_run, top, write_run

if TYPE_CHECKING:  # imports torch, which takes seconds
    from cai_pyserini.models.cross_encoder import CrossEncoder

type Texts = Callable[[Rankings], list[list[str]]]


def rerank(
    run: Path,
    topics: dict[str, str],
    collection: Collection,
    checkpoint: Path,
    output: Path,
    *,
    depth: int = DEPTH,
    device: str = "auto",
    precision: Precision = "auto",
    tag: str = "cross-encoder",
    minutes: float | None = None,
) -> Path:
    """Write the best `depth` documents per query of a run, scored by the cross-encoder.

    `minutes` is a time limit: the model's speed is measured first, and the depth lowered to fit. The recipe has the
    lowered depth, so that the run is reproducible elsewhere; a run made with the same limit stays up to date.
    Raises CaiError for a query that is not among the topics, for a document that is not in the collection, and if even
    one document per query takes longer than `minutes`.
    """
    digests = {
        "run": run_digest(run),
        "topics": artifact.digest(topics),
        "documents": collection.fingerprint("documents"),
        "checkpoint": checkpoint_digest(checkpoint, modules=True),
    }

    def recipe(depth: int) -> artifact.Recipe:
        return artifact.recipe("fusion rerank", digests, depth=depth)

    limit = {"depth": depth, "minutes": minutes} if minutes else None
    old = artifact.read_manifest(output)
    if limit and old and old.stats.get("limit") == limit and old.recipe == recipe(old.stats["depth"]):
        return output

    @cache
    def load() -> tuple[Rankings, Texts, "CrossEncoder"]:
        """The hits to rerank, their texts, and the model."""
        from cai_pyserini.models.cross_encoder import CrossEncoder

        hits = top(read_run(run), depth)
        return hits, _texts(hits, topics, collection, run), CrossEncoder(checkpoint, device, precision)

    lowered = depth
    if minutes and not artifact.in_dry_run() and not artifact.is_up_to_date(output, recipe(depth)):
        hits, texts, model = load()
        lowered = _affordable_depth(hits, model.seconds_per_pair(*texts(hits)), depth, minutes)

    def write(path: Path) -> artifact.Stats:
        digest = documents_digest([run], collection.documents_digest)
        hits, texts, model = load()
        scored, ms = _scored(top(hits, lowered), texts, model)
        write_run(sorted_run(scored), path, tag)
        stats: artifact.Stats = {"queries": len(topics), "ms_per_query": add_latency(ms / len(topics), [run])}
        line = f"{tag} reranks the best {lowered} of {depth} documents: more would take over {minutes or 0:g} minutes"
        stats |= {"limit": limit, "depth": lowered, "decision": [line] if lowered < depth else []}
        return stats | {"documents_digest": digest}

    return artifact.make(output, recipe(lowered), write, folder=False)


def _texts(hits: Rankings, topics: dict[str, str], collection: Collection, run: Path) -> Texts:
    """A function from hits, at most these of a run, to the queries, documents and document ids of each."""
    if unknown := sorted({*hits.query_ids} - topics.keys()):
        raise CaiError(
            f"{run} has hits for query {unknown[0]!r}, which is not among the topics, whose ids are such as "
            f"{min(topics)!r}: rerank with the collection and the split that were searched"
        )
    contents = collection.contents({*hits.columns[1]}, str(run))

    def texts(hits: Rankings) -> list[list[str]]:
        queries, documents = hits.columns
        return [[topics[id] for id in queries], [contents[id] for id in documents], documents]

    return texts


def _scored(hits: Rankings, texts: Texts, model: "CrossEncoder") -> tuple[Rankings, float]:
    """The hits with the model's scores, and the milliseconds that scoring took."""
    start = time.perf_counter()
    with progress(range(0), len(hits), "rerank", "pairs") as bar:
        queries, documents, names = texts(hits)
        scores = model.score(queries, documents, bar.update, names)
    return hits.with_scores(scores.astype(float)), 1000 * (time.perf_counter() - start)


class Reranker:
    """A cross-encoder that scores as many documents as time allows. `checkpoint` is a folder or a hub id, `clock` tells
    the time in seconds, `seconds_per_document` is the measured speed."""

    def __init__(self, checkpoint: str, device: str = "auto", clock: Callable[[], float] = time.monotonic):
        from cai_pyserini.models.cross_encoder import PAIR_TOKENS, CrossEncoder

        self._model = CrossEncoder(load_checkpoint(checkpoint), device)
        self._clock = clock
        self.seconds_per_document = self._model.seconds_per_pair(["query"], ["word " * PAIR_TOKENS])

    def scores(self, query: str, documents: Sequence[str], deadline: float) -> list[float]:
        """Scores of the first documents, as many as should be done by `deadline`, a time of the clock.

        Documents are scored in batches; each batch is expected to take as long per document as the last one.
        """
        scores: list[float] = []
        while left := documents[len(scores) :][: self._model.transformer.batch_size]:
            start = self._clock()
            batch = left[: max(0, int((deadline - start) / self.seconds_per_document))]
            if not batch:
                break
            scores += self._model.score([query] * len(batch), batch).tolist()
            self.seconds_per_document = (self._clock() - start) / len(batch)
        if not scores:
            self.seconds_per_document /= 2  # so that a slow batch does not stop reranking for good
        return scores


def _affordable_depth(hits: Rankings, seconds: float, depth: int, minutes: float) -> int:
    """The largest depth whose pairs take at most `minutes`. Raises CaiError if there is none."""
    counts = np.bincount(hits.queries)
    times = [seconds * np.minimum(counts, n).sum() / 60 for n in range(1, depth + 1)]
    if times[0] > minutes:
        raise CaiError(f"one document per query takes about {times[0]:.1f} minutes, more than {minutes:g}")
    return int(np.searchsorted(times, minutes, "right"))
