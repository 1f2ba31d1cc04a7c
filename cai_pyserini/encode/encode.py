"""Encode a collection once: documents or queries -> raw vectors in shards.

A shard is the unit of work: a pure function of a slice of the collection. Encoding continues after an interruption with
the first missing shard, and several processes (or GPUs, or machines that share a folder) can each encode their own; the
last one to finish declares the folder complete.
"""

import time
from collections.abc import Iterable
from itertools import batched
from pathlib import Path

from cai_pyserini.collection.contract import Collection, Document
from cai_pyserini.core import artifact
from cai_pyserini.core.terminal import progress
from cai_pyserini.encode.encoder import Encoder, Part
from cai_pyserini.encode.shards import Shard, shard_path, shard_stats, write_shard

SHARD = 1024  # vectors per shard: an interruption costs one shard at most


def encode(
    collection: Collection,
    encoder: Encoder,
    output: Path,
    part: Part = "documents",
    split: str = "test",
    batch_size: int | None = None,
    shard_id: int = 0,
    shard_num: int = 1,
) -> Path:
    """Encode the documents of a collection, or the queries of a split, into a folder of shards.

    This call encodes the shards whose number modulo `shard_num` is `shard_id`.
    """
    queries = part == "queries"
    recipe = {
        "stage": "encode",
        "part": part,
        "texts": [collection.fingerprint(part), collection.fingerprint(split) if queries else None],
        "shard": SHARD,
        **encoder.recipe(part),
    }
    digest = artifact.digest(recipe)

    def write(folder: Path) -> artifact.Stats | None:
        texts: Iterable[Document] = collection.documents()
        total = collection.size
        if queries:
            topics = collection.topics(split)
            texts, total = (Document(*topic) for topic in topics.items()), len(topics)
        number = -1
        with progress(texts, total, f"encode {part}") as bar:
            for number, slice_ in enumerate(batched(texts, SHARD)):
                path = shard_path(folder, number)
                if number % shard_num != shard_id or shard_stats(path, digest):
                    bar.update(len(slice_))
                    continue
                model = encoder.load(part)
                start = time.perf_counter()
                contents = [text.contents for text in slice_]
                vectors = model.encode(contents, encoder.max_length(part), batch_size, bar.update)
                write_shard(path, Shard([t.id for t in slice_], vectors), digest, time.perf_counter() - start)
        return _stats(folder, number + 1, digest)

    return artifact.make(output, recipe, write, resumable=True)


def _stats(folder: Path, count: int, digest: str) -> artifact.Stats | None:
    """The sums over all shards; None as long as one is missing. Deletes shards beyond the last."""
    shards = [stats for number in range(count) if (stats := shard_stats(shard_path(folder, number), digest))]
    if len(shards) < count:
        return None
    for stale in sorted(folder.glob("[0-9]" * 5 + ".npz"))[count:]:
        stale.unlink()
    return {
        "vectors": sum(shard.rows for shard in shards),
        "shards": count,
        "nonzeros": sum(shard.nonzeros for shard in shards),
        "seconds": round(sum(shard.seconds for shard in shards), 3),
    }
