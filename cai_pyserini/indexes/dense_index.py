"""Index dense vectors for exact or approximate search by inner product, with Faiss or Lucene."""

import os
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
from cai_pyserini.indexes.hnsw import graph, index_hnsw
from cai_pyserini.vectors.first_passage import with_first_passage
from cai_pyserini.vectors.neighbours import EXACT, Positions, build_index, header, recall, write_index
from cai_pyserini.vectors.shards import Matrix, Shard, Vectors, shard_progress, without_zero_vectors

if TYPE_CHECKING:
    import faiss
else:
    faiss = lazy("faiss")

CUTOFFS = (10, 100)  # recall is measured at these


def index_dense(
    vectors: Vectors, output: Path, method: DenseMethod = "flat", threads: int = 0, first_passage: float = 0.0
) -> Path:
    """Index dense vectors in a format of Pyserini's: files `index` and `docid` for its FaissSearcher, or a Lucene index
    for its LuceneHnswDenseSearcher.

    Flat indexes are written shard by shard; graphs and clusters are built in memory with at most `threads` threads.
    Measures the recall of other methods against exact search. Zero vectors are left out. Passages have the vector of
    their document's first passage with this weight, see vectors.first_passage. Raises CaiError for sparse vectors, and
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
            if method == "lucene":
                index: Any = index_hnsw(vectors, size, shards("index"), folder, threads)
            else:
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


@contextmanager
def faiss_threads(threads: int) -> Iterator[None]:
    """Let Faiss use `threads` threads (0: one per processor)."""
    previous = faiss.omp_get_max_threads()  # of the whole process, PyTorch included
    faiss.omp_set_num_threads(threads or os.cpu_count() or 1)
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
        return _write_flat(vectors, size, path, rows("index"), half=method == "flat16")
    write_index(index, path)


def _write_flat(vectors: Vectors, size: int, path: Path, matrices: Iterable[Matrix], half: bool) -> None:
    """Write Faiss's file format, a header and the vectors, without holding all vectors in memory."""
    width = vectors.width
    float16 = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    empty = float16 if half else faiss.IndexFlatIP(width)
    count = size * width * (2 if half else 1)  # float16: bytes; float32: numbers
    with path.open("wb") as file:
        file.write(header(empty, size, count))
        for matrix in matrices:
            with np.errstate(over="ignore"):
                stored = matrix.astype("<f2" if half else "<f4")
            if half and not np.isfinite(stored).all():
                raise CaiError(f"{vectors.folder} has values that float16 cannot hold: choose flat")
            file.write(stored.tobytes())
