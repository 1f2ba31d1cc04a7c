"""Speed and memory of encoding on a CPU: ours, Pyserini's SpladeDocumentEncoder, sentence-transformers' SparseEncoder.

Every peer encodes the same first documents of a collection, cut after the encoder's maximal length (256), in a process
of its own and one process at a time: ours (Splade.encode as the encode stage calls it: bfloat16 where the hardware
gains from it), ours in float32 and, on processors with VNNI, in int8, Pyserini at its command's batch size of 64 and at
32, and sentence-transformers at its default of 32, and also loaded in bfloat16. The clock runs from texts to each
library's own sparse vectors; imports, loading the model and a warm-up of 8 documents are outside. Peak memory is that
of the whole process. Pyserini needs up to 11 GB for documents of 256 tokens.

--backends also measures sentence-transformers with ONNX and OpenVINO, in float32 and in int8, each exported beforehand.
These need other versions of its dependencies than the rest: give the Python of an environment in which
`pip install 'sentence-transformers[onnx,openvino]' 'datasets<4.5'` has been run.

Same vectors: both are quantized with Pyserini's own round(w / 5 * 256), and the share of the entries of either that are
the same integer in ours (float32) and Pyserini's is printed.

--random encodes with a random checkpoint of that size, with the tokenizer of the encoder and a decoder bias with which
a vector has some 200 entries. The last table compares the operations per second of encoding, those of linear layers
counted, with those of one large product in the same precision.

--quality also encodes the whole collection in each precision, and compares nDCG@10 of exact dot products of the float
vectors, with and without IDF; queries are SPLADE's in float32.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

WARM_UP = 8
DEVICE = "cpu"
ACTIVE = 200  # entries per vector of a random checkpoint
BACKENDS = {  # of sentence-transformers: the name of the backend, and the file of its model
    "ONNX": ("onnx", "onnx/model.onnx"),
    "ONNX, int8": ("onnx", "onnx/model_qint8_avx512_vnni.onnx"),
    "OpenVINO": ("openvino", "openvino/openvino_model.xml"),
    "OpenVINO, int8": ("openvino", "openvino/openvino_model_qint8_quantized.xml"),
}
CALIBRATION = 300  # documents that OpenVINO's int8 is calibrated with


def write_texts(collection: str, encoder: str, documents: int, output: str) -> harness.Result:
    """Write the texts of the first documents of a collection as a JSON list; also finds the encoder's checkpoint."""
    from itertools import islice

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder

    config = load_encoder(encoder)
    texts = [document.contents for document in islice(harness.opened(collection)[0].documents(), documents)]
    Path(output).write_text(json.dumps(texts))
    return {"checkpoint": str(checkpoint_folder(config)), "length": config.max_document_length}


def timed(encode: Callable[[list[str]], Any], texts: str) -> tuple[Any, dict[str, Any]]:
    """What `encode` gives for the texts in a file, and the seconds that it takes."""
    read = json.loads(Path(texts).read_text())
    encode(read[:WARM_UP])
    start = time.perf_counter()
    vectors = encode(read)
    return vectors, {"seconds": time.perf_counter() - start, "documents": len(read)}


def random_checkpoint(size: str, encoder: str, output: str) -> harness.Result:
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


def products(checkpoint: str) -> harness.Result:
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


def ours(texts: str, checkpoint: str, length: int, precision: str, output: str) -> harness.Result:
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


