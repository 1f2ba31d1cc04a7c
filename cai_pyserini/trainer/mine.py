"""Training files from labelled pairs: positives from a collection's qrels, negatives from TREC runs.

The runs can be of any origin, of BM25, dense or SPLADE systems, on the training queries. Negatives of a query are drawn
from the first documents of every run, those that are judged relevant left out.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from cai_pyserini import artifact, cli
from cai_pyserini.artifact import file_digest
from cai_pyserini.collection import open_collection
from cai_pyserini.config import load_index_config
from cai_pyserini.trainer import settings
from cai_pyserini.trec import read_run


@dataclass(frozen=True)
class Settings:
    """What mining can be told."""

    collection: str = field(metadata={"help": "a name in index_configs/, a YAML file, or a BEIR folder"})
    runs: list[str] = field(metadata={"help": "TREC runs of the split's queries"})
    output: str = field(metadata={"help": "JSONL file to write"})
    split: str = field(default="train", metadata={"help": "of the queries and qrels"})
    depth: int = field(default=50, metadata={"help": "negatives are among the first so many documents of each run"})
    negatives: int = field(default=5, metadata={"help": "at most, of a query and positive"})
    seed: int = field(default=42, metadata={"help": "of the draw"})


def mine(given: Settings) -> Path:
    """Write a training file: a line for each query and positive."""
    config = load_index_config(given.collection)
    collection = open_collection(config)
    output = Path(given.output)
    recipe = {
        "stage": "mine",
        "format": 1,
        "inputs": [collection.fingerprint(part) for part in ("documents", "queries", given.split)],
        "runs": [file_digest(Path(run)) for run in given.runs],
        "settings": settings.recipe(given, "collection", "runs"),
    }
    if artifact.is_fresh(output, recipe):
        return output
    topics, qrels = collection.topics(given.split), collection.qrels(given.split)
    candidates: dict[str, set[str]] = {}
    for path in given.runs:
        first = read_run(Path(path)).groupby("query_id").head(given.depth)
        for query, document in zip(first.query_id, first.doc_id, strict=True):
            candidates.setdefault(query, set()).add(document)
    draw = random.Random(given.seed)
    chosen: list[tuple[str, str, list[str]]] = []
    for query in topics:
        relevant = [document for document, grade in qrels[query].items() if grade > 0]
        others = sorted(candidates.get(query, set()) - set(relevant) - {query})
        for positive in relevant:
            chosen.append((query, positive, draw.sample(others, min(given.negatives, len(others)))))
    wanted = {id for _, positive, negatives in chosen for id in (positive, *negatives)}
    texts = collection.contents(wanted, "the runs and qrels")
    with artifact.building(output, recipe, folder=False) as (partial, facts):
        with partial.open("w", encoding="utf-8") as file:
            for query, positive, negatives in chosen:
                line = {"query": topics[query], "positive": texts[positive], "negatives": [texts[n] for n in negatives]}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        facts |= {"lines": len(chosen), "queries": len(topics)}
    return output


def main() -> None:
    given = settings.parse(
        Settings,
        "Make a training file of a collection's training qrels, with negatives from runs.",
        "python -m cai_pyserini.trainer.mine --collection scifact --runs bm25.trec splade.trec --output train.jsonl",
    )
    manifest = artifact.require_manifest(mine(given), "mine")
    print(f"{given.output}: {manifest['lines']:,} pairs of {manifest['queries']:,} queries")


if __name__ == "__main__":
    cli.run(main)
