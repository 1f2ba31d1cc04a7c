"""Index dense vectors for exact or approximate search by inner product with Faiss."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cai_pyserini.core import artifact, files
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import DenseMethod
from cai_pyserini.core.packages import lazy
from cai_pyserini.core.processes import openmp_threads
from cai_pyserini.vectors.neighbours import EXACT, Positions, build_index, header, recall, write_index
from cai_pyserini.vectors.shards import Matrix, Shard, Vectors, shard_progress, with_first_passage, without_zero_vectors

if TYPE_CHECKING:
    import faiss
else:
    faiss = lazy("faiss")

CUTOFFS = (10, 100)  # recall is measured at these
# Of HNSW graphs (Malkov & Yashunin 2018): largest number of vectors, links per vector and level, candidates for a new
# vector's links, candidates of a search. Larger graphs need more candidates for the same recall. With these, recall@100
# of MiniLM's vectors is .97 or more; above a million, more links cost less than even more candidates.
GRAPHS = ((100_000, 16, 100, 128), (1_000_000, 16, 100, 256), (math.inf, 32, 200, 512))


def index_dense(
    vectors: Vectors, output: Path, method: DenseMethod = "flat", threads: int = 0, first_passage: float = 0.0
) -> Path:
    """Index dense vectors as Pyserini's FaissSearcher reads them, in the files `index` and `docid`.

    Flat indexes are written shard by shard; graphs and clusters are built in memory with at most `threads` threads.
    Measures the recall of other methods against exact search. Zero vectors are left out. Passages have the vector of
    their document's first passage with this weight, see with_first_passage. Raises CaiError for sparse vectors, and
    for vectors that the method cannot index.
    """
    vectors.require("dense", "make impacts of them, and index those")
    has_zeros = vectors.manifest.stats["nonzeros"] < len(vectors) * vectors.width

    def shards(label: str) -> Iterator[Shard]:
        read = shard_progress(vectors, len(vectors), f"{label} {output.name}")
        before = (map(vectors.shard, range(number - 1, -1, -1)) for number in range(vectors.shards))
        return without_zero_vectors(map(with_first_passage, read, before, repeat(first_passage)))

    def rows(label: str) -> Iterator[np.ndarray]:
        return (shard.vectors for shard in shards(label))

    def write(folder: Path) -> artifact.Stats:
        size = sum(len(matrix) for matrix in rows("count")) if has_zeros else len(vectors)
        others = max(1, size - 1)
        if not size:
            raise CaiError(f"{vectors.folder}: all vectors are zero, so that no document can be found")
        if method == "ivfpq" and size <= EXACT:
            raise CaiError(
                f"{vectors.folder} has {size:,} vectors, too few to train ivfpq, which takes more than {EXACT:,}: "
                "choose hnsw or flat"
            )
        with faiss_threads(threads):
            _write_faiss(method, vectors, size, folder / "index", rows)
            with (folder / "docid").open("w", encoding="utf-8") as ids:
                ids.writelines(f"{id}\n" for shard in shards("ids") for id in shard.ids)
            index = faiss.read_index(str(folder / "index"), faiss.IO_FLAG_MMAP_IFC)
            recalls = {} if method == "flat" else {f"recall@{n}": recall(index, rows, min(n, others)) for n in CUTOFFS}
        return recalls | {
            "kind": "dense",
            "raw": False,
            "documents": size,
            "bytes": files.folder_bytes(folder),
            "encoder": vectors.encoder,
            "documents_digest": vectors.documents_digest,
        }

    recipe = artifact.recipe(
        "index",
        {"vectors": vectors.manifest.digest},
        kind="dense",
        method=None if method == "flat" else method,  # recipes without a method are of flat indexes
        left_out="zero" if has_zeros else None,
        first_passage=first_passage or None,
    )
    return artifact.make(output, recipe, write)


def graph(vectors: int) -> tuple[int, int, int]:
    """The parameters M, efConstruction and efSearch for a graph of this many vectors."""
    return next((m, construction, search) for most, m, construction, search in GRAPHS if vectors <= most)


@contextmanager
def faiss_threads(threads: int) -> Iterator[None]:
    """Let Faiss use `threads` threads (0: one per processor)."""
    previous = faiss.omp_get_max_threads()  # of the whole process, PyTorch included
    faiss.omp_set_num_threads(threads or openmp_threads())
    try:
        yield
    finally:
        faiss.omp_set_num_threads(previous)


def _write_faiss(method: DenseMethod, vectors: Vectors, size: int, path: Path, rows: Positions) -> None:
    width = vectors.width
    index: Any
    if method == "hnsw":
        links, construction, search = graph(size)
        index = faiss.IndexHNSWFlat(width, links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = construction, search
        for matrix in rows("index"):
            index.add(matrix)
    elif method == "ivfpq":
        index = build_index(rows, width, size)
    else:
        return _write_flat(width, size, path, rows("index"))
    write_index(index, path)


def _write_flat(width: int, size: int, path: Path, matrices: Iterable[Matrix]) -> None:
    """Write Faiss's file format, a header and the vectors, without holding all vectors in memory."""
    with path.open("wb") as file:
        file.write(header(faiss.IndexFlatIP(width), size, size * width))
        for matrix in matrices:
            file.write(matrix.astype("<f4").tobytes())
