"""HNSW graphs of dense vectors (Malkov & Yashunin 2018): parameters, and Lucene indexes written by Anserini.

Lucene takes vectors of length 1 with up to 4,096 dimensions, and compares by inner product. It merges parts of the
graph in the background, so graphs and recall can differ from build to build.
"""

import math
import os
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from cai_pyserini.core import files
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.anserini import run_indexer
from cai_pyserini.vectors.shards import Shard, Vectors

# Largest number of vectors, links per vector and level, candidates for a new vector's links, candidates of a search.
# Larger graphs need more candidates for the same recall. With these, recall@100 of MiniLM's vectors is .97 or more;
# above a million, more links cost less than even more candidates.
GRAPHS = ((100_000, 16, 100, 128), (1_000_000, 16, 100, 256), (math.inf, 32, 200, 512))
DIMENSIONS = 4096  # Anserini's limit
LONGEST = 1.01  # vector length: 1, and the rounding of 16-bit precision
SCHEMA = pa.schema({"docid": pa.string(), "vector": pa.list_(pa.field("element", pa.float32()))})


def graph(vectors: int) -> tuple[int, int, int]:
    """The parameters M, efConstruction and efSearch for a graph of this many vectors."""
    return next((m, construction, search) for most, m, construction, search in GRAPHS if vectors <= most)


def index_hnsw(vectors: Vectors, size: int, shards: Iterable[Shard], folder: Path, threads: int) -> "LuceneGraph":
    """Write a Lucene index of the `size` vectors in `shards`, with Anserini's IndexHnswDenseVectors, and open it.

    Raises CaiError for too many dimensions, and for vectors longer than 1.
    """
    if vectors.width > DIMENSIONS:
        raise CaiError(f"{vectors.folder} has {vectors.width:,} dimensions, Lucene at most {DIMENSIONS:,}: choose hnsw")
    m, construction, _ = graph(size)
    rows: dict[str, int] = {}
    staging = folder / "staging"
    staging.mkdir()
    with ExitStack() as stack:
        paths = [staging / f"{n}.parquet" for n in range(min(threads or os.cpu_count() or 1, vectors.shards))]
        open_file = partial(parquet.ParquetWriter, schema=SCHEMA, compression="none", use_dictionary=False)
        writers = [stack.enter_context(open_file(path)) for path in paths]
        for number, shard in enumerate(shards):
            longest = np.linalg.norm(shard.vectors, axis=1).max(initial=0)
            if longest > LONGEST:
                raise CaiError(
                    f"{vectors.folder} has vectors of length {longest:.2f}, but Lucene compares vectors of length 1: "
                    "choose hnsw"
                )
            ends = np.arange(0, shard.vectors.size + 1, vectors.width, dtype=np.int32)
            columns = [pa.array(shard.ids), pa.ListArray.from_arrays(ends, shard.vectors.ravel())]
            writers[number % len(writers)].write_table(pa.table(columns, schema=SCHEMA))
            rows |= {id: row for row, id in enumerate(shard.ids, len(rows))}
    options = {"input": staging, "index": folder, "threads": len(writers), "M": m, "efC": construction}
    options |= {"collection": "ParquetDenseVectorCollection", "generator": "DenseVectorDocumentGenerator"}
    heap = f"{2048 + size // 1000}m"  # the graph takes less than 1 kB per vector
    run_indexer("IndexHnswDenseVectors", size, heap, options)
    files.remove(staging)
    return LuceneGraph(folder, rows)


class LuceneGraph:
    """An open Lucene index of vectors, with the interface that `vectors.neighbours.recall` expects of Faiss."""

    def __init__(self, folder: Path, rows: dict[str, int]):
        self._rows = rows
        self.ntotal = len(rows)
        with jvm.using_java(f"opening {folder}"):
            reader = jvm.java_class("io.anserini.index.IndexReaderUtils").getReader(str(folder.absolute()))
            reader = jvm.start().cast("org.apache.lucene.index.IndexReader", reader)
            # Anserini's searcher may look for prebuilt indexes on the network.
            self._searcher = jvm.java_class("org.apache.lucene.search.IndexSearcher")(reader)
            self._documents = reader.storedFields()

    def search(self, vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Lucene's scores and the rows of the nearest vectors, -1 for none, both (vectors, count)."""
        scores, rows = np.zeros((len(vectors), count), np.float32), np.full((len(vectors), count), -1)
        with jvm.using_java("searching"):
            knn, candidates = jvm.java_class("org.apache.lucene.search.KnnFloatVectorQuery"), graph(self.ntotal)[-1]
            for number, vector in enumerate(vectors.tolist()):
                top_docs = self._searcher.search(knn("vector", vector, candidates), count)
                for rank, hit in enumerate(top_docs.scoreDocs):
                    row = self._rows[self._documents.document(hit.doc).get("id")]
                    scores[number, rank], rows[number, rank] = hit.score, row
        return scores, rows
