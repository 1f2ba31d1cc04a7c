"""The cache of vectors: what it costs, and what it saves.

The first table is of made rows with 100 entries each and random keys, put and then looked up in another order, 4,096 at
a time. Peak memory is that of the whole process. The second encodes a collection, then the same with 1% of its texts
changed, into another folder, by `cai-pyserini stage encode`, whose seconds are those of the whole command.
"""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

ENTRIES = 100
CHANGED = 100  # every so many texts one


def fill(folder: str, rows: int) -> harness.Result:
    """Put made rows into a new cache, and look all of them up."""
    import numpy as np
    from scipy.sparse import csr_matrix

    from cai_pyserini.vectors.cache import VectorCache
    from cai_pyserini.vectors.shards import SHARD

    draw, cache = np.random.default_rng(0), VectorCache(Path(folder), "made", "made", 30522)
    keys, seconds = [bytes(key) for key in draw.integers(0, 256, (rows, 16), np.uint8)], {"put": 0.0, "get": 0.0}
    indices = np.sort(draw.integers(0, 30522, (SHARD, ENTRIES), np.int32), axis=1).ravel()
    values = csr_matrix((draw.random(SHARD * ENTRIES, np.float32), indices, range(0, SHARD * ENTRIES + 1, ENTRIES)))
    values.resize(SHARD, 30522)
    for at in range(0, rows, SHARD):
        some, start = keys[at : at + SHARD], time.perf_counter()
        cache.put(some, values[: len(some)], 1.0)
        seconds["put"] += time.perf_counter() - start
    order, found = draw.permutation(rows), 0
    for at in range(0, rows, SHARD):
        some, start = [keys[i] for i in order[at : at + SHARD]], time.perf_counter()
        found += len(cache.get(some).keys)
        seconds["get"] += time.perf_counter() - start
    if found != rows:
        raise SystemExit(f"{found} of {rows} rows found")
    return seconds | {"bytes": sum(file.stat().st_size for file in Path(folder).iterdir())}


def change(collection: str, output: str) -> harness.Result:
    """Write a collection in which 1% of the texts are changed."""
    found, topics, qrels = harness.opened(collection)
    records = [
        document._replace(text=f"{document.text} (revised)") if number % CHANGED == 0 else document
        for number, document in enumerate(found.records())
    ]
    return {"documents": harness.write_folder(Path(output), records, topics, {"test": qrels})}


def encode(collection: str, output: str, **settings: str) -> harness.Result:
    """Encode a collection in a process of its own."""
    spent = harness.stage("stage encode", collection=collection, output=output, **settings)
    return spent | {name: value for name, value in harness.stats(output).items() if name in ("found", "vectors")}


def main() -> None:
    parser = harness.parser(__doc__, repeats=1)
    parser.add_argument("--rows", type=int, default=200_000)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        result = harness.fresh(fill, folder=f"{folder}/made", rows=args.rows)
        rates = [f"{args.rows / result[name]:,.0f}" for name in ("put", "get")]
        sizes = f"{result['bytes'] / 1e6:,.0f}", f"{result['peak'] / 1e6:,.0f}"
        header = ("rows", "put per second", "found per second", "MB on disk", "peak memory, MB")
        harness.show("The cache of vectors", header, [(f"{args.rows:,}", *rates, *sizes)])
        os.environ["CAI_PYSERINI_VECTORS"] = f"{folder}/cache"
        harness.fresh(change, collection=args.collection, output=f"{folder}/changed")
        rows = []
        for name, collection in (("first", args.collection), ("1% changed", f"{folder}/changed")):
            result = encode(collection, f"{folder}/{name}", encoder=args.encoder)
            rows.append((name, result["vectors"], result["found"], f"{result['seconds']:.1f}"))
        harness.show(f"Encoding {Path(args.collection).name} twice", ("encoding", "vectors", "found", "seconds"), rows)


if __name__ == "__main__":
    main()
