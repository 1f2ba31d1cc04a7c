"""Reranking on a CPU with a model of BGE-reranker-base's size (XLM-RoBERTa, 278M parameters, random weights): pairs per
second of ours and of sentence-transformers' CrossEncoder, and the time that is said before it starts, against the time
that it takes.

Every peer scores the same pairs of queries and documents of a collection, 512 tokens at most, in a process of its own.
Quality is not measured: weights are random. Scores in float32 agree with the library's, by a test.
"""

import json
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

DEVICE = "cpu"


def write_pairs(collection: str, encoder: str, pairs: int, output: str) -> harness.Result:
    """Write a random reranker with the tokenizer of an encoder, and pairs of each query with consecutive documents."""
    from itertools import cycle, islice

    import torch
    from transformers import AutoTokenizer, XLMRobertaConfig, XLMRobertaForSequenceClassification

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint_folder(load_encoder(encoder))))
    size = {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 2, "num_labels": 1}
    model = XLMRobertaForSequenceClassification(XLMRobertaConfig(**size, pad_token_id=tokenizer.pad_token_id))
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    found, topics, _ = harness.opened(collection)
    documents = [document.contents for document in islice(found.documents(), pairs)]
    queries = list(islice(cycle(topics.values()), pairs))
    Path(output, "pairs.json").write_text(json.dumps([queries, documents]))
    return {"parameters": sum(weights.numel() for weights in model.parameters())}


def ours(folder: str, precision: str) -> harness.Result:
    """CrossEncoder.score, and the seconds that it is expected to take."""
    from cai_pyserini.models.cross_encoder import CrossEncoder

    queries, documents = json.loads(Path(folder, "pairs.json").read_text())
    model = CrossEncoder(Path(folder), DEVICE, precision)
    expected = model.seconds_per_pair(queries, documents) * len(queries)
    start = time.perf_counter()
    model.score(queries, documents)
    return {"seconds": time.perf_counter() - start, "expected": expected, "precision": model.transformer.precision}


def sentence_transformers(folder: str) -> harness.Result:
    """CrossEncoder.predict, in batches of 32."""
    from sentence_transformers import CrossEncoder

    pairs = list(zip(*json.loads(Path(folder, "pairs.json").read_text()), strict=True))
    model = CrossEncoder(folder, device=DEVICE, max_length=512)
    model.predict(pairs[:2])
    start = time.perf_counter()
    model.predict(pairs)
    return {"seconds": time.perf_counter() - start}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=128, help="how many are scored")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        given = {"collection": args.collection, "encoder": args.encoder, "pairs": args.pairs}
        size = harness.fresh(write_pairs, **given, output=folder)["parameters"]
        peers = {
            "ours": partial(harness.fresh, ours, folder=folder, precision="auto"),
            "ours, float32": partial(harness.fresh, ours, folder=folder, precision="float32"),
            "ours, int8": partial(harness.fresh, ours, folder=folder, precision="int8"),
            "sentence-transformers": partial(harness.fresh, sentence_transformers, folder=folder),
        }
        results = harness.rounds(args.repeats, peers)
    rows = []
    for name, result in results.items():
        expected = (
            f"{harness.middle(result, 'expected') / harness.middle(result):.2f}" if "expected" in result[0] else ""
        )
        speed = f"{args.pairs / harness.middle(result):.1f}", harness.times(result, results["ours, int8"])
        rows.append((name, *speed, harness.gigabytes(result), expected))
    header = ("", "pairs/s", "int8 is faster by", "peak memory, GB", "expected time / time")
    title = f"Reranking {args.pairs} pairs of {Path(args.collection).name}, {size / 1e6:.0f}M parameters"
    precision = results["ours"][0]["precision"]
    harness.show(f"{title}, medians of {args.repeats} (ours: {precision})", header, rows)


if __name__ == "__main__":
    main()
