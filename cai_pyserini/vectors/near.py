"""Find the nearest neighbours of every document.

Row i of the result has the positive inner products of document i with its nearest other documents. The products are of
dense vectors, or of SPLADE vectors weighted with IDF and scaled to length 1.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from scipy.sparse import diags_array
from scipy.sparse.linalg import norm

from cai_pyserini.core import artifact, files
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.idf import idf_digest, load_weights
from cai_pyserini.vectors.mixing import work_folder
from cai_pyserini.vectors.neighbours import DIMENSIONS, NEIGHBOURS, TINY, build_index, nearest, recall
from cai_pyserini.vectors.shards import SHARD_NAMES, Matrix, Shard, Vectors, write_shards


def find_neighbours(vectors: Vectors, output: Path, idf: Path | None = None, neighbours: int = NEIGHBOURS) -> Path:
    """Write the products (documents, documents) to a folder of shards, with the ids of `vectors`.

    SPLADE vectors are weighted with the IDF in the folder `idf`, if any. In a small collection, every document is a
    neighbour of every other. If interrupted, the same call continues with the first missing shard.

    Raises CaiError for IDF of another vocabulary, for IDF with dense vectors, and if no document has any weight.
    """
    is_dense = vectors.kind == "dense"
    if not vectors.manifest.stats["nonzeros"]:
        raise CaiError(f"{vectors.folder}: no document has any weight; is this a SPLADE checkpoint?")
    if is_dense and idf:
        raise CaiError(f"{vectors.folder} has dense vectors: leave out the IDF, which weights SPLADE vectors")
    inputs = {"vectors": vectors.manifest.digest, "idf": idf_digest(idf)}
    recipe = artifact.recipe("near", inputs, neighbours=neighbours)
    digest, size = artifact.digest(recipe), len(vectors)
    count = min(neighbours, max(size - 1, 0))

    def write(folder: Path) -> artifact.Stats:
        weights = load_weights(idf, 1.0, vectors.vocabulary) if idf else None

        def documents(label: str) -> Iterator[tuple[int, Shard]]:
            return _positions(progress(vectors, vectors.shards, label, "shard"), weights)

        def positions(label: str) -> Iterable[Matrix]:
            return (shard.vectors for _, shard in documents(f"neighbours: {label}"))

        work = work_folder(folder, digest)
        path = work / "index"
        if path.exists():
            index: Any = faiss.read_index(str(path))
        else:
            index = build_index(positions, vectors.width if is_dense else DIMENSIONS, size)
            with files.atomic_write(path) as unfinished:
                faiss.write_index(index, str(unfinished))

        def neighbour_shard(part: tuple[int, Shard]) -> Shard:
            first, shard = part
            numbers = np.arange(first, first + len(shard.ids))
            return Shard(shard.ids, nearest(index, shard.vectors, numbers, count).matrix(size))

        counts = write_shards(folder, digest, documents("near"), neighbour_shard)
        is_exact = isinstance(index, faiss.IndexFlat)
        measured = 1.0 if is_exact and is_dense else recall(index, positions, count)
        shutil.rmtree(work)
        search = "exact" if is_exact else "approximate"
        stats = {"encoder": {"kind": "near"}, "documents_digest": vectors.documents_digest}
        return counts | stats | {"near_by": vectors.kind, "search": search, "recall": measured}

    return artifact.make(output, recipe, write, resumable=True, names=SHARD_NAMES)


def _positions(shards: Iterable[Shard], weights: np.ndarray | None) -> Iterator[tuple[int, Shard]]:
    """The number of the first document of each shard, and the shard with the vectors to compare: dense vectors, or
    SPLADE vectors times `weights` (vocabulary,) in length 1."""
    first = 0
    for ids, vectors, _ in shards:
        if not isinstance(vectors, np.ndarray):
            vectors = vectors if weights is None else vectors @ diags_array(weights.astype(np.float32))
            vectors = diags_array(1 / np.maximum(norm(vectors, axis=1), TINY).astype(np.float32)) @ vectors
        yield first, Shard(ids, vectors)
        first += len(ids)
