"""Training files: JSONL of {"query", "positive", "negatives": [...], "margins": [...]}.

A margin is the teacher's score of the positive less that of the negative; labelled pairs have none. One negative may be
written as "negative" and "margin".
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import Any

from cai_pyserini.cli import CaiError
from cai_pyserini.collection import lines
from cai_pyserini.trainer.corpus import record


def read(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of a training file, each with its place, for messages, and `query`, `positive`, `negatives` and
    `margins`, which may be empty.

    Raises CaiError for a line that is none.
    """
    for number, line in lines(Path(path)):
        where = f"{path}:{number}"
        data = record(line, where, ("query", "positive"))
        negatives, margins = _negatives(data, where)
        texts = {"query": data["query"], "positive": data["positive"]}
        yield where, texts | {"negatives": negatives, "margins": margins}


def examples(path: str, margins: bool, negatives: int) -> Iterator[dict[str, Any]]:
    """The examples of a training file, each with `negatives` negatives: a line with more becomes several examples.

    Raises CaiError for a line that is none, has too few negatives, or lacks the margins that are wanted.
    """
    for where, line in read(path):
        texts, scores = line["negatives"], line["margins"]
        if margins and len(scores) != len(texts):
            raise CaiError(f"{where}: {len(texts)} negatives but {len(scores)} margins; Margin-MSE needs one for each")
        if len(texts) < negatives:
            raise CaiError(f"{where}: {len(texts)} negatives, fewer than the {negatives} of --negatives")
        for start in range(0, len(texts) - negatives + 1, negatives) if negatives else (0,):
            part = slice(start, start + negatives)
            yield line | {"negatives": texts[part], "margins": scores[part] if margins else []}


def _negatives(data: dict[str, Any], where: str) -> tuple[list[str], list[float]]:
    texts = data.get("negatives", [data["negative"]] if "negative" in data else [])
    scores = data.get("margins", [data["margin"]] if "margin" in data else [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CaiError(f"{where}: negatives must be a list of strings")
    if not isinstance(scores, list) or not all(isinstance(s, int | float) and not isinstance(s, bool) for s in scores):
        raise CaiError(f"{where}: margins must be a list of numbers")
    return texts, [float(score) for score in scores]


def _name(text: str) -> int:
    """A number of 63 bits for a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


class Collator:
    """Token ids of the queries, and of the documents: all positives, all first negatives, and so on; the margins, and
    names of the documents, example by example.

    The texts of a side come longest first, in parts of `part` texts padded to their longest, with `places`, where each
    text of the side is in the parts. Padded lengths are multiples of 32: for every new shape kernels are made anew.
    """

    def __init__(self, tokenizer: Any, max_query_length: int, max_document_length: int, part: int):
        self._tokenizer = tokenizer
        self._lengths = max_query_length, max_document_length
        self._part = part

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        import torch

        negatives = zip(*[e["negatives"] for e in examples], strict=True)
        documents = [e["positive"] for e in examples] + [text for each in negatives for text in each]
        return {
            "queries": self._tokenize([e["query"] for e in examples], self._lengths[0]),
            "documents": self._tokenize(documents, self._lengths[1]),
            "margins": torch.tensor([e["margins"] for e in examples]),
            "names": torch.tensor([[_name(text) for text in (e["positive"], *e["negatives"])] for e in examples]),
        }

    def _tokenize(self, texts: list[str], max_length: int) -> dict[str, Any]:
        import torch

        ids = self._tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        parts = [
            self._tokenizer.pad({"input_ids": [ids[i] for i in part]}, pad_to_multiple_of=32, return_tensors="pt")
            for part in batched(order, self._part)
        ]
        return {"parts": [dict(part) for part in parts], "places": torch.tensor(order).argsort()}
