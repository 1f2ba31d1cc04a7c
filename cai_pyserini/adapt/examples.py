"""The training file of pseudo queries.

The positive of a query is its source; the negatives are drawn from the best documents of every system of the mixture,
without passages of the same document and copies, which are not used as in-batch negatives either. Of each, the file has
the passage that has most of the query's words. With a dense encoder, the margins are those of the
mixture with less BM25, to which SPLADE's scores are added in any case, on the scale of SPLADE's scores without IDF.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import TINY
from cai_pyserini.adapt.pseudo_queries import passage
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.terminal import progress

STAGE = "adapt: pseudo queries"
DEPTH = 50  # negatives are drawn from this many best documents of each system
NEGATIVES = 4  # negatives per pseudo query
TEACHER = {"bm25": 0.5, "splade": 1.0, "dense": 2.0}


def recipe(material: Material) -> artifact.Recipe:
    return artifact.recipe(STAGE, material.identity, queries=material.queries, seed=material.seed)


def write_examples(material: Material, output: Path) -> Path:
    """Write the training file. Raises CaiError for a collection that makes no example."""

    def write(path: Path) -> artifact.Stats:
        count = jsonl.write(path, _examples(material))
        if not count:
            raise material.too_small()
        return {"examples": count}

    return artifact.make(output, recipe(material), write, folder=False)


def _examples(material: Material) -> Iterator[dict[str, Any]]:
    mixture, contents, draw = material.mixture, material.contents, np.random.default_rng(material.seed)
    scale = material.spread if material.dense else None
    for number in progress(material.train, len(material.train), "negatives", "query"):
        query = material.pseudo_queries[number]
        alike = material.alike(query.document)
        found = np.setdiff1d(mixture.best[:-1, number, :DEPTH], alike)
        if len(found) < NEGATIVES:
            continue
        negatives = draw.choice(found, NEGATIVES, replace=False)
        example: dict[str, Any] = {
            "query": query.text,
            "kind": query.kind,
            "positive": passage(contents[query.document], query.text),
            "negatives": [passage(contents[other], query.text) for other in negatives],
            "ids": [str(material.alike(other)[0]) for other in (query.document, *negatives)],
        }
        if scale:
            best = mixture.best[-1, number]
            documents = np.concatenate([best, [query.document], negatives])
            scores = mixture.scores(np.array([number]), documents, list(TEACHER.values()))[0]
            positive, *others = scale * scores[len(best) :] / max(float(scores[: len(best)].std()), TINY)
            example["margins"] = [round(float(positive - other), 4) for other in others]
        yield example
