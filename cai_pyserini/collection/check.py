"""The check step: read everything once, so that a broken record is found before any long work."""

import json
import logging
import math
from collections.abc import Callable, Sequence
from itertools import batched, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cai_pyserini.collection.contract import Collection
from cai_pyserini.core import artifact
from cai_pyserini.core.terminal import progress

MEASURED = 50_000  # documents whose length is measured; of larger collections it is an estimate
REMEDIES = {"documents": "the encoder's setting overlap, or --passages, keeps it", "passages": "choose shorter ones"}

logger = logging.getLogger(__name__)


class Reading(NamedTuple):
    """How an encoder reads documents: no more than their first tokens."""

    lengths: Callable[[Sequence[str]], Sequence[int]]  # the number of tokens of each text, special tokens included
    max_length: int  # tokens read of a document
    tokenizer: str  # a digest


def check(collection: Collection, split: str, output: Path, reading: Reading | None = None) -> Path:
    """Write the counts of a collection as JSON. Raises CaiError for the first broken record.

    With `reading`, `cut` is the number of documents (or passages) that have more tokens than are read, and `lost` the
    fraction of all tokens that are not read; a warning says so. Of more than MEASURED documents, as many that are
    spread evenly stand for all.
    """
    parts = {part: collection.fingerprint(part) for part in ("documents", "queries", split)}
    inputs = {"parts": parts, "tokenizer": reading and reading.tokenizer}
    length = reading and reading.max_length
    recipe = artifact.recipe("beir", inputs, result="check", max_length=length, strict=collection.strict)

    def write(path: Path) -> artifact.Stats:
        counts: artifact.Stats = {**collection.check(split)}
        if reading:
            counts |= _cut(collection, reading, counts)
        path.write_text(json.dumps(counts) + "\n", encoding="utf-8")
        return counts

    artifact.make(output, recipe, write, folder=False)
    if "left_out_judgments" not in artifact.require(output, "beir").stats:
        collection.set_missing(split, frozenset())  # which saves reading the documents again
    return output


def _cut(collection: Collection, reading: Reading, counts: artifact.Stats) -> artifact.Stats:
    unit = "passages" if "passages" in counts else "documents"
    step = math.ceil(counts[unit] / MEASURED)
    total = cut = lost = 0
    every = islice(progress(collection.documents(), collection.size, "lengths"), 0, None, step)
    for documents in batched(every, 1024):
        lengths = np.array(reading.lengths([document.contents for document in documents]))
        excess = np.maximum(lengths - reading.max_length, 0)
        total += int(lengths.sum())
        cut += int(np.count_nonzero(excess))
        lost += int(excess.sum())
    cut = min(cut * step, counts[unit])
    if cut:
        part = f"{'about ' * (step > 1)}{cut:,} of {counts[unit]:,} {unit} ({100 * cut / counts[unit]:.0f}%)"
        lost_part = f"{100 * lost / total:.1f}% of the text is lost: {REMEDIES[unit]}"
        logger.warning("%s are cut off after %d word pieces; %s", part, reading.max_length, lost_part)
    return {"cut": cut, "lost": lost / total}
