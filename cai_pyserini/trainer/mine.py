"""Training files from labelled pairs: positives from a collection's qrels, negatives from TREC runs.

The runs can be those of any BM25, dense or SPLADE system for the training queries. The negatives of a query are drawn
from the best documents of every run that are not judged relevant.
"""

import random
from pathlib import Path
from typing import Any

from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.trec import read_run, scores_by_query, top
from cai_pyserini.trainer.settings import MineSettings, recorded

STAGE = "trainer mine"


def mine(settings: MineSettings) -> Path:
    """Write a training file with a line for each query and positive; those without a negative are left out."""
    collection = open_collection(load_index_config(settings.collection))
    if missing := [run for run in settings.runs if not run.is_file()]:
        raise CaiError(f"no file {missing[0]}")
    inputs: dict[str, Any] = {p: collection.fingerprint(p) for p in ("documents", "queries", settings.split)}
    inputs["runs"] = [file_digest(run) for run in settings.runs]
    recipe = artifact.recipe(STAGE, inputs, **recorded(settings, "collection", "runs"))

    def write(path: Path) -> artifact.Stats:
        topics, qrels = collection.topics(settings.split), collection.qrels(settings.split)
        candidates: dict[str, set[str]] = {}
        for run in settings.runs:
            for query, scores in scores_by_query(top(read_run(run), settings.depth)).items():
                candidates.setdefault(query, set()).update(scores)
        draw = random.Random(settings.seed)
        chosen: list[tuple[str, str, list[str]]] = []
        without = 0  # negatives
        for query in topics:
            relevant = [document for document, grade in qrels[query].items() if grade > 0]
            others = sorted(candidates.get(query, set()) - set(relevant) - {query})
            without += len(relevant) if not others else 0
            for positive in relevant if others else ():
                chosen.append((query, positive, draw.sample(others, min(settings.negatives, len(others)))))
        if not chosen:
            raise CaiError(
                f"no query of split {settings.split!r} has both a relevant document and another one in the runs: "
                "are they runs of its queries?"
            )
        ids = {id for _, positive, negatives in chosen for id in (positive, *negatives)}
        texts = collection.contents(ids, "the runs and qrels")
        lines = (
            {"query": topics[query], "positive": texts[positive], "negatives": [texts[n] for n in negatives]}
            for query, positive, negatives in chosen
        )
        queries = len({query for query, _, _ in chosen})
        return {"lines": jsonl.write(path, lines), "queries": queries, "without_negatives": without}

    return artifact.make(settings.output, recipe, write, folder=False)
