"""Speed and memory of encoding: ours, Pyserini's SpladeDocumentEncoder, sentence-transformers' SparseEncoder.

Every peer encodes the same first documents of a collection, cut after the encoder's maximal length (256), in a process
of its own and one process at a time: ours (Splade.encode as the encode stage calls it: bfloat16 where the hardware
gains from it), ours in float32 and, on processors with VNNI, in int8, Pyserini at its command's batch size of 64 and at
32, and sentence-transformers at its default of 32, and also loaded in bfloat16. The clock runs from texts to each
library's own sparse vectors; imports, loading the model and a warm-up of 8 documents are outside. Peak memory is that
of the whole process. Pyserini needs up to 11 GB for documents of 256 tokens.

--device cuda encodes on a GPU, and shows its peak memory; --documents should be some thousands. "With all logits" is
ours with a head that makes the tensor (texts, tokens, vocabulary).

--openvino also measures OpenVINO, in its default precision and in int8 (static, by nncf with SmoothQuant, calibrated
with other documents of the collection). It gets what was fastest: max pooling as a part of its graph, and as many
requests of two documents of similar length at a time as it asks for.

Same vectors: both are quantized with Pyserini's own round(w / 5 * 256), and the share of the entries of either that are
the same integer in ours (float32) and Pyserini's is printed.

--random encodes with a random checkpoint of DistilBERT's (66M), BERT's (110M) or ModernBERT-base's (150M) architecture
and size, with the tokenizer of the encoder, filled up to the vocabulary, and a decoder bias with which a vector has
some 200 entries. The last table compares the operations per second of encoding, those of linear layers
counted, with those of one large product in the same precision.

--profile shows instead which operators ours in int8 spends its time in, with one thread.

--quality also encodes the whole collection in each precision, and with OpenVINO, and compares nDCG@10 of exact dot
products of the float vectors, with and without IDF; queries are SPLADE's in float32.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import harness

WARM_UP = 8
GPU_TIMES = 3  # encodes in one process, most of whose time is its start
ACTIVE = 200  # entries per vector of a random checkpoint
OPENVINO = "OpenVINO, int8"
CALIBRATION = 100  # documents that OpenVINO's int8 is calibrated with
OPENVINO_BATCH = 2
SHOWN = 10  # operators of a profile


def write_texts(collection: str, encoder: str, documents: int | None, output: str) -> harness.Result:
    """Write the texts of the first documents of a collection as a JSON list; also finds the encoder's checkpoint."""
    from itertools import islice

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder

    config = load_encoder(encoder)
    texts = [document.contents for document in islice(harness.opened(collection)[0].documents(), documents)]
    Path(output).write_text(json.dumps(texts))
    return {"checkpoint": str(checkpoint_folder(config)), "length": config.max_document_length}


def timed(encode: Callable[[list[str]], Any], texts: str) -> tuple[Any, dict[str, Any]]:
    """What `encode` gives for the texts in a file, in the memory of the host, the seconds that it takes, and the peak
    memory of a GPU in bytes; there, the seconds are the median of GPU_TIMES."""
    import torch

    read = json.loads(Path(texts).read_text())
    encode(read[:WARM_UP])
    on_gpu, seconds = torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0, []
    for _ in range(GPU_TIMES if on_gpu else 1):
        start = time.perf_counter()
        vectors = encode(read)
        seconds.append(time.perf_counter() - start)
    result = {"seconds": median(seconds), "documents": len(read)}
    return vectors, result | ({"gpu": torch.cuda.max_memory_allocated()} if on_gpu else {})


