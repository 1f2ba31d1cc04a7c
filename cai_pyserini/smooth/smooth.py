"""Smooth raw SPLADE vectors: mix each with those of its nearest documents.

    s_i = (1 - weight) * v_i + weight * mean of v_j over the nearest documents j of i

In the mean, each is weighted with the fourth power of its inner product with i, a cosine where vectors have length 1.
s_i keeps its nnz(v_i) largest entries: a document gains terms of similar documents, and the index does not grow.
Documents without any weight stay as they are, and are nobody's neighbours.
"""

import shutil
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import norm

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.idf import idf_digest, load_weights
from cai_pyserini.vectors.mixing import NEIGHBOURS, Documents, Neighbourhood, mix, work_folder
from cai_pyserini.vectors.neighbours import DIMENSIONS, TINY
from cai_pyserini.vectors.shards import NAMES, Shard, Vectors, paired, write_shards

WEIGHTS = {"dense": 0.4, "splade": 0.1}  # weight of the neighbours' mean, by the vectors that find neighbours


def smooth(
    vectors: Vectors,
    output: Path,
    dense: Vectors | None = None,
    idf: Path | None = None,
    neighbours: int = NEIGHBOURS,
    weight: float | None = None,
) -> Path:
    """Write smoothed vectors to a folder of shards, with the ids of `vectors`.

    Neighbours are found by dense vectors, or else by the SPLADE vectors, weighted with the IDF in the folder `idf`.
    `weight` is that of WEIGHTS unless given. In a small collection, all other documents are neighbours. If interrupted,
    the same call continues with the first missing shard.

    Raises CaiError for vectors of the wrong kind, dense vectors of other documents, IDF of another vocabulary, and if
    fewer than two documents have any weight.
    """
    for given, kind in ((vectors, "splade"), (dense, "dense")):
        if given and given.kind != kind:
            raise CaiError(f"{given.folder} has {given.kind} vectors: choose a folder with {kind} ones")
    if dense:
        idf = None
    share = WEIGHTS["dense" if dense else "splade"] if weight is None else weight
    near_by = dense.manifest.digest if dense else idf_digest(idf)
    inputs = {"vectors": vectors.manifest.digest, "near_by": near_by}
    recipe = artifact.recipe("smooth", inputs, neighbours=neighbours, weight=share)
    digest = artifact.digest(recipe)

    def write(folder: Path) -> artifact.Stats:
        weights = load_weights(idf, 1.0, vectors.vocabulary) if idf else None

        def documents(label: str) -> Iterable[Documents]:
            return progress(_read_documents(vectors, dense, weights), vectors.shards, label, "shard")

        work = work_folder(folder, digest)
        near = Neighbourhood(work, documents, vectors.width, dense.width if dense else DIMENSIONS, neighbours)
        if len(near.rows) < 2:
            raise CaiError(f"{vectors.folder}: fewer than two documents have any weight; is this a SPLADE checkpoint?")

        def smoothed(each: Documents) -> Shard:
            return Shard(each.ids, each.spread(mix(near.rows, each.numbers, near.of(each), share)))

        counts = write_shards(folder, digest, documents("smooth"), smoothed)
        found = 1.0 if dense and near.is_exact else near.recall()
        shutil.rmtree(work)
        return counts | {
            "vocabulary": vectors.vocabulary,
            "encoder": vectors.encoder,
            "near_by": "dense" if dense else "hashed SPLADE",
            "search": "exact" if near.is_exact else "approximate",
            "recall": found,
        }

    return artifact.make(output, recipe, write, resumable=True, names=NAMES)


def _read_documents(vectors: Vectors, dense: Vectors | None, weights: np.ndarray | None) -> Iterator[Documents]:
    """The documents of SPLADE vectors, shard by shard.

    Their positions are their dense vectors, or else the SPLADE vectors times `weights` (vocabulary,), scaled to length
    1. Raises CaiError for dense vectors of other documents.
    """
    first = 0
    for shard, other in paired(vectors, dense) if dense else zip(vectors, repeat(None), strict=False):
        raw: csr_matrix = shard.vectors
        raw.eliminate_zeros()
        rows = np.flatnonzero(np.diff(raw.indptr))
        raw = raw[rows]
        if other:
            positions = other.vectors[rows]
        else:
            positions = raw if weights is None else raw @ diags(weights.astype(np.float32))
            positions = diags(1 / np.maximum(norm(positions, axis=1), TINY).astype(np.float32)) @ positions
        yield Documents(shard.ids, rows, np.arange(first, first + len(rows)), raw, positions)
        first += len(rows)
