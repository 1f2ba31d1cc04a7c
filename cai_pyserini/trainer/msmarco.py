"""Training files from MS MARCO as sentence-transformers distributes it.

Hard negatives: JSONL lines {"qid": …, "pos": [passage, …], "neg": {system: [passage, …], …}}. Cross-encoder scores:
Parquet or JSONL with the columns query_id, corpus_id and score, the last two single values or lists. (The older file of
scores is a pickle, which can run code when read; it is refused.) Texts come from a collection, such as msmarco.

Each query comes with its first positive and `per_query` negatives, drawn from all systems: one for every epoch of the
paper. The margin is the score of the positive less that of the negative.
"""

import random
from pathlib import Path
from typing import Any

from datasets import load_dataset

from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.trainer.settings import MsmarcoSettings, recorded

STAGE = "trainer msmarco"

Chosen = dict[str, tuple[str, list[str]]]  # query -> its positive and its negatives
Margins = dict[str, dict[str, float]]  # query -> negative -> margin


def write_training_file(settings: MsmarcoSettings) -> Path:
    """Write a training file with a line for each query."""
    collection = open_collection(load_index_config(settings.collection))
    files = (settings.hard_negatives, *settings.scores)
    if missing := [path for path in files if not path.is_file()]:
        raise CaiError(f"no file {missing[0]}")
    inputs: dict[str, Any] = {p: collection.fingerprint(p) for p in ("documents", "queries", settings.split)}
    inputs["files"] = [file_digest(path) for path in files]
    recipe = artifact.recipe(STAGE, inputs, **recorded(settings, "collection", "hard_negatives", "scores"))

    def write(path: Path) -> artifact.Stats:
        topics = collection.topics(settings.split)
        chosen = _draw(settings, topics)
        margins = _margins(settings, chosen)
        ids = {id for query, negatives in margins.items() for id in (chosen[query][0], *negatives)}
        texts = collection.contents(ids, str(settings.hard_negatives))
        lines = (
            {
                "query": topics[query],
                "positive": texts[chosen[query][0]],
                "negatives": [texts[id] for id in negatives],
                "margins": list(negatives.values()),
            }
            for query, negatives in margins.items()
        )
        return {"lines": jsonl.write(path, lines), "negatives": sum(map(len, margins.values()))}

    return artifact.make(settings.output, recipe, write, folder=False)


def _draw(settings: MsmarcoSettings, topics: dict[str, str]) -> Chosen:
    """The first positive, and negatives, of each query of the split."""
    draw = random.Random(settings.seed)
    chosen: Chosen = {}
    for where, data in jsonl.read(settings.hard_negatives):
        try:
            query, positives = str(data["qid"]), [str(id) for id in data["pos"]]
            negatives = sorted({str(id) for ids in data["neg"].values() for id in ids} - set(positives))
        except (KeyError, TypeError, AttributeError):
            raise CaiError(f'{where}: expected {{"qid": …, "pos": […], "neg": {{system: […]}}}}') from None
        if positives and negatives and query in topics:
            chosen[query] = positives[0], draw.sample(negatives, min(settings.per_query, len(negatives)))
        if settings.max_queries and len(chosen) == settings.max_queries:
            break
    if not chosen:
        raise CaiError(f"{settings.hard_negatives}: no query of split {settings.split!r} has a positive and a negative")
    return chosen


def _margins(settings: MsmarcoSettings, chosen: Chosen) -> Margins:
    """The margins of the negatives that the teacher has scored together with the positive."""
    if other := next((p for p in settings.scores if not p.name.endswith((".parquet", ".jsonl", ".jsonl.gz"))), None):
        raise CaiError(f"{other}: scores must be Parquet or JSONL with the columns query_id, corpus_id and score")
    scores: dict[tuple[str, str], float] = {}
    for path in settings.scores:
        kind = "parquet" if path.suffix == ".parquet" else "json"
        rows: Any = load_dataset(kind, data_files=str(path), split="train", streaming=True)
        for row in progress(rows, None, "scores", "row"):
            if not row.keys() >= {"query_id", "corpus_id", "score"}:
                raise CaiError(f"{path}: its columns are {', '.join(row)}, not query_id, corpus_id and score")
            if (query := str(row["query_id"])) in chosen:
                ids, values = row["corpus_id"], row["score"]
                positive, negatives = chosen[query]
                kept = {positive, *negatives}
                try:
                    for id, score in zip(ids, values, strict=True) if isinstance(ids, list) else ((ids, values),):
                        if str(id) in kept:
                            scores[query, str(id)] = float(score)
                except (TypeError, ValueError):
                    raise CaiError(f"{path}: query {query!r} has not one number as score for each passage") from None
    margins = {
        query: {id: scores[query, positive] - scores[query, id] for id in negatives if (query, id) in scores}
        for query, (positive, negatives) in chosen.items()
        if (query, positive) in scores
    }
    margins = {query: negatives for query, negatives in margins.items() if negatives}
    if not margins:
        paths = ", ".join(map(str, settings.scores))
        raise CaiError(f"{paths}: no scores of the queries and passages in {settings.hard_negatives}")
    return margins
