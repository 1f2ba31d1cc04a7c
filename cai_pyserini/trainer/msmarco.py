"""Training files from MS MARCO as sentence-transformers distributes it.

Hard negatives: JSONL lines {"qid": …, "pos": [passage, …], "neg": {system: [passage, …], …}}. Cross-encoder scores:
Parquet or JSONL with the columns query_id, corpus_id and score, the last two single values or lists. (The older file of
scores is a pickle, which can run code when read; it is refused.) Texts come from a collection, such as msmarco.

Of each query come the first positive and `per_query` negatives, drawn from all systems: one for every epoch of the
paper. The margin is the score of the positive less that of the negative.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cai_pyserini import artifact, cli
from cai_pyserini.artifact import file_digest
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import lines, open_collection
from cai_pyserini.config import load_index_config
from cai_pyserini.trainer import settings


@dataclass(frozen=True)
class Settings:
    """What making the training file can be told."""

    collection: str = field(metadata={"help": "the passages and queries: a name in index_configs/, or a BEIR folder"})
    hard_negatives: str = field(metadata={"help": "msmarco-hard-negatives.jsonl.gz"})
    scores: list[str] = field(metadata={"help": "Parquet or JSONL files of query_id, corpus_id, score"})
    output: str = field(metadata={"help": "JSONL file to write"})
    split: str = field(default="train", metadata={"help": "of the queries"})
    per_query: int = field(default=30, metadata={"help": "negatives of a query, at most"})
    max_queries: int = field(default=0, metadata={"help": "only so many queries; 0: all"})
    seed: int = field(default=42, metadata={"help": "of the draw"})


def make(given: Settings) -> Path:
    """Write a training file: a line for each query."""
    config = load_index_config(given.collection)
    collection = open_collection(config)
    output = Path(given.output)
    recipe = {
        "stage": "msmarco",
        "format": 1,
        "inputs": [collection.fingerprint(part) for part in ("documents", "queries", given.split)],
        "files": [file_digest(Path(path)) for path in (given.hard_negatives, *given.scores)],
        "settings": settings.recipe(given, "collection", "hard_negatives", "scores"),
    }
    if artifact.is_fresh(output, recipe):
        return output
    topics = collection.topics(given.split)
    chosen = _draw(given, topics)
    margins = _margins(given, chosen)
    wanted = {id for query, negatives in margins.items() for id in (chosen[query][0], *negatives)}
    texts = collection.contents(wanted, given.hard_negatives)
    with artifact.building(output, recipe, folder=False) as (partial, facts):
        with partial.open("w", encoding="utf-8") as file:
            for query, negatives in margins.items():
                line = {
                    "query": topics[query],
                    "positive": texts[chosen[query][0]],
                    "negatives": [texts[id] for id in negatives],
                    "margins": list(negatives.values()),
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        facts |= {"lines": len(margins), "negatives": sum(map(len, margins.values()))}
    return output


def _draw(given: Settings, topics: dict[str, str]) -> dict[str, tuple[str, list[str]]]:
    """Query -> its positive and its negatives."""
    draw = random.Random(given.seed)
    chosen: dict[str, tuple[str, list[str]]] = {}
    for number, line in lines(Path(given.hard_negatives)):
        try:
            data = json.loads(line)
            query, positives = str(data["qid"]), [str(id) for id in data["pos"]]
            negatives = sorted({str(id) for ids in data["neg"].values() for id in ids} - set(positives))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CaiError(
                f'{given.hard_negatives}:{number}: expected {{"qid": …, "pos": […], "neg": {{system: […]}}}}'
            ) from None
        if positives and negatives and query in topics:
            chosen[query] = positives[0], draw.sample(negatives, min(given.per_query, len(negatives)))
        if given.max_queries and len(chosen) == given.max_queries:
            break
    if not chosen:
        raise CaiError(f"{given.hard_negatives}: no query of split {given.split!r} has a positive and a negative")
    return chosen


def _margins(given: Settings, chosen: dict[str, tuple[str, list[str]]]) -> dict[str, dict[str, float]]:
    """Query -> negative -> margin, of those that the teacher has scored together with the positive."""
    from datasets import load_dataset

    if other := next((path for path in given.scores if not path.endswith((".parquet", ".jsonl", ".jsonl.gz"))), None):
        raise CaiError(f"{other}: scores must be Parquet or JSONL with the columns query_id, corpus_id and score")
    scores: dict[tuple[str, str], float] = {}
    for path in given.scores:
        kind = "parquet" if path.endswith(".parquet") else "json"
        rows: Any = load_dataset(kind, data_files=path, split="train", streaming=True)
        for row in cli.progress(rows, None, "scores", "row"):
            if not row.keys() >= {"query_id", "corpus_id", "score"}:
                raise CaiError(f"{path}: its columns are {', '.join(row)}, not query_id, corpus_id and score")
            if (query := str(row["query_id"])) in chosen:
                ids, values = row["corpus_id"], row["score"]
                positive, negatives = chosen[query]
                kept = {positive, *negatives}
                for id, score in zip(ids, values, strict=True) if isinstance(ids, list) else ((ids, values),):
                    if str(id) in kept:
                        scores[query, str(id)] = float(score)
    margins = {
        query: {id: scores[query, positive] - scores[query, id] for id in negatives if (query, id) in scores}
        for query, (positive, negatives) in chosen.items()
        if (query, positive) in scores
    }
    margins = {query: negatives for query, negatives in margins.items() if negatives}
    if not margins:
        raise CaiError(f"{', '.join(given.scores)}: no scores of the queries and passages in {given.hard_negatives}")
    return margins


def main() -> None:
    given = settings.parse(
        Settings,
        "Make a training file of MS MARCO's hard negatives and a cross-encoder's scores.",
        "python -m cai_pyserini.trainer.msmarco --collection msmarco --hard-negatives msmarco-hard-negatives.jsonl.gz "
        "--scores scores/*.parquet --output triples.jsonl",
    )
    manifest = artifact.require_manifest(make(given), "msmarco")
    print(f"{given.output}: {manifest['lines']:,} queries, {manifest['negatives']:,} negatives")


if __name__ == "__main__":
    cli.run(main)
