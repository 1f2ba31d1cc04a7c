"""Time, memory and recall of smoothing a million documents.

The documents are made: each is the mix of the vectors of two random documents of a collection, sparse ones cut to as
many entries as the first had. So a document has neighbours, those with which it shares one of the two, but there are no
topics, which makes neighbours harder to find than in a real collection. `python -m cai_pyserini.smooth` is a process of
its own, with neighbours by dense vectors and by the SPLADE vectors with IDF. Its peak memory includes the parts of
mapped files that it has read, which the system can take back.
"""

import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import harness


def mix_vectors(source: str, documents: int, output: str) -> harness.Result:
    """Write the vectors of `documents` made documents, from those in the folder `source`."""
    import numpy as np
    from scipy.sparse import diags, vstack

    from cai_pyserini.core.rows import largest
    from cai_pyserini.vectors.shards import SHARD, Vectors

    given = Vectors(Path(source))
    matrices = [shard.vectors for shard in given]
    dense = given.kind == "dense"
    real = np.vstack(matrices) if dense else vstack(matrices, "csr")
    draw = np.random.default_rng(42)  # the same pairs for sparse and dense vectors
    pairs, shares = draw.integers(0, len(given), (2, documents)), draw.uniform(0.3, 0.5, documents).astype(np.float32)

    def mixed(start: int) -> object:
        (first, second), share = pairs[:, start : start + SHARD], shares[start : start + SHARD]
        rows = diags(1 - share) @ real[first] + diags(share) @ real[second]
        return (
            rows / np.linalg.norm(rows, axis=1, keepdims=True) if dense else largest(rows, np.diff(real[first].indptr))
        )

    harness.write_vectors(Path(output), given, documents, map(mixed, range(0, documents, SHARD)))
    return {}


def smooth(output: str, **inputs: str) -> harness.Result:
    """Run the smooth stage."""
    shutil.rmtree(output, ignore_errors=True)
    return harness.stage("smooth", **inputs, output=output) | harness.stats(output)


def main() -> None:
    parser = harness.parser(__doc__, repeats=1)
    parser.add_argument("--dense", default="minilm", help="the encoder of the dense vectors")
    parser.add_argument("--documents", type=int, default=1_000_000)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        vectors, idf, dense, output = (f"{folder}/{name}" for name in ("vectors", "idf", "dense", "smoothed"))
        harness.stage("idf", collection=args.collection, encoder=args.encoder, output=idf)
        for made, encoder in ((vectors, args.encoder), (dense, args.dense)):
            harness.stage("encode", collection=args.collection, encoder=encoder, output=f"{made} real")
            harness.fresh(mix_vectors, source=f"{made} real", documents=args.documents, output=made)
        peers = {
            "dense": partial(smooth, output, vectors=vectors, dense=dense),
            "splade": partial(smooth, output, vectors=vectors, idf=idf),
        }
        results = harness.rounds(args.repeats, peers)
    rows = []
    for name, result in results.items():
        stats, seconds = result[0], harness.middle(result)
        found = f"{stats['nonzeros'] / stats['vectors']:.0f}", stats["search"], f"{stats['recall']:.3f}"
        rows.append((name, *found, f"{seconds:,.0f}", f"{stats['vectors'] / seconds:,.0f}", harness.gigabytes(result)))
    header = ("near by", "non-zeros", "search", "recall", "seconds", "documents/s", "peak memory, GB")
    harness.show(f"Smoothing {args.documents:,} documents (made of {Path(args.collection).name})", header, rows)


if __name__ == "__main__":
    main()