def pyserini(texts: str, checkpoint: str, length: int, batch: int, output: str) -> harness.Result:
    """SpladeDocumentEncoder, in batches in the collection's order, as `python -m pyserini.encode` does it."""
    from itertools import batched

    from scipy.sparse import csr_matrix, save_npz

    from cai_pyserini.plugin import hook

    hook.register()
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
) -> harness.Result:
    """SparseEncoder, which makes a masked language model and SpladePooling of the checkpoint."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(checkpoint, device=DEVICE, backend=backend, model_kwargs=settings)
    model.max_seq_length = length
    return timed(model.encode, texts)[1]


def export_backends(texts: str, checkpoint: str, folder: str) -> harness.Result:
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


def agreement(first: str, second: str) -> harness.Result:
    """The share of the entries of either of two matrices that are the same in both."""
    from scipy.sparse import load_npz

    a, b = load_npz(first), load_npz(second)
    either = ((a != 0) + (b != 0)).nnz
    return {"same": 1 - (a != b).nnz / either, "entries": either}


def ndcg(collection: str, encoder: str, device: str, folder: str, precisions: list[str]) -> harness.Result:
    """nDCG@10 of exact dot products, without and with IDF, for each precision of the documents."""
    import numpy as np
    from scipy.sparse import vstack

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.core.trec import removes_query, run_of, without_query
    from cai_pyserini.encode.encode import encode
    from cai_pyserini.encode.encoder import Encoder
    from cai_pyserini.encode.queries import encode_queries
    from cai_pyserini.evaluate.measures import mean, measure
    from cai_pyserini.idf.idf import Idf
    from cai_pyserini.impact.quantization import weighted
    from cai_pyserini.vectors.shards import Vectors

    config, index_config = load_encoder(encoder), load_index_config(collection)
    opened = open_collection(index_config)
    topics, qrels = opened.topics(index_config.split), opened.qrels(index_config.split)
    loaded = Encoder(config, device)
    queries = encode_queries(loaded, list(topics.values()), "splade")
    contents = (document.contents for document in opened.documents())
    weightings = {"splade": None, "splade-idf": Idf.of(contents, loaded.tokenizer).weights()}
    remove_query = removes_query(index_config.remove_query, qrels)
    scores: dict[str, Any] = {}
    for precision in precisions:
        shards = list(Vectors(encode(opened, Encoder(config, device, precision), Path(folder, precision))))
        ids = np.array([id for shard in shards for id in shard.ids])
        for name, weights in weightings.items():
            documents = weighted(vstack([shard.vectors for shard in shards], format="csr"), weights).T.tocsr()
            hits = {}
            for number, query in enumerate(topics):
                products = (queries[number] @ documents).toarray()[0]
                best = np.argsort(-products, kind="stable")[:11]  # one more than counts: the query may be a document
                hits[query] = [(str(ids[i]), float(products[i])) for i in best if products[i] > 0]
            run = without_query(run_of(hits)) if remove_query else run_of(hits)
            scores.setdefault(name, {})[precision] = mean(measure(qrels, run, ["nDCG@10"])["nDCG@10"])
    return {"scores": scores}


def main() -> None:
    parser = harness.parser(__doc__)
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
        # Pyserini loads no safetensors.
        harness.stage("plugin", "export-encoder", encoder=args.encoder, output=exported)
        collection = {"collection": args.collection, "encoder": args.encoder}
        written = harness.fresh(write_texts, **collection, documents=args.documents, output=texts)
        checkpoint, settings = written["checkpoint"], {"texts": texts, "length": written["length"]}
        plain = harness.fresh(products, checkpoint=checkpoint)
        speeds = plain["speeds"]
        own = partial(harness.fresh, ours, **settings, checkpoint=checkpoint)
        theirs = partial(harness.fresh, pyserini, **settings, checkpoint=exported, output=stock)
        others = partial(harness.fresh, sentence_transformers, **settings, checkpoint=checkpoint)
        peers = {
            "ours": partial(own, precision="auto", output=f"{folder}/other.npz"),
            "ours, float32": partial(own, precision="float32", output=mine),
            "ours, int8": partial(own, precision="int8", output=f"{folder}/other.npz"),
            "Pyserini, batches of 64": partial(theirs, batch=64),
            "Pyserini, batches of 32": partial(theirs, batch=32),
            "sentence-transformers": partial(others, dtype="float32"),
            "sentence-transformers, bfloat16": partial(others, dtype="bfloat16"),
        }
        if "int8" not in speeds:
            del peers["ours, int8"]
        if args.backends:
            made = {"checkpoint": checkpoint, "folder": f"{folder}/backends"}
            print(*harness.fresh(export_backends, args.backends, texts=texts, **made)["versions"])
            other = partial(harness.fresh, sentence_transformers, args.backends, **settings, checkpoint=made["folder"])
            for name, (backend, file) in BACKENDS.items():
                peers[f"sentence-transformers, {name}"] = partial(other, backend=backend, file_name=file)
        results = harness.rounds(args.repeats, peers)
        same = harness.fresh(agreement, first=mine, second=stock)
        scores: dict[str, dict[str, float]] = {}
        if args.quality:
            scores = harness.fresh(ndcg, **collection, device=DEVICE, folder=folder, precisions=list(speeds))["scores"]
    first = results["ours"][0]
    best = results["ours, int8" if args.random and "int8" in speeds else "ours"]
    rows = []
    for name, result in results.items():
        seconds, gflops = harness.middle(result), ("", "")
        if (precision := result[0].get("precision")) in speeds:
            gflops = f"{plain['per_token'] * result[0]['tokens'] / seconds / 1e9:.0f}", f"{speeds[precision] / 1e9:.0f}"
        speed = f"{first['documents'] / seconds:.1f}", harness.times(result, best)
        rows.append((name, *speed, harness.gigabytes(result), *gflops))
    size = f" with {args.random} parameters" if args.random else ""
    title = f"Encoding {first['documents']} documents of {Path(args.collection).name}{size}, medians of {args.repeats}"
    header = ("", "documents/s", "speed-up of ours", "peak memory, GB", "GFLOP/s of linear layers", "of one product")
    harness.show(f"{title} (ours: {first['precision']})", header, rows)
    print(f"the same quantized entries as Pyserini's: {same['same']:.3%} of {same['entries']:,}")
    for name, by in scores.items():
        print(f"nDCG@10 of {name}:", ", ".join(f"{precision} {value:.4f}" for precision, value in by.items()))


if __name__ == "__main__":
    main()
