"""Time and memory of a training step with our pooled SPLADE head and with a plain one, and whether gradients are equal.

A step encodes documents of a collection with the encoder, forward and backward, the FLOPS regularizer as the loss, and
does nothing else. Plain is what the formula says: all logits, log(1 + relu), the maximum over the tokens that are not
padding. The vocabularies are the encoder's own and one of 72,000 entries, which more rows of the embedding's
distribution make. Each measurement is a process of its own, of which the first step is a warm-up; peak memory is that
of the whole process, libraries included.
"""

import time
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import harness

TEXTS = 48  # per step
LARGE = 72_000


def step(head: str, collection: str, encoder: str, vocabulary: int, steps: int, output: str) -> harness.Result:
    """The median seconds of a step; the gradients of the last one are written to `output`."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.checkpoint import checkpoint_folder
    from cai_pyserini.models.head import splade_weights
    from cai_pyserini.models.splade import bypass_decoder, load_masked_lm

    checkpoint = checkpoint_folder(load_encoder(encoder))
    model, _ = load_masked_lm(checkpoint)
    torch.manual_seed(0)
    if vocabulary:
        model.resize_token_embeddings(vocabulary)
    decoder = bypass_decoder(model)
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    contents = [document.contents for document in islice(harness.opened(collection)[0].documents(), TEXTS)]
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


def difference(first: str, second: str) -> harness.Result:
    """The largest difference of two steps' gradients, relative to the largest gradient."""
    from safetensors.torch import load_file

    a, b = load_file(first), load_file(second)
    largest = max(float(gradient.abs().max()) for gradient in b.values())
    return {"difference": max(float((a[name] - b[name]).abs().max()) for name in b) / largest}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--steps", type=int, default=3, help="timed steps per process")
    args = parser.parse_args()
    rows, apart = [], {}
    settings = {"collection": args.collection, "encoder": args.encoder, "steps": args.steps}
    with TemporaryDirectory() as folder:
        files = {head: str(Path(folder, head)) for head in ("ours", "plain")}
        for vocabulary in (0, LARGE):
            one = partial(harness.fresh, step, **settings, vocabulary=vocabulary)
            peers = {head: partial(one, head=head, output=file) for head, file in files.items()}
            results = harness.rounds(args.repeats, peers)
            first = results["ours"][0]
            size = f"{first['vocabulary']:,}"
            for head, result in results.items():
                rows.append((size, head, f"{harness.middle(result):.2f}", harness.gigabytes(result)))
            apart[size] = harness.fresh(difference, first=files["ours"], second=files["plain"])["difference"]
    title = f"A step on {first['shape']}, medians of {args.repeats}"
    harness.show(title, ("vocabulary", "head", "seconds", "peak memory, GB"), rows)
    for size, value in apart.items():
        print(f"largest difference of gradients, vocabulary of {size}: {value:.1e}")


if __name__ == "__main__":
    main()
