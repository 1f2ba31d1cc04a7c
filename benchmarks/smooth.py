"""Time, memory and recall of finding near documents, and of smoothing with them, for a million documents.

The documents are made: each is the mix of the vectors of two random documents of a collection, sparse ones cut to as
many entries as the first had. So a document has neighbours, those with which it shares one of the two, but there are no
topics, which makes neighbours harder to find than in a real collection. The stages near, by dense vectors, and smooth
are processes of their own. The peak memory of the second includes the parts of mapped files that it has read, which the
system can take back.
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

    from cai_pyserini.models.rows import largest
    from cai_pyserini.vectors.shards import SHARD, Vectors

    given = Vectors(Path(source))
    matrices = [shard.vectors for shard in given]
    dense = given.encoder["kind"] == "dense"
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


def made(stage: str, output: str, **inputs: str) -> harness.Result:
    """Run a stage."""
    shutil.rmtree(output, ignore_errors=True)
    return harness.stage(f"stage {stage}", **inputs, output=output) | harness.stats(output)


def main() -> None:
    parser = harness.parser(__doc__, repeats=1)
    parser.add_argument("--dense", default="minilm", help="the encoder of the dense vectors")
    parser.add_argument("--documents", type=int, default=1_000_000)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        vectors, dense, near, output = (f"{folder}/{name}" for name in ("vectors", "dense", "near", "smoothed"))
        for mixed, encoder in ((vectors, args.encoder), (dense, args.dense)):
            harness.stage("stage encode", collection=args.collection, encoder=encoder, output=f"{mixed} real")
            harness.fresh(mix_vectors, source=f"{mixed} real", documents=args.documents, output=mixed)
        peers = {
            "near by dense vectors": partial(made, "near", near, vectors=dense),
            "smooth with these": partial(made, "near-documents", output, vectors=vectors, near=near),
        }
        results = harness.rounds(args.repeats, peers)
    rows = []
    for name, result in results.items():
        stats, seconds = result[0], harness.middle(result)
        found = (stats["search"], f"{stats['recall']:.3f}") if "search" in stats else ("", "")
        speed = f"{seconds:,.0f}", f"{stats['vectors'] / seconds:,.0f}"
        rows.append((name, f"{stats['nonzeros'] / stats['vectors']:.0f}", *found, *speed, harness.gigabytes(result)))
    header = ("stage", "non-zeros", "search", "recall", "seconds", "documents/s", "peak memory, GB")
    harness.show(f"Smoothing {args.documents:,} documents (made of {Path(args.collection).name})", header, rows)


if __name__ == "__main__":
    main()
