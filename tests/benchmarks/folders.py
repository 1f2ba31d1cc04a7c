"""BEIR folders that benchmarks make."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from cai_pyserini.collection.contract import Qrels, Record
from cai_pyserini.core import artifact, jsonl


def parser(name: str, description: str, example: str) -> argparse.ArgumentParser:
    """An argument parser with --output."""
    arguments = argparse.ArgumentParser(
        prog=f"{name}.py",
        description=description,
        epilog=f"example:\n  python tests/benchmarks/{name}.py {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--output", type=Path, required=True, help="folder to write")
    return arguments


def write(folder: Path, records: Iterable[Record], topics: Mapping[str, str], splits: Mapping[str, Qrels]) -> int:
    """Write a BEIR folder with the qrels of each split. Returns the number of documents."""
    folder.mkdir(parents=True, exist_ok=True)
    jsonl.write(folder / "queries.jsonl", ({"_id": id, "text": text} for id, text in topics.items()))
    for split, qrels in splits.items():
        lines = [f"{query}\t{id}\t{grade}\n" for query, judged in qrels.items() for id, grade in judged.items()]
        artifact.write_text(folder / "qrels" / f"{split}.tsv", "".join(["query-id\tcorpus-id\tscore\n", *lines]))
    corpus = ({"_id": record.id, "title": record.title, "text": record.text} for record in records)
    return jsonl.write(folder / "corpus.jsonl", corpus)
