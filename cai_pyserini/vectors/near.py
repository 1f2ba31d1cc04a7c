"""Find the nearest neighbours of every document.

Row i of the result has the positive inner products of document i with its nearest other documents, of dense vectors.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.vectors.mixing import work_folder
from cai_pyserini.vectors.neighbours import NEIGHBOURS, is_exact, limited_clusters, mapped_index, nearest, recall
from cai_pyserini.vectors.shards import SHARD_NAMES, Shard, Vectors, shard_progress, write_shards


def find_neighbours(vectors: Vectors, output: Path, neighbours: int = NEIGHBOURS) -> Path:
    """Write the products (documents, documents) to a folder of shards, with the ids of `vectors`.

    In a small collection, every document is a neighbour of every other. If interrupted, the same call continues with
    the first missing shard. Raises CaiError for vectors that are not dense.
    """
    vectors.require("dense", "choose a folder with those of a dense encoder")
    size = len(vectors)
    inputs = {"vectors": vectors.manifest.digest}
    recipe = artifact.recipe("near", inputs, neighbours=neighbours, **limited_clusters(size))
    digest = artifact.digest(recipe)
    count = min(neighbours, max(size - 1, 0))

    def write(folder: Path) -> artifact.Stats:
        def shards(label: str) -> Iterator[Shard]:
            yield from shard_progress(vectors, len(vectors), label)

        def positions(label: str) -> Iterable[np.ndarray]:
            return (shard.vectors for shard in shards(f"neighbours: {label}"))

        work = work_folder(folder, digest)
        index = mapped_index(work, positions, vectors.width, size)

        def numbered() -> Iterator[tuple[int, Shard]]:
            first = 0
            for shard in shards("near"):
                yield first, shard
                first += len(shard.ids)

        def neighbour_shard(part: tuple[int, Shard]) -> Shard:
            first, shard = part
            numbers = np.arange(first, first + len(shard.ids))
            return Shard(shard.ids, nearest(index, shard.vectors, numbers, count).matrix(size))

        counts = write_shards(folder, digest, numbered(), neighbour_shard)
        measured = 1.0 if is_exact(size) else recall(index, positions, count)
        shutil.rmtree(work)
        stats = {"encoder": {"kind": "near"}, "documents_digest": vectors.documents_digest}
        return counts | stats | {"search": "exact" if is_exact(size) else "approximate", "recall": measured}

    return artifact.make(output, recipe, write, resumable=True, names=SHARD_NAMES)
