"""Claim: encoding on a CPU is at least 20 times as fast as Pyserini's SpladeDocumentEncoder and 10 times as fast as
sentence-transformers' SparseEncoder, in at most 1.5 GB, with the same vectors.

Every peer encodes the same first documents of a collection, cut after the encoder's maximal length (256), in a process
of its own and one process at a time: ours (Splade.encode as the encode stage calls it: bfloat16 where the hardware
gains from it), ours in float32, Pyserini at its command's batch size of 64 and at 32, and sentence-transformers at its
default of 32. The clock runs from texts to each library's own sparse vectors; imports, loading the model and a warm-up
of 8 documents are outside. Peak memory is that of the whole process. Pyserini needs up to 11 GB for documents of 256
tokens.

Same vectors: both are quantized with Pyserini's own round(w / 5 * 256); of the entries that either has, at least 99 %
are the same integer in ours (float32) and Pyserini's.

--quality also encodes the whole collection in float32 and in bfloat16, and compares nDCG@10 of exact dot products of
the float vectors, with and without IDF; queries are SPLADE's in float32. At most 0.002 apart.
"""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
from fidelity import agreement, ndcg

WARM_UP = 8
DEVICE = "cpu"
TARGETS = {"Pyserini, batches of 64": 20, "sentence-transformers": 10}


def timed(encode: Callable[[list[str]], Any], collection: str, documents: int) -> tuple[Any, dict[str, Any]]:
    """What `encode` gives for the first documents of a collection, and the seconds that it takes."""
    from itertools import islice

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_index_config

    opened = open_collection(load_index_config(collection))
    texts = [document.contents for document in islice(opened.documents(), documents)]
    encode(texts[:WARM_UP])
    start = time.perf_counter()
    vectors = encode(texts)
    return vectors, {"seconds": time.perf_counter() - start, "documents": len(texts)}


def ours(collection: str, encoder: str, documents: int, precision: str, output: str) -> dict[str, Any]:
    """Splade.encode; its vectors are written to `output` as Pyserini quantizes them."""
    import numpy as np
    from scipy.sparse import save_npz

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder
    from cai_pyserini.models.splade import Splade

    config = load_encoder(encoder)
    splade = Splade(checkpoint_folder(config), DEVICE, precision)
    vectors, result = timed(lambda texts: splade.encode(texts, config.max_document_length), collection, documents)
    vectors.data = np.rint(vectors.data.astype(np.float64) / 5 * 256)
    vectors.eliminate_zeros()
    save_npz(output, vectors)
    return result | {"precision": splade.transformer.precision}


def pyserini(collection: str, encoder: str, documents: int, batch: int, folder: str, output: str) -> dict[str, Any]:
    """SpladeDocumentEncoder, in batches in the collection's order, as `python -m pyserini.encode` does it."""
    from itertools import batched

    from scipy.sparse import csr_matrix, save_npz

    from cai_pyserini.core import jvm
    from cai_pyserini.core.config import load_encoder

    config = load_encoder(encoder)
    jvm.start()
    from pyserini.encode import SpladeDocumentEncoder

    model = SpladeDocumentEncoder(folder, device=DEVICE)

    def encode(texts: list[str]) -> list[dict[str, int]]:
        parts = (model.encode(list(part), max_length=config.max_document_length) for part in batched(texts, batch))
        return [vector for part in parts for vector in part]

    vectors, result = timed(encode, collection, documents)
    vocabulary = model.tokenizer.vocab
    entries = [(w, row, vocabulary[term]) for row, vector in enumerate(vectors) for term, w in vector.items() if w]
    weights, rows, columns = zip(*entries, strict=True)
    save_npz(output, csr_matrix((weights, (rows, columns)), shape=(len(vectors), len(model.tokenizer)), dtype=float))
    return result


def sentence_transformers(collection: str, encoder: str, documents: int) -> dict[str, Any]:
    """SparseEncoder, which makes a masked language model and SpladePooling of the checkpoint."""
    from sentence_transformers import SparseEncoder

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder

    config = load_encoder(encoder)
    model = SparseEncoder(str(checkpoint_folder(config)), device=DEVICE)
    model.max_seq_length = config.max_document_length
    return timed(model.encode, collection, documents)[1]


def main() -> None:
    parser = harness.parser(__doc__, "encode")
    parser.add_argument("--documents", type=int, default=512, help="how many are encoded")
    parser.add_argument("--quality", action="store_true", help="also nDCG@10 of bfloat16 and float32")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        checkpoint, mine, stock = (f"{folder}/{name}" for name in ("splade", "ours.npz", "pyserini.npz"))
        harness.stage(
            "plugin", "export-encoder", encoder=args.encoder, output=checkpoint
        )  # Pyserini loads no safetensors
        collection = {"collection": args.collection, "encoder": args.encoder}
        settings = collection | {"documents": args.documents}

        def theirs(batch: int) -> harness.Result:
            return harness.fresh(pyserini, **settings, batch=batch, folder=checkpoint, output=stock)

        peers = {
            "ours": lambda: harness.fresh(ours, **settings, precision="auto", output=f"{folder}/auto.npz"),
            "ours, float32": lambda: harness.fresh(ours, **settings, precision="float32", output=mine),
            "Pyserini, batches of 64": lambda: theirs(64),
            "Pyserini, batches of 32": lambda: theirs(32),
            "sentence-transformers": lambda: harness.fresh(sentence_transformers, **settings),
        }
        results = harness.rounds(args.repeats, peers)
        same = harness.fresh(agreement, first=mine, second=stock)
        scores: dict[str, dict[str, float]] = {}
        if args.quality:
            scores = harness.fresh(ndcg, **collection, device=DEVICE, folder=folder)["scores"]
    first = results["ours"][0]
    speedup = {name: harness.times(result, results["ours"]) for name, result in results.items()}
    rows = [
        (
            name,
            f"{first['documents'] / harness.middle(result, 'seconds'):.1f}",
            f"{speedup[name]:.1f}x",
            harness.gigabytes(result),
        )
        for name, result in results.items()
    ]
    harness.show(
        f"Encoding {first['documents']} documents of {Path(args.collection).name} (ours: {first['precision']})",
        ("", "documents/s", "ours is faster by", "peak memory, GB"),
        rows,
    )
    print(f"Medians of {args.repeats} repetitions, side by side; without imports, loading and a warm-up.\n")
    for name, factor in TARGETS.items():
        harness.target(f"at least {factor} times {name}", f"{speedup[name]:.1f}", speedup[name] >= factor)
    harness.target(
        "at most 1.5 GB", harness.gigabytes(results["ours"]), harness.middle(results["ours"], "peak") <= 1.5e9
    )
    share = f"{same['same']:.3%} of {same['entries']:,}"
    harness.target("at least 99 % of the quantized entries as Pyserini's", share, same["same"] >= 0.99)
    for name, by in scores.items():
        difference = by["bfloat16"] - by["float32"]
        measured = f"{by['float32']:.4f}, bfloat16 {difference:+.4f}"
        harness.target(f"nDCG@10 of {name} within 0.002 of float32's", measured, abs(difference) <= 0.002)


if __name__ == "__main__":
    main()
