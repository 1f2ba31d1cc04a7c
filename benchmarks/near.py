"""Neighbours of millions of documents: time and private memory of the index, recall, and time per document.

The documents are made as in smooth.py: each is the mix of the dense vectors of two random documents of a collection.
The index is built of all; neighbours are searched for a sample of them, by several numbers of probed clusters.
"""

import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

SAMPLE = 20_000  # documents whose neighbours are searched


def made(vectors: str, documents: int) -> tuple[Callable[[int], Any], Callable[[str], Iterator[Any]]]:
    """Functions that make the vectors (documents, width) of a shard by its first document, and those of all shards."""
    import numpy as np

    from cai_pyserini.vectors.shards import SHARD, Vectors

    real = np.vstack([shard.vectors for shard in Vectors(Path(vectors))]).astype(np.float32)

    def mixed(start: int) -> Any:
        size, draw = min(SHARD, documents - start), np.random.default_rng(start)
        (first, second), share = draw.integers(0, len(real), (2, size)), draw.uniform(0.3, 0.5, (size, 1))
        rows = ((1 - share) * real[first] + share * real[second]).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return mixed, lambda label: map(mixed, range(0, documents, SHARD))


def build(vectors: str, documents: int, folder: str) -> harness.Result:
    """Build the index in a folder: seconds and bytes."""
    from cai_pyserini.core.files import folder_bytes
    from cai_pyserini.vectors.neighbours import mapped_index

    mixed, positions = made(vectors, documents)
    start = time.perf_counter()
    mapped_index(Path(folder), positions, mixed(0).shape[1], documents)
    return {"seconds": time.perf_counter() - start, "bytes": folder_bytes(Path(folder))}


def search(vectors: str, documents: int, folder: str, probes: list[int], candidates: list[int]) -> harness.Result:
    """Recall and documents per second by the numbers of probed clusters, and of reranked candidates per neighbour, of
    an index that is built."""
    import faiss
    import numpy as np

    from cai_pyserini.vectors.neighbours import NEIGHBOURS, mapped_index, nearest, recall
    from cai_pyserini.vectors.shards import SHARD

    mixed, positions = made(vectors, documents)
    sample = np.vstack([mixed(start) for start in range(0, min(SAMPLE, documents), SHARD)])
    index = mapped_index(Path(folder), positions, sample.shape[1], documents)
    clusters: Any = faiss.downcast_index(index.base_index)
    searches = []
    for count, factor in product([clusters.nprobe, *probes], [index.k_factor, *candidates]):
        clusters.nprobe, index.k_factor = count, factor
        start = time.perf_counter()
        nearest(index, sample, np.arange(len(sample)), NEIGHBOURS)
        rate = len(sample) / (time.perf_counter() - start)
        searches.append([count, factor, recall(index, positions, NEIGHBOURS), rate])
    return {"searches": searches}


def main() -> None:
    parser = harness.parser(__doc__, repeats=None)
    parser.set_defaults(encoder="minilm")
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 2_000_000])
    parser.add_argument("--probes", type=int, nargs="+", default=[128], help="numbers of clusters, besides the stage's")
    parser.add_argument("--candidates", type=int, nargs="*", default=[], help="per neighbour, besides the stage's")
    args = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder:
        harness.stage("stage encode", collection=args.collection, encoder=args.encoder, output=f"{folder}/vectors")
        for documents in args.documents:
            with TemporaryDirectory() as index:
                given = {"vectors": f"{folder}/vectors", "documents": documents, "folder": index}
                built = harness.fresh(build, sys.executable, "RssAnon", **given)
                searches = harness.fresh(search, **given, probes=args.probes, candidates=args.candidates)["searches"]
            building = f"{built['seconds']:,.0f}", f"{built['peak'] / 1e6:,.0f}", f"{built['bytes'] / documents:,.0f}"
            for count, factor, found, rate in searches:
                searched = f"{count}", f"{factor:.0f}", f"{found:.3f}", f"{rate:,.0f}", f"{documents / rate / 3600:.2f}"
                rows.append((f"{documents:,}", *building, *searched))
    header = ["documents", "build, s", "private memory, MB", "bytes per document", "clusters probed", "reranked"]
    harness.show("Neighbours", [*header, "recall", "documents/s", "hours for all"], rows)


if __name__ == "__main__":
    main()
