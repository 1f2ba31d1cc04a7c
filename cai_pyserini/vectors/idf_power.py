"""Choose how strongly the IDF of a collection weights an encoder's documents, without labels.

RULE
"""

import json
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.core import artifact, files
from cai_pyserini.models.idf import Idf, idf_digest
from cai_pyserini.vectors.shards import Vectors


class Choice(NamedTuple):
    """The power of IDF, 0 for no weighting, and the reason as a clause."""

    power: float
    reason: str


def choose_power(vectors: Vectors, idf: Path, output: Path) -> Path:
    """Write {"idf_power": …}, chosen from raw SPLADE vectors of the documents and their IDF. Raises CaiError for dense
    vectors, and for an IDF of another vocabulary."""
    vectors.require("splade", "tokens of dense vectors are weighted when they are encoded")
    recipe = artifact.recipe("idf power", {"vectors": vectors.manifest.digest, "idf": idf_digest(idf)})

    def write(path: Path) -> artifact.Stats:
        power, reason = choose(vectors, Idf.load(idf))
        files.write_text(path, json.dumps({"idf_power": power}) + "\n")
        weighting = {0.0: "no IDF", 1.0: "idf"}.get(power, f"idf ** {power:g}")
        return {"idf_power": power, "decision": f"{weighting}, because {reason}"}

    return artifact.make(output, recipe, write, folder=False)


def choose(vectors: Vectors, idf: Idf) -> Choice:
    return Choice(0.5, "of a placeholder")
