"""Claim: a training step with the pooled head takes at most a fifth of the memory and half the time of one with the
plain head, and its gradients are equal to 1e-5 in float32.

A step encodes documents of a collection with the encoder, forward and backward, FLOPS of the weights as the loss, and
does nothing else. Plain is what the formula says: all logits, log(1 + relu), the maximum over the tokens that are none
of padding. The vocabularies are the encoder's own and one of 72,000 entries, which more rows of the embedding's
distribution make. Each measurement is a process of its own, of which the first step is a warm-up; peak memory is that
of the whole process, libraries included.
"""

import time
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import harness

LARGE = 72_000


def step(
    head: str, collection: str, encoder: str, vocabulary: int, texts: int, steps: int, output: str
) -> harness.Result:
    """The median seconds of a step; the gradients of the last one are written to `output`."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_encoder, load_index_config
    from cai_pyserini.models.checkpoint import checkpoint_folder
    from cai_pyserini.models.head import splade_weights
    from cai_pyserini.models.splade import bypass_decoder, load_masked_lm

    checkpoint = checkpoint_folder(load_encoder(encoder))
    model, _ = load_masked_lm(checkpoint)
    torch.manual_seed(0)
    if vocabulary:
        model.resize_token_embeddings(vocabulary)
    decoder = bypass_decoder(model)
    documents = open_collection(load_index_config(collection)).documents()
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    contents = [document.contents for document in islice(documents, texts)]
    tokens = tokenizer(contents, padding=True, truncation=True, max_length=256, return_tensors="pt")
    mask = tokens["attention_mask"].bool()

    def plain(hidden: torch.Tensor) -> torch.Tensor:
        logits = torch.nn.functional.linear(hidden, decoder.weight, decoder.bias)
        return (torch.log1p(torch.relu(logits)) * mask[:, :, None]).amax(1)

    seconds = []
    for _ in range(1 + steps):
        model.zero_grad()
        start = time.perf_counter()
        hidden = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).logits
        ours = head == "ours"
        weights = splade_weights(hidden, mask, decoder.weight, decoder.bias) if ours else plain(hidden)
        weights.mean(0).square().sum().backward()
        seconds.append(time.perf_counter() - start)
    save_file({name: p.grad for name, p in model.named_parameters() if p.grad is not None}, output)
    shape = f"{mask.shape[0]} documents of {mask.shape[1]} tokens"
    return {"seconds": median(seconds[1:]), "shape": shape, "vocabulary": len(decoder.weight)}


def difference(first: str, second: str) -> dict[str, Any]:
    """The largest difference of two steps' gradients, relative to the largest gradient."""
    from safetensors.torch import load_file

    a, b = load_file(first), load_file(second)
    largest = max(float(gradient.abs().max()) for gradient in b.values())
    return {"difference": max(float((a[name] - b[name]).abs().max()) for name in b) / largest}


def main() -> None:
    parser = harness.parser(__doc__, "head")
    parser.add_argument("--texts", type=int, default=48, help="documents per step")
    parser.add_argument("--steps", type=int, default=3, help="timed steps per process")
    args = parser.parse_args()
    rows, outcomes = [], []
    with TemporaryDirectory() as folder:
        for vocabulary in (0, LARGE):
            settings = {"collection": args.collection, "encoder": args.encoder, "vocabulary": vocabulary}
            settings |= {"texts": args.texts, "steps": args.steps}
            files = {head: str(Path(folder, f"{head}.safetensors")) for head in ("ours", "plain")}
            peers = {
                head: partial(harness.fresh, step, head=head, **settings, output=file) for head, file in files.items()
            }
            results = harness.rounds(args.repeats, peers)
            first = results["ours"][0]
            faster = harness.times(results["plain"], results["ours"])
            smaller = harness.times(results["plain"], results["ours"], "peak")
            for head, result in results.items():
                figures = f"{harness.middle(result, 'seconds'):.2f}", harness.gigabytes(result)
                rows.append((f"{first['vocabulary']:,}", head, *figures))
            apart = harness.fresh(difference, first=files["ours"], second=files["plain"])["difference"]
            of = f"vocabulary of {first['vocabulary']:,}"
            outcomes += [
                (f"at most half the time, {of}", f"{faster:.1f} times as fast", faster >= 2),
                (f"at most a fifth of the memory, {of}", f"{smaller:.1f} times less", smaller >= 5),
                (f"gradients equal to 1e-5, {of}", f"{apart:.1e}", apart <= 1e-5),
            ]
    harness.show(f"A step on {first['shape']}", ("vocabulary", "head", "seconds", "peak memory, GB"), rows)
    print(f"Medians of {args.repeats} repetitions, side by side.\n")
    for outcome in outcomes:
        harness.target(*outcome)


if __name__ == "__main__":
    main()
