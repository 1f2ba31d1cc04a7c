"""Claim: encoding on a CPU is at least 20 times as fast as Pyserini's SpladeDocumentEncoder and 10 times as fast as
sentence-transformers' SparseEncoder, in at most 1.5 GB, with the same vectors; and for models of the size of DistilBERT
(66M parameters) and BERT (110M), in int8, 15 times and 8 times; and faster than any backend of sentence-transformers.

Every peer encodes the same first documents of a collection, cut after the encoder's maximal length (256), in a process
of its own and one process at a time: ours (Splade.encode as the encode stage calls it: bfloat16 where the hardware
gains from it), ours in float32 and, on processors with VNNI, in int8, Pyserini at its command's batch size of 64 and at
32, and sentence-transformers at its default of 32, and also loaded in bfloat16. The clock runs from texts to each
library's own sparse vectors; imports, loading the model and a warm-up of 8 documents are outside. Peak memory is that
of the whole process. Pyserini needs up to 11 GB for documents of 256 tokens.

--backends also measures sentence-transformers with ONNX and OpenVINO, in float32 and in int8, each exported beforehand.
These need other versions of its dependencies than the rest: give the Python of an environment in which
`pip install 'sentence-transformers[onnx,openvino]' 'datasets<4.5'` has been run.

Same vectors: both are quantized with Pyserini's own round(w / 5 * 256); of the entries that either has, at least 99 %
are the same integer in ours (float32) and Pyserini's.

--random encodes with a random checkpoint of that size, with the tokenizer of the encoder and a decoder bias with which
a vector has some 200 entries. The last table compares the operations per second of encoding, those of linear layers
counted, with those of one large product in the same precision.

--quality also encodes the whole collection in each precision, and compares nDCG@10 of exact dot products of the float
vectors, with and without IDF; queries are SPLADE's in float32. At most 0.002 apart.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
from fidelity import agreement, ndcg

WARM_UP = 8
DEVICE = "cpu"
TARGETS = {"Pyserini, batches of 64": 20, "sentence-transformers": 10}
INT8_TARGETS = {"Pyserini, batches of 64": 15, "sentence-transformers": 8}  # of the other backends: 1
ACTIVE = 200  # entries per vector of a random checkpoint
BACKENDS = {  # of sentence-transformers: the name of the backend, and the file of its model
    "ONNX": ("onnx", "onnx/model.onnx"),
    "ONNX, int8": ("onnx", "onnx/model_qint8_avx512_vnni.onnx"),
    "OpenVINO": ("openvino", "openvino/openvino_model.xml"),
    "OpenVINO, int8": ("openvino", "openvino/openvino_model_qint8_quantized.xml"),
}
CALIBRATION = 300  # documents that OpenVINO's int8 is calibrated with


def write_texts(collection: str, encoder: str, documents: int, output: str) -> dict[str, Any]:
    """Write the texts of the first documents of a collection as a JSON list; also finds the encoder's checkpoint."""
    from itertools import islice

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.models.checkpoint import checkpoint_folder

    opened, config = open_collection(load_index_config(collection)), load_encoder(encoder)
    texts = [document.contents for document in islice(opened.documents(), documents)]
    Path(output).write_text(json.dumps(texts))
    return {"checkpoint": str(checkpoint_folder(config)), "length": config.max_document_length}


def timed(encode: Callable[[list[str]], Any], texts: str) -> tuple[Any, dict[str, Any]]:
    """What `encode` gives for the texts in a file, and the seconds that it takes."""
    read = json.loads(Path(texts).read_text())
    encode(read[:WARM_UP])
    start = time.perf_counter()
    vectors = encode(read)
    return vectors, {"seconds": time.perf_counter() - start, "documents": len(read)}


def random_checkpoint(size: str, encoder: str, output: str) -> dict[str, Any]:
    """Write a random masked language model with the tokenizer of an encoder."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, DistilBertConfig

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint_folder(load_encoder(encoder))))
    config = {"66M": DistilBertConfig, "110M": BertConfig}[size](vocab_size=len(tokenizer))
    model = AutoModelForMaskedLM.from_config(config).eval()
    with torch.inference_mode():
        largest = model(input_ids=torch.randint(len(tokenizer), (1, 128))).logits[0].amax(0)
    torch.nn.init.constant_(model.get_output_embeddings().bias, -float(largest.sort().values[-ACTIVE]))
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return {}


def products(checkpoint: str) -> dict[str, Any]:
    """Operations per second of one large product in each precision, and a model's operations per token."""
    import torch
    from torch.nn.functional import linear

    from cai_pyserini.core.errors import CaiError
    from cai_pyserini.models.device import resolve_precision
    from cai_pyserini.models.int8 import Int8Linear, quantize
    from cai_pyserini.models.splade import load_masked_lm

    model, _ = load_masked_lm(Path(checkpoint))
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    x, weight = torch.randn(1024 * torch.get_num_threads(), 768), torch.randn(3072, 768)
    operands = x.bfloat16(), weight.bfloat16()
    calls: dict[str, Callable[[], Any]] = {
        "float32": lambda: linear(x, weight),
        "bfloat16": lambda: linear(*operands),
    }
    try:
        resolve_precision("int8", torch.device(DEVICE))
        quantized, layer = quantize(x, by_token=False), Int8Linear(weight, None, torch.bfloat16)
        calls["int8"] = lambda: layer.product(quantized)
    except CaiError:
        pass
    speeds = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        for _ in range(10):
            call()
        speeds[name] = 10 * 2 * x.shape[0] * weight.numel() / (time.perf_counter() - start)
    return {"speeds": speeds, "per_token": 2 * weights}