def random_checkpoint(size: str, encoder: str, output: str) -> harness.Result:
    """Write a random masked language model with the tokenizer of an encoder."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, DistilBertConfig, ModernBertConfig

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint_folder(load_encoder(encoder))))
    names = ("pad_token_id", "cls_token_id", "sep_token_id")
    kind = {"66M": DistilBertConfig, "110M": BertConfig, "150M": ModernBertConfig}[size]
    config = kind(bos_token_id=None, eos_token_id=None, **{name: getattr(tokenizer, name) for name in names})
    model = AutoModelForMaskedLM.from_config(config).eval()
    with torch.inference_mode():
        largest = model(input_ids=torch.randint(len(tokenizer), (1, 128))).logits[0].amax(0)
    torch.nn.init.constant_(model.get_output_embeddings().bias, -float(largest.sort().values[-ACTIVE]))
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    file = Path(output, "tokenizer.json")
    settings = json.loads(file.read_text())
    settings["model"]["vocab"] |= {f"[more{id}]": id for id in range(len(tokenizer), config.vocab_size)}
    file.write_text(json.dumps(settings))
    return {}


def products(checkpoint: str, device: str) -> harness.Result:
    """Operations per second of one large product in each precision, and a model's operations per token."""
    import torch
    from torch.nn.functional import linear

    from cai_pyserini.core.errors import CaiError
    from cai_pyserini.models.device import resolve_precision
    from cai_pyserini.models.int8 import Int8Linear, quantize
    from cai_pyserini.models.splade import load_masked_lm

    model, _ = load_masked_lm(Path(checkpoint))
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    on_gpu = device == "cuda"
    rows = 1 << 16 if on_gpu else 1024 * torch.get_num_threads()
    x, weight = torch.randn(rows, 768, device=device), torch.randn(3072, 768, device=device)
    operands = x.bfloat16(), weight.bfloat16()
    calls: dict[str, Callable[[], Any]] = {
        "float32": lambda: linear(x, weight),
        "bfloat16": lambda: linear(*operands),
    }
    try:
        resolve_precision("int8", torch.device(device))
        quantized, layer = quantize(x, by_token=False), Int8Linear(weight, None, torch.bfloat16)
        calls["int8"] = lambda: layer.product(quantized)
    except CaiError:
        pass
    speeds = {}
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    for name, call in calls.items():
        call()
        wait()
        start = time.perf_counter()
        for _ in range(10):
            call()
        wait()
        speeds[name] = 10 * 2 * x.shape[0] * weight.numel() / (time.perf_counter() - start)
    return {"speeds": speeds, "per_token": 2 * weights}


def all_logits(hidden: Any, mask: Any, weight: Any, bias: Any) -> Any:
    """The largest logits, like models.head.max_logits, of all logits."""
    from torch.nn.functional import linear

    return linear(hidden.to(weight.dtype), weight, bias).masked_fill(~mask[:, :, None], -1).amax(1).float()


def ours(
    texts: str, checkpoint: str, length: int, device: str, precision: str, output: str, head: str = ""
) -> harness.Result:
    """Splade.encode; its vectors are written to `output` as Pyserini quantizes them."""
    import numpy as np
    from scipy.sparse import save_npz

    from cai_pyserini.models import splade as module

    if head:
        module.max_logits = all_logits
    splade = module.Splade(Path(checkpoint), device, precision)
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


def profile(texts: str, checkpoint: str, length: int, device: str) -> harness.Result:
    """The share of the time of each operator while ours encodes in int8, largest first."""
    import torch
    from torch.profiler import ProfilerActivity

    from cai_pyserini.models.splade import Splade

    torch.set_num_threads(1)
    splade, read = Splade(Path(checkpoint), device, "int8"), json.loads(Path(texts).read_text())
    splade.encode(read[:WARM_UP], length)
    tokens = splade.token_ids(read, length)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in splade.encode_batches(tokens, None, lambda count: None):  # in this thread, unlike `encode`
            pass
    events = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return {"shares": [(event.key, event.self_cpu_time_total / total) for event in events[:SHOWN]]}


def pyserini(texts: str, checkpoint: str, length: int, device: str, batch: int, output: str) -> harness.Result:
    """SpladeDocumentEncoder, in batches in the collection's order, as `python -m pyserini.encode` does it."""
    from itertools import batched

    from scipy.sparse import csr_matrix, save_npz

    from cai_pyserini.plugin import hook

    hook.register()
    from pyserini.encode import SpladeDocumentEncoder

    model = SpladeDocumentEncoder(checkpoint, device=device)

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
    texts: str, checkpoint: str, length: int, device: str, dtype: str, batch: int = 32
) -> harness.Result:
    """SparseEncoder, which makes a masked language model and SpladePooling of the checkpoint."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(checkpoint, device=device, model_kwargs={"dtype": dtype})
    model.max_seq_length = length
    return timed(partial(model.encode, batch_size=batch, save_to_cpu=True), texts)[1]


def inputs_of(checkpoint: str, length: int) -> Callable[[list[str]], dict[str, Any]]:
    """The function that makes a model's inputs, padded, of texts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    names = ("input_ids", "attention_mask")

    def inputs(texts: list[str]) -> dict[str, Any]:
        found = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        return {name: found[name] for name in names}

    return inputs


def export_openvino(collection: str, checkpoint: str, length: int, skip: int, output: str) -> harness.Result:
    """Write OpenVINO's model of SPLADE, output/OpenVINO.xml, and the same in int8."""
    from itertools import islice

    import nncf
    import openvino
    import torch
    from transformers import AutoModelForMaskedLM

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForMaskedLM.from_pretrained(checkpoint, dtype=torch.float32)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
            return torch.log1p(torch.relu(logits) * attention_mask[:, :, None]).amax(1)

    documents = islice(harness.opened(collection)[0].documents(), skip, skip + CALIBRATION)
    texts = [document.contents for document in documents]
    inputs = inputs_of(checkpoint, length)
    shapes = [(name, [-1, -1], openvino.Type.i64) for name in ("input_ids", "attention_mask")]
    model = openvino.convert_model(Pooled().eval(), example_input=inputs([texts[0], "short"]), input=shapes)
    openvino.save_model(model, Path(output, "OpenVINO.xml"), compress_to_fp16=False)
    data = nncf.Dataset([{name: part.numpy() for name, part in inputs([text]).items()} for text in texts])
    quantized = nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATION)
    openvino.save_model(quantized, Path(output, f"{OPENVINO}.xml"))
    return {"versions": [f"openvino {openvino.__version__}", f"nncf {nncf.__version__}"]}


