"""Passages that know what their document is about.

The first passage of a document says what it is about, the others what is inside. A passage i gets the vector

    p_i' = (p_i + w p_1) / (1 + w)

of which one search finds both: a document's score, that of its best passage, is max_i q·p_i + w q·p_1, up to a factor.
docs/experiments/long-documents.md has the reason for w.
"""

from collections.abc import Iterable

import numpy as np

from cai_pyserini.core.config import PASSAGE
from cai_pyserini.models.rows import stacked
from cai_pyserini.vectors.shards import Shard

FIRST = f"{PASSAGE}0"  # the end of its id


def with_first_passage(shard: Shard, before: Iterable[Shard], weight: float) -> Shard:
    """A shard of passages in which the first passage of each document has this `weight`. The passages of a document
    follow one another; if its first one is not in this shard, it is in one of those `before`, the nearest first."""
    if not weight or not shard.ids:
        return shard
    starts = _starts(shard)
    first, documents = shard.vectors[starts], np.searchsorted(starts, np.arange(len(shard.ids)), side="right") - 1
    if documents[0] < 0:
        last = next(part.vectors[rows[-1:]] for part in before if len(rows := _starts(part)))
        first, documents = stacked([last, first]), documents + 1
    mixed = (shard.vectors + first[documents] * np.float32(weight)) * np.float32(1 / (1 + weight))
    return Shard(shard.ids, mixed)


def _starts(shard: Shard) -> np.ndarray:
    """The rows of first passages, in their order."""
    return np.flatnonzero([id.endswith(FIRST) for id in shard.ids])
