"""How much disk the steps of a run will take, about, and how much is free.

The rates are those of runs on hpo, whose texts are short, and on manual pages in passages, with stored documents.
"""

import logging
from collections.abc import Iterator, Sequence
from shutil import disk_usage
from typing import NamedTuple

from cai_pyserini.core.steps import Step
from cai_pyserini.core.store import StorePath
from cai_pyserini.experiments.run_folder import RunFolder

logger = logging.getLogger(__name__)
ANNOUNCED = 1e9  # bytes; of less, nothing is said
READ = 1_200  # characters of a text that an encoder reads by default
LINE = 60  # bytes of a hit in a run


class Size(NamedTuple):
    """Bytes that a kind of step writes."""

    per_document: float = 0.0
    per_read: float = 0.0  # character that an encoder reads
    per_character: float = 0.0


SIZES = {  # by the beginning of a step's name; the first that fits
    "encode dense-documents": Size(1_600),
    "encode documents": Size(per_read=2.5),
    "smooth": Size(per_read=2.5),
    "near": Size(400),
    "expand": Size(1_200),
    "words": Size(per_character=1.0),
    "impacts joint": Size(per_read=9.0, per_character=3.5),
    "impacts bm25": Size(per_character=3.5),
    "impacts": Size(per_read=5.0),
    "index joint": Size(per_read=1.2, per_character=0.9),
    "index dense": Size(1_500),
    "index bm25": Size(per_character=1.1),
    "index": Size(per_read=1.2),
}
FORWARD = 1.5  # bytes of a forward index per character that an encoder reads


def needed_bytes(run: RunFolder, steps: Sequence[Step]) -> float:
    """The bytes that steps of a run will write, about."""
    documents, read, characters = run.sample.documents, run.sample.characters(READ), run.sample.characters()
    has_forward = run.experiment.search == "fast" or run.experiment.encoder.forward_index
    total = lines = 0.0
    for step in steps:
        kind = next((kind for kind in SIZES if step.name.startswith(kind)), None)
        if kind:
            size = SIZES[kind]
            total += size.per_document * documents + size.per_read * read + size.per_character * characters
            if has_forward and kind in ("index", "index joint"):
                total += FORWARD * read
        elif step.name.startswith(("search ", "fuse ", "rerank ")):
            lines += len(run.topics) * min(run.experiment.collection.hits, documents)
    return total + LINE * lines


def describe_space(run: RunFolder, steps: Sequence[Step]) -> Iterator[str]:
    """Yield a line that says how much disk steps will take, if it is much; warn if less is free."""
    if isinstance(run.root, StorePath) or (needed := needed_bytes(run, steps)) < ANNOUNCED:
        return
    free = disk_usage(next(path for path in (run.root, *run.root.absolute().parents) if path.exists())).free
    yield f"about {needed / 1e9:,.0f} GB of disk will be needed (estimated); {free / 1e9:,.0f} GB are free"
    if needed > free:
        logger.warning("the disk of %s may be too small: free some space, or run fewer systems", run.root)