def ours(texts: str, checkpoint: str, length: int, precision: str, output: str) -> dict[str, Any]:
    """Splade.encode; its vectors are written to `output` as Pyserini quantizes them."""
    import numpy as np
    from scipy.sparse import save_npz

    from cai_pyserini.models.splade import Splade

    splade = Splade(Path(checkpoint), DEVICE, precision)
    tokens = 0

    def encode(texts: list[str]) -> Any:
        nonlocal tokens
        tokens = int(np.minimum(splade.tokenizer.lengths(texts), length).sum())
        return splade.encode(texts, length)

    vectors, result = timed(encode, texts)
    vectors.data = np.rint(vectors.data.astype(np.float64) / 5 * 256)
    vectors.eliminate_zeros()
    save_npz(output, vectors)
    return result | {"precision": splade.transformer.precision, "tokens": tokens}


def pyserini(texts: str, checkpoint: str, length: int, batch: int, output: str) -> dict[str, Any]:
    """SpladeDocumentEncoder, in batches in the collection's order, as `python -m pyserini.encode` does it."""
    from itertools import batched

    from scipy.sparse import csr_matrix, save_npz

    from cai_pyserini.core import jvm

    jvm.start()
    from pyserini.encode import SpladeDocumentEncoder

    model = SpladeDocumentEncoder(checkpoint, device=DEVICE)

    def encode(texts: list[str]) -> list[dict[str, int]]:
        parts = (model.encode(list(part), max_length=length) for part in batched(texts, batch))
        return [vector for part in parts for vector in part]

    vectors, result = timed(encode, texts)
    vocabulary = model.tokenizer.vocab
    entries = [(w, row, vocabulary[term]) for row, vector in enumerate(vectors) for term, w in vector.items() if w]
    weights, rows, columns = zip(*entries, strict=True)
    save_npz(output, csr_matrix((weights, (rows, columns)), shape=(len(vectors), len(model.tokenizer)), dtype=float))
    return result


def sentence_transformers(
    texts: str, checkpoint: str, length: int, backend: str = "torch", **settings: str
) -> dict[str, Any]:
    """SparseEncoder, which makes a masked language model and SpladePooling of the checkpoint."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(checkpoint, device=DEVICE, backend=backend, model_kwargs=settings)
    model.max_seq_length = length
    return timed(model.encode, texts)[1]


def export_backends(texts: str, checkpoint: str, folder: str) -> dict[str, Any]:
    """Write sentence-transformers' models for BACKENDS; returns the versions of what they run with."""
    from importlib.metadata import version

    from sentence_transformers import SparseEncoder, backend

    model = SparseEncoder(checkpoint, device=DEVICE, backend="onnx", model_kwargs={"export": True})
    model.save_pretrained(folder)
    backend.export_dynamic_quantized_onnx_model(model, "avx512_vnni", folder)
    model = SparseEncoder(checkpoint, device=DEVICE, backend="openvino", model_kwargs={"export": True})
    model.save_pretrained(folder)
    data = Path(folder, "calibration")
    data.mkdir()
    lines = [json.dumps({"text": text}) for text in json.loads(Path(texts).read_text())[:CALIBRATION]]
    (data / "train.jsonl").write_text("\n".join(lines))
    backend.export_static_quantized_openvino_model(model, None, folder, str(data), "default", "train", "text")
    names = ("sentence-transformers", "transformers", "torch", "onnxruntime", "openvino")
    return {"versions": [f"{name} {version(name)}" for name in names]}


