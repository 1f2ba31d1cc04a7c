"""The check stage: everything that is read later is read once before anything is spent on it."""

import json
from pathlib import Path

from cai_pyserini.collection.contract import Collection
from cai_pyserini.core import artifact


def check(collection: Collection, split: str, output: Path) -> Path:
    """Write the counts of a collection as JSON. Raises CaiError for the first broken record."""
    recipe = {
        "stage": "beir",
        "result": "check",
        "inputs": {part: collection.fingerprint(part) for part in ("documents", "queries", split)},
    }

    def write(path: Path) -> artifact.Stats:
        counts = collection.check(split)
        path.write_text(json.dumps(counts) + "\n")
        return counts

    return artifact.make(output, recipe, write, folder=False)