def openvino(texts: str, checkpoint: str, length: int, model: str, output: str | None = None) -> harness.Result:
    """The vectors of OpenVINO's model, written to `output` if that is given."""
    import threading
    from concurrent.futures import ThreadPoolExecutor
    from itertools import batched

    import numpy as np
    import openvino
    from scipy.sparse import csr_matrix, save_npz, vstack

    compiled = openvino.Core().compile_model(model, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    inputs, own = inputs_of(checkpoint, length), threading.local()

    def one(texts: tuple[str, ...]) -> Any:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        tensors = {name: tensor.numpy() for name, tensor in inputs(list(texts)).items()}
        return csr_matrix(own.request.infer(tensors)[0])

    def encode(texts: list[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        batches = batched([texts[i] for i in order], OPENVINO_BATCH)
        with ThreadPoolExecutor(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) as pool:
            return vstack(list(pool.map(one, batches)), format="csr")[np.argsort(order)]

    vectors, result = timed(encode, texts)
    if output:
        save_npz(output, vectors)
    return result


def agreement(first: str, second: str) -> harness.Result:
    """The share of the entries of either of two matrices that are the same in both."""
    from scipy.sparse import load_npz

    a, b = load_npz(first), load_npz(second)
    either = ((a != 0) + (b != 0)).nnz
    return {"same": 1 - (a != b).nnz / either, "entries": either}


def ndcg(collection: str, encoder: str, folder: str, precisions: list[str], others: dict[str, str]) -> harness.Result:
    """nDCG@10 of exact dot products, without and with IDF, for each precision of the documents, and other vectors."""
    import numpy as np
    from scipy.sparse import load_npz, vstack

    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.models.encoder import EncoderModel
    from cai_pyserini.models.idf import Idf
    from cai_pyserini.runs.measures import mean, measure
    from cai_pyserini.runs.trec import removes_query, run_of, without_query
    from cai_pyserini.vectors.encode import encode
    from cai_pyserini.vectors.quantization import weighted
    from cai_pyserini.vectors.queries import encode_queries
    from cai_pyserini.vectors.shards import Vectors

    config, index_config = load_encoder(encoder), load_index_config(collection)
    opened = open_collection(index_config)
    topics, qrels = opened.topics(index_config.split), opened.qrels(index_config.split)
    loaded = EncoderModel(config, "cpu")
    queries = encode_queries(loaded, list(topics.values()), "splade")
    contents = (document.contents for document in opened.documents())
    weightings = {"splade": None, "splade-idf": Idf.count(contents, loaded.tokenizer).weights()}
    remove_query = removes_query(index_config.remove_query, qrels)
    vectors = {name: load_npz(file) for name, file in others.items()}
    ids = np.array([document.id for document in opened.documents()])
    for precision in precisions:
        shards = list(Vectors(encode(opened, EncoderModel(config, "cpu", precision), Path(folder, precision))))
        vectors[precision] = vstack([shard.vectors for shard in shards], format="csr")
    scores: dict[str, Any] = {}
    for vectors_name, matrix in vectors.items():
        for name, weights in weightings.items():
            documents = weighted(matrix, weights).T.tocsr()
            hits = {}
            for number, query in enumerate(topics):
                products = (queries[number] @ documents).toarray()[0]
                best = np.argsort(-products, kind="stable")[:11]  # one more than counts: the query may be a document
                hits[query] = [(str(ids[i]), float(products[i])) for i in best if products[i] > 0]
            run = without_query(run_of(hits)) if remove_query else run_of(hits)
            scores.setdefault(name, {})[vectors_name] = mean(measure(qrels, run, ["nDCG@10"])["nDCG@10"])
    return {"scores": scores}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--documents", type=int, default=512, help="how many are encoded")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quality", action="store_true", help="also nDCG@10 of each precision")
    parser.add_argument("--openvino", action="store_true", help="also OpenVINO")
    parser.add_argument(
        "--random", choices=("66M", "110M", "150M"), help="encode with a random checkpoint of this size"
    )
    parser.add_argument("--profile", action="store_true", help="only: where int8 spends its time")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 32], help="of Pyserini")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        texts, exported, mine, stock = (f"{folder}/{name}" for name in ("texts", "splade", "ours.npz", "pyserini.npz"))
        if args.random:
            harness.fresh(random_checkpoint, size=args.random, encoder=args.encoder, output=f"{folder}/random")
            args.encoder = f"{folder}/random"
        collection = {"collection": args.collection, "encoder": args.encoder}
        written = harness.fresh(write_texts, **collection, documents=args.documents, output=texts)
        checkpoint = written["checkpoint"]
        settings = {"texts": texts, "length": written["length"], "device": args.device}
        if args.profile:
            shares = harness.fresh(profile, **settings, checkpoint=checkpoint)["shares"]
            return harness.show("int8", ("operator", "share"), [(name, f"{share:.1%}") for name, share in shares])
        # Pyserini loads no safetensors.
        harness.stage("plugin", "export-encoder", encoder=args.encoder, output=exported)
        plain = harness.fresh(products, checkpoint=checkpoint, device=args.device)
        speeds = plain["speeds"]
        own = partial(harness.fresh, ours, **settings, checkpoint=checkpoint)
        theirs = partial(harness.fresh, pyserini, **settings, checkpoint=exported, output=stock)
        others = partial(harness.fresh, sentence_transformers, **settings, checkpoint=checkpoint)
        peers = {
            "ours": partial(own, precision="auto", output=f"{folder}/other.npz"),
            "ours, float32": partial(own, precision="float32", output=mine),
            "ours, int8": partial(own, precision="int8", output=f"{folder}/other.npz"),
            **{f"Pyserini, batches of {size}": partial(theirs, batch=size) for size in args.batches},
            "sentence-transformers": partial(others, dtype="float32"),
            "sentence-transformers, bfloat16": partial(others, dtype="bfloat16"),
        }
        if "int8" not in speeds:
            del peers["ours, int8"]
        if args.device == "cuda":
            peers["ours, with all logits"] = partial(peers["ours"], head="all logits")
            peers["sentence-transformers, bfloat16, batches of 256"] = partial(others, dtype="bfloat16", batch=256)
        if args.openvino:
            made = {"collection": args.collection, "checkpoint": checkpoint, "length": written["length"]}
            exporting = harness.fresh(export_openvino, **made, skip=args.documents, output=folder)
            print(*exporting["versions"])
            other = partial(harness.fresh, openvino, checkpoint=checkpoint, length=written["length"])
            for name in ("OpenVINO", OPENVINO):
                peers[name] = partial(other, texts=texts, model=f"{folder}/{name}.xml")
        results = harness.rounds(args.repeats, peers)
        same = harness.fresh(agreement, first=mine, second=stock)
        scores: dict[str, dict[str, float]] = {}
        if args.quality:
            encoded = {}
            if args.openvino:
                everything, encoded[OPENVINO] = f"{folder}/everything", f"{folder}/openvino.npz"
                harness.fresh(write_texts, **collection, documents=None, output=everything)
                other(texts=everything, model=f"{folder}/{OPENVINO}.xml", output=encoded[OPENVINO])
            quality = partial(harness.fresh, ndcg, **collection, folder=folder, precisions=list(speeds))
            scores = quality(others=encoded)["scores"]
    first = results["ours"][0]
    best = results["ours, int8" if args.random and "int8" in speeds else "ours"]
    rows = []
    of_gpu = " of the GPU" if args.device == "cuda" else ""
    for name, result in results.items():
        seconds, gflops = harness.middle(result), ("", "")
        if (precision := result[0].get("precision")) in speeds:
            gflops = f"{plain['per_token'] * result[0]['tokens'] / seconds / 1e9:.0f}", f"{speeds[precision] / 1e9:.0f}"
        speed = f"{first['documents'] / seconds:.1f}", harness.times(result, best)
        rows.append(
            (
                name,
                *speed,
                f"{max(part['gpu'] for part in result) / 1e9:.2f}" if of_gpu else harness.gigabytes(result),
                *gflops,
            )
        )
    size = f" with {args.random} parameters" if args.random else ""
    title = f"Encoding {first['documents']} documents of {Path(args.collection).name}{size}, medians of {args.repeats}"
    header = (
        "",
        "documents/s",
        "speed-up of ours",
        f"peak memory{of_gpu}, GB",
        "GFLOP/s of linear layers",
        "of one product",
    )
    harness.show(f"{title} (ours: {first['precision']})", header, rows)
    print(f"the same quantized entries as Pyserini's: {same['same']:.3%} of {same['entries']:,}")
    for name, by in scores.items():
        print(f"nDCG@10 of {name}:", ", ".join(f"{vectors} {value:.4f}" for vectors, value in by.items()))


if __name__ == "__main__":
    main()
