"""Training files, and the batches made of them.

A training file is JSONL of {"query", "positive", "negatives": [...], "margins": [...]}. A margin is the teacher's score
of the positive less that of the negative; labelled pairs have none. A single negative can be written as "negative" and
"margin".
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import Any

import torch

from cai_pyserini.core import jsonl
from cai_pyserini.core.errors import CaiError

Example = dict[str, Any]  # query, positive: str; negatives: list[str]; margins: list[float]
PAD_MULTIPLE = 32  # of padded lengths: every new shape costs the compilation of its kernels


def read(path: Path) -> Iterator[tuple[str, Example]]:
    """The lines of a training file, each after its place, `file:line`; negatives and margins can be empty.

    Raises CaiError for a broken line.
    """
    for where, data in jsonl.read(path, ("query", "positive")):
        negatives, margins = _negatives(data, where)
        yield where, {
            "query": data["query"], "positive": data["positive"], "negatives": negatives, "margins": margins
        }  # fmt: skip


def examples(path: Path, margins: bool, negatives: int) -> Iterator[Example]:
    """The examples of a training file with `negatives` negatives each; a line with more becomes several examples.

    Raises CaiError for a broken line, one with too few negatives, and, if `margins` are needed, one without them.
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


def _text_id(text: str) -> int:
    """A hash of 63 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


class Collator:
    """Makes a batch of examples.

    queries, documents   tokenized texts; documents are all positives, then all first negatives, and so on
    margins              float (examples, negatives)
    document_ids         hashes of the documents' texts, int64 (examples, 1 + negatives), the positive first

    The texts of a side are sorted by length, longest first, and padded in chunks of `chunk` texts, which go through the
    model one after the other; `positions` (texts,) says where each text is in the chunks.
    """

    def __init__(self, tokenizer: Any, max_query_length: int, max_document_length: int, chunk: int):
        self._tokenizer = tokenizer
        self._lengths = max_query_length, max_document_length
        self._chunk = chunk

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        negatives = zip(*[e["negatives"] for e in examples], strict=True)
        documents = [e["positive"] for e in examples] + [text for each in negatives for text in each]
        ids = [[_text_id(text) for text in (e["positive"], *e["negatives"])] for e in examples]
        return {
            "queries": self._tokenize([e["query"] for e in examples], self._lengths[0]),
            "documents": self._tokenize(documents, self._lengths[1]),
            "margins": torch.tensor([e["margins"] for e in examples]),
            "document_ids": torch.tensor(ids),
        }

    def _tokenize(self, texts: list[str], max_length: int) -> dict[str, Any]:
        ids = self._tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        chunks = [
            self._tokenizer.pad(
                {"input_ids": [ids[i] for i in chunk]}, pad_to_multiple_of=PAD_MULTIPLE, return_tensors="pt"
            )
            for chunk in batched(order, self._chunk)
        ]
        return {"chunks": [dict(chunk) for chunk in chunks], "positions": torch.tensor(order).argsort()}
