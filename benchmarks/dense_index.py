"""Methods of `index dense` side by side: time to build, time per query, size, and what is found of the nearest.

The vectors are made, from those of a collection: each is the mix of two random documents' vectors, scaled to length 1
(see smooth.py). The queries are the collection's. Everything runs on one thread, and seconds are those of the
processor, so that other processes matter less. Building includes measuring the recall that the manifest has, of 200
documents; here recall is that of the queries, compared with the hits of the flat index.
"""

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import harness
from smooth import mix_vectors

HITS, QUERIES = 100, 1000
METHODS = ("flat", "hnsw", "ivfpq")


def measure(method: str, vectors: str, queries: str, output: str) -> harness.Result:
    """Build an index, and search it for the first queries."""
    from itertools import islice

    from cai_pyserini.indexes.dense_index import index_dense
    from cai_pyserini.indexes.engines import open_searcher
    from cai_pyserini.vectors.shards import Vectors

    before = time.process_time()
    index = index_dense(Vectors(Path(vectors)), Path(output), method, 1)
    seconds = time.process_time() - before
    searcher = open_searcher(index)
    rows = ((id, row) for shard in Vectors(Path(queries)) for id, row in zip(shard.ids, shard.vectors, strict=True))
    encoded = dict(islice(rows, QUERIES))
    start = time.process_time()
    found = {
        id: [hit for hit, _ in hits] for part in searcher.search_many(encoded, HITS, 1) for id, hits in part.items()
    }
    ms = 1000 * (time.process_time() - start) / len(encoded)
    return {"seconds": seconds, "ms": ms, "hits": found} | {"bytes": harness.stats(output)["bytes"]}


def recall(exact: dict[str, list[str]], found: dict[str, list[str]], cutoff: int) -> float:
    return sum(len({*hits[:cutoff]} & {*found[id][:cutoff]}) / cutoff for id, hits in exact.items()) / len(exact)


def main() -> None:
    parser = harness.parser(__doc__, repeats=1)
    parser.set_defaults(encoder="minilm")
    parser.add_argument("--documents", type=int, default=200_000)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        real, vectors, queries = (f"{folder}/{name}" for name in ("real", "vectors", "queries"))
        source = {"collection": args.collection, "encoder": args.encoder}
        harness.stage("stage encode", **source, output=real)
        harness.stage("stage encode", **source, split="test", output=queries)
        harness.fresh(mix_vectors, source=real, documents=args.documents, output=vectors)
        inputs = {"vectors": vectors, "queries": queries}
        peers = {
            method: partial(harness.fresh, measure, method=method, **inputs, output=f"{folder}/{method}")
            for method in METHODS
        }
        results = {method: result for method, (result,) in harness.rounds(1, peers).items()}
    flat, rows = results["flat"], []
    for method, result in results.items():
        found = [f"{recall(flat['hits'], result['hits'], cutoff):.3f}" for cutoff in (10, 100)]
        speed, size = flat["ms"] / result["ms"], result["bytes"] / flat["bytes"]
        times = f"{result['seconds']:,.0f}", f"{result['ms']:.2f}", f"{speed:.1f}x"
        rows.append((method, *times, f"{result['bytes'] / 1e6:,.0f}", f"{size:.2f}x", *found))
    header = ("method", "build, s", "ms/query", "speed", "MB", "size", "recall@10", "recall@100")
    title = f"Dense indexes of {args.documents:,} documents (made of {Path(args.collection).name})"
    harness.show(title, header, rows)


if __name__ == "__main__":
    main()