def main() -> None:
    parser = harness.parser(__doc__, "encode")
    parser.add_argument("--documents", type=int, default=512, help="how many are encoded")
    parser.add_argument("--quality", action="store_true", help="also nDCG@10 of each precision")
    parser.add_argument("--backends", metavar="PYTHON", help="also ONNX and OpenVINO, with this interpreter")
    parser.add_argument("--random", choices=("66M", "110M"), help="encode with a random checkpoint of this size")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        texts, exported, mine, stock = (f"{folder}/{name}" for name in ("texts", "splade", "ours.npz", "pyserini.npz"))
        if args.random:
            harness.fresh(random_checkpoint, size=args.random, encoder=args.encoder, output=f"{folder}/random")
            args.encoder = f"{folder}/random"
        harness.stage(
            "plugin", "export-encoder", encoder=args.encoder, output=exported
        )  # Pyserini loads no safetensors
        collection = {"collection": args.collection, "encoder": args.encoder}
        written = harness.fresh(write_texts, **collection, documents=args.documents, output=texts)
        settings = {"texts": texts, "length": written["length"]}
        checkpoint = {"checkpoint": written["checkpoint"]}

        def theirs(batch: int) -> harness.Result:
            return harness.fresh(pyserini, **settings, checkpoint=exported, batch=batch, output=stock)

        def own(precision: str, output: str = f"{folder}/other.npz") -> harness.Result:
            return harness.fresh(ours, **settings, **checkpoint, precision=precision, output=output)

        def others(**more: str) -> harness.Result:
            return harness.fresh(sentence_transformers, **settings, **checkpoint, **more)

        def backend(name: str, file: str) -> harness.Result:
            return harness.fresh(
                sentence_transformers,
                args.backends,
                **settings,
                checkpoint=f"{folder}/backends",
                backend=name,
                file_name=file,
            )

        plain = harness.fresh(products, **checkpoint)
        speeds = plain["speeds"]
        int8 = {"ours, int8": lambda: own("int8")} if "int8" in speeds else {}
        peers = {
            "ours": lambda: own("auto"),
            "ours, float32": lambda: own("float32", mine),
            **int8,
            "Pyserini, batches of 64": lambda: theirs(64),
            "Pyserini, batches of 32": lambda: theirs(32),
            "sentence-transformers": lambda: others(dtype="float32"),
            "sentence-transformers, bfloat16": lambda: others(dtype="bfloat16"),
        }
        versions = []
        if args.backends:
            versions = harness.fresh(
                export_backends, args.backends, texts=texts, **checkpoint, folder=f"{folder}/backends"
            )["versions"]
            peers |= {f"sentence-transformers, {name}": partial(backend, *which) for name, which in BACKENDS.items()}
        results = harness.rounds(args.repeats, peers)
        same = harness.fresh(agreement, first=mine, second=stock)
        scores: dict[str, dict[str, float]] = {}
        if args.quality:
            scores = harness.fresh(ndcg, **collection, device=DEVICE, folder=folder, precisions=list(speeds))["scores"]
    first = results["ours"][0]
    size = f" with {args.random} parameters" if args.random else ""
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
        f"Encoding {first['documents']} documents of {Path(args.collection).name}{size} (ours: {first['precision']})",
        ("", "documents/s", "ours is faster by", "peak memory, GB"),
        rows,
    )
    print(f"Medians of {args.repeats} repetitions, side by side; without imports, loading and a warm-up.\n")
    if versions:
        print(f"ONNX and OpenVINO: {', '.join(versions)}\n")
    claimed = "ours, int8" if args.random and int8 else "ours"
    targets = INT8_TARGETS if args.random else TARGETS
    for name, factor in (targets | {name: 1 for name in results if "sentence-transformers, " in name}).items():
        faster = harness.times(results[name], results[claimed])
        harness.target(f"{claimed}: at least {factor} times {name}", f"{faster:.1f}", faster >= factor)
    peak = results[claimed]
    harness.target("at most 1.5 GB", harness.gigabytes(peak), harness.middle(peak, "peak") <= 1.5e9)
    share = f"{same['same']:.3%} of {same['entries']:,}"
    harness.target("at least 99 % of the quantized entries as Pyserini's", share, same["same"] >= 0.99)
    for name, by in scores.items():
        for precision in list(by)[1:]:
            difference = by[precision] - by["float32"]
            measured = f"{by['float32']:.4f}, {precision} {difference:+.4f}"
            harness.target(f"nDCG@10 of {name} within 0.002 of float32's", measured, abs(difference) <= 0.002)
    achieved = [
        (name, plain["per_token"] * result[0]["tokens"] / harness.middle(result, "seconds"), speeds[precision])
        for name, result in results.items()
        if name.startswith("ours") and (precision := result[0]["precision"]) in speeds
    ]
    harness.show(
        "Linear layers",
        ("", "encoding, GFLOP/s", "one product, GFLOP/s"),
        [(name, f"{encoding / 1e9:.0f}", f"{product / 1e9:.0f}") for name, encoding, product in achieved],
    )


if __name__ == "__main__":
    main()
