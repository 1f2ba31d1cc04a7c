"""The check step: read everything once, to find broken records before any long work."""

import json
import logging
import math
from collections.abc import Callable, Sequence
from itertools import batched, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import MIN_LOST
from cai_pyserini.core.terminal import progress

SAMPLE_SIZE = 50_000  # documents tokenized to measure lengths; in larger collections, about so many

logger = logging.getLogger(__name__)


class Reading(NamedTuple):
    """How an encoder tokenizes and truncates documents."""

    lengths: Callable[[Sequence[str]], Sequence[int]]  # tokens per text, including special tokens
    max_length: int  # tokens kept of a document
    tokenizer: str  # digest
    remedy: str = "choose shorter ones"  # for long documents


def check(collection: Collection, split: str, output: Path, reading: Reading | None = None) -> Path:
    """Write the counts of a collection as JSON. Raises CaiError for the first broken record.

    With `reading`, `cut` is the number of documents (or passages) that the encoder truncates, and `lost` the fraction
    of all tokens that it drops, of which a warning tells from MIN_LOST on. Both are estimated from about SAMPLE_SIZE
    documents at most.
    """
    parts = {part: collection.fingerprint(part) for part in ("documents", "queries", split)}
    inputs = {"parts": parts, "tokenizer": reading and reading.tokenizer}
    length = reading and reading.max_length
    recipe = artifact.recipe("beir", inputs, "check", result="check", max_length=length, strict=collection.strict)

    def write(path: Path) -> artifact.Stats:
        counts: artifact.Stats = {**collection.check(split)}
        if reading:
            counts |= _truncated(collection, reading, counts)
        path.write_text(json.dumps(counts) + "\n", encoding="utf-8")
        return counts

    artifact.make(output, recipe, write, folder=False)
    if "left_out_judgments" not in artifact.require(output, "beir").stats:
        collection.set_missing(split, frozenset())  # saves another pass over the documents
    return output


def _truncated(collection: Collection, reading: Reading, counts: artifact.Stats) -> artifact.Stats:
    unit = "passages" if "passages" in counts else "documents"
    step = math.ceil(counts[unit] / SAMPLE_SIZE)
    total = cut = lost = 0
    sample = islice(progress(collection.documents(), collection.size, "lengths"), 0, None, step)
    for documents in batched(sample, 1024):
        lengths = np.array(reading.lengths([document.contents for document in documents]))
        excess = np.maximum(lengths - reading.max_length, 0)
        total += int(lengths.sum())
        cut += int(np.count_nonzero(excess))
        lost += int(excess.sum())
    cut = min(cut * step, counts[unit])
    if lost >= MIN_LOST * total:
        about = "about " if step > 1 else ""
        remedy = "choose shorter ones" if unit == "passages" else reading.remedy
        documents_cut = f"{about}{cut:,} of {counts[unit]:,} {unit} ({100 * cut / counts[unit]:.0f}%)"
        text_lost = f"{100 * lost / total:.1f}% of the text is lost: {remedy}"
        logger.warning("%s are cut off after %d word pieces; %s", documents_cut, reading.max_length, text_lost)
    return {"cut": cut, "lost": lost / total}
