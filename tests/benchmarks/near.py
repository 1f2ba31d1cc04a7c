"""Neighbours of millions of documents: time and private memory of the index, recall, and time per document.

The documents are made as in smooth.py: each is the mix of the dense vectors of two random documents of a collection.
The index is built of all; neighbours are searched for a sample of them, by several numbers of probed clusters.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

SAMPLE = 20_000  # documents whose neighbours are searched


class Peak(threading.Thread):
    """The largest private memory of this process while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self._ended = 0, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            self.bytes = max(self.bytes, harness.memory("self", "RssAnon"))

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.bytes


def measure(vectors: str, documents: int, probes: list[int]) -> harness.Result:
    """Seconds and bytes of building, and recall and documents per second by the number of probed clusters."""
    import faiss
    import numpy as np

    from cai_pyserini.vectors.neighbours import NEIGHBOURS, mapped_index, nearest, recall
    from cai_pyserini.vectors.shards import SHARD, Vectors

    real = np.vstack([shard.vectors for shard in Vectors(Path(vectors))]).astype(np.float32)

    def mixed(start: int) -> Any:
        size, draw = min(SHARD, documents - start), np.random.default_rng(start)
        (first, second), share = draw.integers(0, len(real), (2, size)), draw.uniform(0.3, 0.5, (size, 1))
        rows = ((1 - share) * real[first] + share * real[second]).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def positions(label: str) -> Iterator[Any]:
        return map(mixed, range(0, documents, SHARD))

    sample = np.vstack([mixed(start) for start in range(0, min(SAMPLE, documents), SHARD)])
    with TemporaryDirectory() as folder:
        peak, start = Peak(), time.perf_counter()
        peak.start()
        index = mapped_index(Path(folder), positions, real.shape[1], documents)
        built = {"seconds": time.perf_counter() - start, "memory": peak.end()}
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        parts = [index.at(number) for number in range(index.count())] if hasattr(index, "count") else [index]
        clusters: Any = [faiss.downcast_index(faiss.downcast_index(part).base_index) for part in parts]
        searches = []
        for count in [clusters[0].nprobe, *probes]:
            for each in clusters:
                each.nprobe = count
            start = time.perf_counter()
            nearest(index, sample, np.arange(len(sample)), NEIGHBOURS)
            rate = len(sample) / (time.perf_counter() - start)
            searches.append([count, recall(index, positions, NEIGHBOURS), rate])
    return built | {"bytes": size, "searches": searches}


def main() -> None:
    parser = harness.parser(__doc__, repeats=None)
    parser.set_defaults(encoder="minilm")
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 2_000_000])
    parser.add_argument("--probes", type=int, nargs="+", default=[128], help="numbers of clusters, besides the stage's")
    args = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder:
        harness.stage("stage encode", collection=args.collection, encoder=args.encoder, output=f"{folder}/vectors")
        for documents in args.documents:
            made = {"vectors": f"{folder}/vectors", "documents": documents, "probes": args.probes}
            result = harness.fresh(measure, **made)
            per_document = result["bytes"] / documents
            building = f"{result['seconds']:,.0f}", f"{result['memory'] / 1e6:,.0f}", f"{per_document:,.0f}"
            for count, found, rate in result["searches"]:
                search = f"{count}", f"{found:.3f}", f"{rate:,.0f}", f"{documents / rate / 3600:.2f}"
                rows.append((f"{documents:,}", *building, *search))
    header = ["documents", "build, s", "private memory, MB", "bytes per document", "clusters probed", "recall"]
    harness.show("Neighbours", [*header, "documents/s", "hours for all"], rows)


if __name__ == "__main__":
    main()
