"""Training files, and the batches that are made from them.

A training file is JSONL of {"query", "positive", "negatives": [...], "margins": [...], "ids": [...]}. A margin is the
teacher's score of the positive minus that of the negative; labelled pairs have none. The optional ids name the
documents whose passages are the positive and the negatives: no passage of a query's positive document is an in-batch
negative of the query.

An epoch has every line once, with its next negatives: in 30 epochs, a line with 30 negatives is trained with each.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import Any

import torch

from cai_pyserini.core import jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.tokenizer import text_batches

Example = dict[str, Any]  # query, positive: str; negatives: list[str]; margins: list[float]; ids: list[str] or hashes
PAD_MULTIPLE = 32  # lengths are padded to multiples of it; kernels are compiled for every new shape


def read(path: Path) -> Iterator[tuple[str, Example]]:
    """Read the lines of a training file, each with its location `file:line`; negatives and margins can be empty. Raises
    CaiError for a broken line."""
    for where, data in jsonl.read(path, ("query", "positive")):
        negatives, margins, ids = (data.get(name, []) for name in ("negatives", "margins", "ids"))
        for name, values in (("negatives", negatives), ("ids", ids)):
            if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
                raise CaiError(f"{where}: {name} must be a list of strings")
        if not isinstance(margins, list) or not all(type(m) in (int, float) and math.isfinite(m) for m in margins):
            raise CaiError(f"{where}: margins must be a list of finite numbers")
        if ids and len(ids) != 1 + len(negatives):
            raise CaiError(f"{where}: {len(ids)} ids; give one for the positive and one for each negative, or none")
        example = {"query": data["query"], "positive": data["positive"]} | ({"ids": ids} if ids else {})
        yield where, example | {"negatives": negatives, "margins": [float(margin) for margin in margins]}


def examples(path: Path, margins: bool, negatives: int) -> Iterator[Example]:
    """Read the lines of a training file for training with `negatives` negatives at a time, and with `margins` or
    without. Their ids are hashes, of the texts if the file has no ids.

    Raises CaiError for a broken line, for one with too few negatives or margins, and for an empty file.
    """
    line = None
    for where, line in read(path):
        texts, scores = line["negatives"], line["margins"]
        if margins and len(scores) != len(texts):
            raise CaiError(f"{where}: {len(texts)} negatives but {len(scores)} margins; Margin-MSE needs one for each")
        if len(texts) < negatives:
            raise CaiError(f"{where}: {len(texts)} negatives, fewer than the {negatives} that an example needs")
        texts = texts if negatives else []
        ids = [text_id(id) for id in line.get("ids", [line["positive"], *texts])[: 1 + len(texts)]]
        yield line | {"negatives": texts, "margins": scores if margins else [], "ids": ids}
    if line is None:
        raise CaiError(f"{path} has no line")


def count(path: Path, margins: bool, negatives: int) -> int:
    """Check all lines of a training file, and count them; raises CaiError as `examples` does."""
    return sum(1 for _ in examples(path, margins, negatives))


def in_epoch(line: Example, number: int, epoch: int, negatives: int) -> Example:
    """The line with this epoch's `negatives` negatives, their margins and ids."""
    texts, margins, ids = line["negatives"], line["margins"], line["ids"]
    positions = [(epoch * negatives + i) % len(texts) for i in range(negatives)]
    chosen = {"negatives": [texts[i] for i in positions], "margins": [margins[i] for i in positions if margins]}
    return line | chosen | {"ids": [ids[0], *(ids[1 + i] for i in positions)]}


def text_id(text: str) -> int:
    """A 63-bit hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


class Collator:
    """Make batches from examples.

    queries, documents   tokenized texts; documents are all positives, then all first negatives, and so on
    margins              float (examples, negatives)
    document_ids         ids and hashes of texts, int64 (examples, 1 + negatives, 2), the positive first

    The texts of a side are sorted by length, longest first, and padded in chunks of `chunk` texts, which the model
    reads one after the other; `positions` (texts,) are the positions of the texts in the chunks.
    """

    def __init__(self, tokenizer: Any, max_query_length: int, max_document_length: int, chunk: int):
        self._tokenizer = tokenizer
        self.max_query_length = max_query_length
        self.max_document_length = max_document_length
        self._chunk = chunk

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        negatives = zip(*[e["negatives"] for e in examples], strict=True)
        texts = [(e["positive"], *e["negatives"]) for e in examples]
        ids = [[*zip(e["ids"], map(text_id, own), strict=True)] for e, own in zip(examples, texts, strict=True)]
        documents = [e["positive"] for e in examples] + [text for each in negatives for text in each]
        return {
            "queries": self.tokenize([e["query"] for e in examples], self.max_query_length),
            "documents": self.tokenize(documents, self.max_document_length),
            "margins": torch.tensor([e["margins"] for e in examples]),
            "document_ids": torch.tensor(ids),
        }

    def tokenize(self, texts: Sequence[str], max_length: int) -> dict[str, Any]:
        """Tokenize the texts of one side of a batch, and pad them in chunks."""
        tokenizer, cut = self._tokenizer, {"truncation": True, "max_length": max_length}
        ids = [ids for part in text_batches(texts, len) for ids in tokenizer(part, **cut)["input_ids"]]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        chunks = []
        for chunk in batched(order, self._chunk):
            rows = {"input_ids": [ids[i] for i in chunk]}
            chunks.append(dict(tokenizer.pad(rows, pad_to_multiple_of=PAD_MULTIPLE, return_tensors="pt")))
        return {"chunks": chunks, "positions": torch.tensor(order).argsort()}
