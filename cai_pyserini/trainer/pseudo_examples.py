"""Write the training file of pseudo queries.

A query's positive is its source. Negatives are drawn from the best documents of every system of the mixture, without
passages of the same document and copies, which are not used as in-batch negatives either. The file has the passage of
each document with the most query words. With a dense encoder, margins come from a mixture with less BM25, on the scale
of SPLADE's scores without IDF.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.terminal import progress
from cai_pyserini.trainer.adapt_material import AdaptationData
from cai_pyserini.trainer.mixture import MIN_DEVIATION
from cai_pyserini.trainer.pseudo_queries import passage

STAGE = "adapt: pseudo queries"
DEPTH = 50  # negatives are drawn from the best DEPTH documents of each system
NEGATIVES = 4  # negatives per pseudo query
TEACHER = {"bm25": 0.5, "splade": 1.0, "dense": 2.0}


def recipe(data: AdaptationData) -> artifact.Recipe:
    return artifact.recipe(STAGE, data.identity, queries=data.queries, seed=data.seed)


def write_examples(data: AdaptationData, output: Path) -> Path:
    """Write the training file. Raises CaiError for a collection that yields no example."""

    def write(path: Path) -> artifact.Stats:
        count = jsonl.write(path, _examples(data))
        if not count:
            raise data.too_small()
        return {"examples": count}

    return artifact.make(output, recipe(data), write, folder=False)


def _examples(data: AdaptationData) -> Iterator[dict[str, Any]]:
    mixture, contents, draw = data.mixture, data.contents, np.random.default_rng(data.seed)
    scale = data.spread if data.dense else None
    for number in progress(data.train, len(data.train), "negatives", "query"):
        query = data.pseudo_queries[number]
        equivalents = data.equivalents(query.document)
        candidates = np.setdiff1d(mixture.best[:-1, number, :DEPTH], equivalents)
        if len(candidates) < NEGATIVES:
            continue
        negatives = draw.choice(candidates, NEGATIVES, replace=False)
        example: dict[str, Any] = {
            "query": query.text,
            "kind": query.kind,
            "positive": passage(contents[query.document], query.text),
            "negatives": [passage(contents[other], query.text) for other in negatives],
            "ids": [str(data.equivalents(other)[0]) for other in (query.document, *negatives)],
        }
        if scale:
            best = mixture.best[-1, number]
            documents = np.concatenate([best, [query.document], negatives])
            scores = mixture.scores(np.array([number]), documents, list(TEACHER.values()))[0]
            positive, *others = scale * scores[len(best) :] / max(float(scores[: len(best)].std()), MIN_DEVIATION)
            example["margins"] = [round(float(positive - other), 4) for other in others]
        yield example
