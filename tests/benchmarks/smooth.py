"""Claim: a million documents are smoothed in at most 4 GB of memory.

The documents are made: each is the mix of the vectors of two random documents of a collection, sparse ones cut to as
many entries as the first had. So a document has neighbours, those with which it shares one of the two, but there are no
topics, which makes them harder to find than in a real collection. `python -m cai_pyserini.smooth` is run as a process
of its own, with neighbours by dense vectors and by the SPLADE vectors with IDF. Its peak memory includes the parts of
mapped files that it has read, which the system can take back.
"""

import json
import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

GIGABYTES = 4


def mix_vectors(source: str, documents: int, output: str) -> dict[str, Any]:
    """Write the vectors of `documents` made documents, from those in the folder `source`."""
    import numpy as np
    from scipy.sparse import diags, vstack

    from cai_pyserini.core import artifact
    from cai_pyserini.vectors.rows import largest
    from cai_pyserini.vectors.shards import SHARD, Shard, Vectors, shard_path, write_shard

    given = Vectors(Path(source))
    matrices = [shard.vectors for shard in given]
    real = np.vstack(matrices) if given.kind == "dense" else vstack(matrices, "csr")
    draw = np.random.default_rng(42)  # the same pairs for sparse and dense vectors
    pairs, shares = draw.integers(0, len(given), (2, documents)), draw.uniform(0.3, 0.5, documents).astype(np.float32)
    recipe = given.manifest.recipe | {"documents": documents}

    def write(folder: Path) -> artifact.Stats:
        nonzeros = 0
        starts = range(0, documents, SHARD)
        for number, start in enumerate(starts):
            part = slice(start, start + SHARD)
            first, second = pairs[:, part]
            mixed = diags(1 - shares[part]) @ real[first] + diags(shares[part]) @ real[second]
            if given.kind == "dense":
                mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
            else:
                mixed = largest(mixed, np.diff(real[first].indptr))
                nonzeros += mixed.nnz
            shard = Shard([str(id) for id in range(start, start + len(first))], mixed)
            write_shard(shard_path(folder, number), shard, artifact.digest(recipe), 0.0, 1)
        return {"vectors": documents, "shards": len(starts), "nonzeros": nonzeros}

    artifact.make(Path(output), recipe, write)
    return {}


def smooth(output: str, **inputs: str) -> harness.Result:
    """Run the smooth stage."""
    shutil.rmtree(output, ignore_errors=True)
    peak = harness.stage("smooth", **inputs, output=output)
    return json.loads(Path(output, "manifest.json").read_text())["stats"] | {"peak": peak}


def prepare(collection: str, encoder: str, dense: str, documents: int, folder: str) -> None:
    """Write the folders `idf`, `vectors` and `dense` of made documents."""
    harness.stage("idf", collection=collection, encoder=encoder, output=f"{folder}/idf")
    for name, checkpoint in (("vectors", encoder), ("dense", dense)):
        real = f"{folder}/real {name}"
        harness.stage("encode", collection=collection, encoder=checkpoint, output=real)
        harness.fresh(mix_vectors, source=real, documents=documents, output=f"{folder}/{name}")


def main() -> None:
    parser = harness.parser(__doc__, "smooth")
    parser.set_defaults(repeats=1)
    parser.add_argument("--dense", default="minilm", help="the encoder of the dense vectors")
    parser.add_argument("--documents", type=int, default=1_000_000)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        prepare(args.collection, args.encoder, args.dense, args.documents, folder)
        vectors, idf, dense, output = (f"{folder}/{name}" for name in ("vectors", "idf", "dense", "smoothed"))
        peers = {
            "dense": partial(smooth, output, vectors=vectors, dense=dense),
            "splade": partial(smooth, output, vectors=vectors, idf=idf),
        }
        results = harness.rounds(args.repeats, peers)
    rows: list[tuple[object, ...]] = []
    for name, result in results.items():
        stats, seconds = result[0], harness.middle(result, "seconds")
        numbers = f"{seconds:,.0f}", f"{stats['vectors'] / seconds:,.0f}", harness.gigabytes(result)
        rows.append(
            (name, f"{stats['nonzeros'] / stats['vectors']:.0f}", stats["search"], f"{stats['recall']:.3f}", *numbers)
        )
    header = ("near by", "non-zeros", "search", "recall", "seconds", "documents/s", "peak memory, GB")
    harness.show(f"Smoothing {args.documents:,} documents (made of {Path(args.collection).name})", header, rows)
    peak = max(result["peak"] for both in results.values() for result in both) / 1e9
    harness.target(f"at most {GIGABYTES} GB", f"{peak:.2f} GB", peak <= GIGABYTES)


if __name__ == "__main__":
    main()
