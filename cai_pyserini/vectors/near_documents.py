"""Mix raw SPLADE vectors with those of near documents.

    s_i = (1 - weight) * v_i + weight * weighted mean of v_j over the neighbours j of i

In the mean, the weight of j is the fourth power of its inner product with i, a cosine if vectors have length 1. s_i
keeps its nnz(v_i) largest entries: a document gains terms of similar documents, and the index does not grow. Documents
without any weight are unchanged, and are nobody's neighbours.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.vectors.mixing import mix, stored_rows, work_folder
from cai_pyserini.vectors.shards import SHARD_NAMES, Shard, Vectors, paired, shard_progress, write_shards

WEIGHT = 0.4  # weight of the neighbours' mean


def mix_near(vectors: Vectors, near: Vectors, output: Path, weight: float = WEIGHT) -> Path:
    """Write mixed vectors to a folder of shards, with the ids of `vectors`.

    `near` was written by the near stage. If interrupted, the same call continues with the first missing shard.

    Raises CaiError for vectors other than SPLADE's, and if `near` has other documents.
    """
    vectors.require("splade", "choose a folder with splade ones")
    inputs = {"vectors": vectors.manifest.digest, "near": near.manifest.digest}
    recipe = artifact.recipe("smooth", inputs, weight=weight)
    digest = artifact.digest(recipe)

    def write(folder: Path) -> artifact.Stats:
        def documents(label: str) -> Iterator[tuple[list[str], csr_matrix, csr_matrix]]:
            for shard, products in shard_progress(paired(vectors, near), len(vectors), label):
                raw: csr_matrix = shard.vectors
                raw.eliminate_zeros()
                yield shard.ids, raw, products.vectors

        work = work_folder(folder, digest)
        rows = stored_rows(work, vectors.width, lambda: (raw for _, raw, _ in documents("near: vectors")))

        def mixed(part: tuple[list[str], csr_matrix, csr_matrix]) -> Shard:
            ids, raw, products = part
            return Shard(ids, mix(rows, raw, products, weight))

        counts = write_shards(folder, digest, documents("near"), mixed)
        shutil.rmtree(work)
        stats = {"vocabulary": vectors.vocabulary, "encoder": vectors.encoder}
        return counts | stats | {"documents_digest": vectors.documents_digest}

    return artifact.make(output, recipe, write, resumable=True, names=SHARD_NAMES)
