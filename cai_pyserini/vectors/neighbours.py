"""Nearest-neighbour search over documents, by the inner product of their vectors, called positions.

The search is exact up to EXACT documents. Beyond that, it compares a document with those in the nearest 1/16 of
clusters, using product quantization with 4 bits, and reranks the best with 8 bits per dimension.

The near stage writes, in row i, the positive inner products of document i with its nearest other documents.
"""

import math
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact, files
from cai_pyserini.core.packages import lazy
from cai_pyserini.vectors.shards import SHARD_NAMES, Shard, Vectors, shard_progress, work_folder, write_shards

if TYPE_CHECKING:
    import faiss
else:
    faiss = lazy("faiss")

NEIGHBOURS = 40  # per document, by default
EXACT = 50_000
MOST_CLUSTERS = 4096  # those of a million documents: more make the comparison with clusters quadratic
TRAINING = 40  # documents per cluster in the training set
CANDIDATES = 8  # reranked candidates per neighbour
SAMPLE = 200  # documents with which recall is measured
SEED = 42
COUNT = struct.Struct("<Q")  # the last field of the header of a file in Faiss's format
TINY = 1e-9  # avoids divisions by a length of 0

type Positions = Callable[[str], Iterable[np.ndarray]]  # label of a progress bar -> the positions of all documents


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


def is_exact(size: int) -> bool:
    """Whether an index of `size` documents searches exactly."""
    return size <= EXACT


def clusters(size: int) -> int:
    """The usual number of clusters of `size` documents."""
    return int(4 * math.sqrt(size))


def limited_clusters(size: int) -> dict[str, int]:
    """What a recipe records of a mapped index of `size` documents: its clusters, if it has fewer than usual."""
    return {"clusters": MOST_CLUSTERS} if clusters(size) > MOST_CLUSTERS else {}


def build_index(positions: Positions, width: int, size: int) -> "faiss.Index":
    index = trained_index(positions, width, size, clusters(size))
    for matrix in positions("index"):
        index.add(matrix)
    return index


def trained_index(positions: Positions, width: int, size: int, lists: int) -> Any:
    """An index for `size` documents, without any, and with `lists` clusters if it is not exact."""
    index: Any = faiss.IndexFlatIP(width)
    if not is_exact(size):
        codes = width // math.gcd(width, 4)  # of 4 bits
        index = faiss.index_factory(width, f"IVF{lists},PQ{codes}x4fs,Refine(SQ8)", faiss.METRIC_INNER_PRODUCT)
        index.k_factor = CANDIDATES
        base: Any = faiss.downcast_index(index.base_index)
        base.nprobe = -(-lists // 16)
        base.cp.niter = 10
        base.cp.min_points_per_centroid = 1
        index.train(_take(positions("clusters"), _draw(size, TRAINING * lists)))
    return index


def mapped_index(folder: Path, positions: Positions, width: int, size: int) -> Any:
    """The index of all documents. If it is not exact, it has at most MOST_CLUSTERS clusters, and consists of two
    memory-mapped files in a folder, which are written if they are missing: the vectors with 8 bits per dimension, and
    the clusters, which are in memory until then, width / 8 + 8 bytes per document, and again as many at most while
    their arrays grow."""
    if is_exact(size):
        return build_index(positions, width, size)
    clustered, vectors = folder / "clusters", folder / "vectors"
    if not clustered.exists():  # written last
        index = trained_index(positions, width, size, min(clusters(size), MOST_CLUSTERS))
        with files.atomic_write(vectors) as unfinished, unfinished.open("wb") as file:
            file.write(header(index.refine_index, size, size * width))
            for matrix in positions("index"):
                index.base_index.add(matrix)
                file.write(index.refine_index.sa_encode(matrix))
        with files.atomic_write(clustered) as unfinished:
            write_index(index.base_index, unfinished)
        del index
    mapped: Any = faiss.IndexRefine(
        *(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC) for path in (clustered, vectors))
    )
    mapped.k_factor = CANDIDATES
    return mapped


def write_index(index: "faiss.Index", path: Path) -> None:
    """Write an index in Faiss's format. Raises OSError, with a number, which Faiss's own errors lack."""
    library: Any = faiss  # its type stubs do not know this writer
    with path.open("wb") as file:
        library.write_index(index, library.PyCallbackIOWriter(file.write))


def header(empty: "faiss.Index", size: int, count: int) -> bytes:
    """The beginning of a file in Faiss's format that goes on with the `count` numbers or bytes of `size` vectors."""
    empty.ntotal = size
    return faiss.serialize_index(empty).tobytes()[: -COUNT.size] + COUNT.pack(count)


class Neighbours(NamedTuple):
    """The neighbours of documents, nearest first."""

    numbers: np.ndarray  # (documents, count); -1 where the index finds fewer
    products: np.ndarray  # (documents, count), inner products

    def matrix(self, size: int) -> csr_matrix:
        """The positive products as a matrix (documents, size), with a column for every document of the collection."""
        rows, places = np.nonzero((self.numbers >= 0) & (self.products > 0))
        entries = self.products[rows, places], (rows, self.numbers[rows, places])
        return csr_matrix(entries, shape=(len(self.numbers), size))


def nearest(index: "faiss.Index", positions: np.ndarray, numbers: np.ndarray, count: int) -> Neighbours:
    """The `count` nearest other documents of the documents with these numbers and positions."""
    products, found = index.search(positions, count + 1)
    # Drop the document itself, or the last hit if it was not found.
    others_first = np.argsort(found == numbers[:, None], axis=1, kind="stable")[:, :-1]
    return Neighbours(*(np.take_along_axis(values, others_first, axis=1) for values in (found, products)))


def recall(index: "faiss.Index", positions: Positions, count: int) -> float:
    """The fraction of the `count` nearest documents, by exact inner products, that the index finds, averaged over a
    sample of documents with non-zero vectors."""
    numbers = _draw(index.ntotal, SAMPLE)
    sample = _take(positions("sample"), numbers)
    nonzero = np.flatnonzero(sample.any(axis=1))
    if not (count and nonzero.size):
        return 1.0
    numbers, sample = numbers[nonzero], sample[nonzero]
    best = faiss.ResultHeap(len(numbers), count + 1, keep_max=True)
    start = 0
    for matrix in positions("recall"):
        scores = sample @ matrix.T
        best.add_result(scores, np.broadcast_to(np.arange(start, start + matrix.shape[0]), scores.shape))
        start += matrix.shape[0]
    best.finalize()
    found = nearest(index, sample, numbers, count).numbers
    expected = [row[row != number][:count] for row, number in zip(best.I, numbers, strict=True)]
    return float(np.mean([np.isin(true, hits).mean() for true, hits in zip(expected, found, strict=True)]))


def _draw(size: int, count: int) -> np.ndarray:
    """The numbers of `count` random documents, sorted."""
    return np.sort(np.random.default_rng(SEED).choice(size, min(size, count), replace=False))


def _take(matrices: Iterable[np.ndarray], numbers: np.ndarray) -> np.ndarray:
    """The rows with these sorted numbers, of consecutive matrices."""
    parts, start = [], 0
    for matrix in matrices:
        inside = numbers[(start <= numbers) & (numbers < start + matrix.shape[0])]
        parts.append(matrix[inside - start])
        start += matrix.shape[0]
    return np.concatenate(parts)
