"""How long steps will take on this machine, measured on a sample of the collection's documents."""

import random
import time
from collections.abc import Callable, Iterable, Sequence

from cai_pyserini.collection.sample import Reservoir
from cai_pyserini.trainer.examples import Example

SAMPLE = 256  # documents
ENCODED = 48  # of them, to measure encoding
QUERY_WORDS = 8


def sample(texts: Iterable[str], seed: int) -> tuple[int, list[str]]:
    """The number of texts, and a random sample of those that are not blank."""
    kept: Reservoir[str] = Reservoir(SAMPLE, random.Random(seed))
    count = 0
    for text in texts:
        count += 1
        if text.strip():
            kept.add(text)
    return count, kept.items


def as_examples(texts: Sequence[str], negatives: int, seed: int) -> list[Example]:
    """Examples of the size that a training on these documents has: the first words of each as its query."""
    draw = random.Random(seed)
    return [
        {
            "query": " ".join(text.split()[:QUERY_WORDS]),
            "positive": text,
            "negatives": draw.choices(texts, k=negatives),
            "margins": [1.0] * negatives,
        }
        for text in texts
    ]


def seconds_per_text(process: Callable[[list[str]], object], texts: Sequence[str]) -> float:
    """How long `process` takes per text, after a warm-up on a few."""
    measured = list(texts[:ENCODED])
    process(measured[:4])
    start = time.perf_counter()
    process(measured)
    return (time.perf_counter() - start) / len(measured)
