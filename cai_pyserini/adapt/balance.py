"""The weight of BM25 beside SPLADE and a dense encoder in their fusion, without labels.

    score = w * z(BM25) + z(SPLADE with IDF) + 2 * z(dense),   w one of 0.5, 1 and 2

z are the fusion's z-scores. What people type has more words in common with documents in one collection than in another.
How many, nobody knows without labels; but where documents find each other by other words, so do queries: w is the
weight with which pseudo queries find best what they were made of, without their words (adapt.choice).
"""

import json
from pathlib import Path

from cai_pyserini.adapt.choice import weight_of_bm25
from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import WEIGHTS
from cai_pyserini.adapt.served import Served
from cai_pyserini.core import artifact

STAGE = "adapt: balance"


def balance(material: Material, output: Path) -> Path:
    """Write {"bm25": w, "splade": 1, "dense": 2}; w is 2 where the documents make no queries that judge."""
    inputs = {
        "documents": material.whole.fingerprint("documents"),
        "encoders": [[encoder.identity("documents"), encoder.identity("queries")] for encoder in material.encoders],
    }
    recipe = artifact.recipe(STAGE, inputs, idf_power=material.splade.idf_power, seed=material.seed)

    def write(path: Path) -> artifact.Stats:
        weight, evidence = WEIGHTS["bm25"], "no document makes a query that could judge"
        if material.pseudo_queries and len(material.held_out):
            weight, evidence = weight_of_bm25(Served.judges(material, material.held_out))
        weights = WEIGHTS | {"bm25": weight}
        artifact.write_text(path, json.dumps(weights) + "\n")
        shares = " : ".join(f"{weight:.2g}" for weight in weights.values())
        return {"decision": [f"BM25, SPLADE and dense have the weights {shares} in three ways ({evidence})"]}

    return artifact.make(output, recipe, write, folder=False)
