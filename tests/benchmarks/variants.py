"""A collection as others have it: without titles, without punctuation, in lower case. A BEIR folder.

Adaptation must not harm a collection whose documents nobody has cut into titles and sentences.
"""

import argparse
import re
from pathlib import Path

from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import jsonl
from cai_pyserini.core.artifact import write_text
from cai_pyserini.core.config import load_index_config

PUNCTUATION = re.compile(r"[^\w\s]+")


def write(spec: str, without: set[str], output: Path) -> int:
    """Write the variant of a collection with its test queries and qrels. Returns the number of documents."""
    config = load_index_config(spec)
    collection = open_collection(config)

    def changed(text: str) -> str:
        text = PUNCTUATION.sub(" ", text) if "punctuation" in without else text
        return text.lower() if "case" in without else text

    records = (
        {"_id": r.id, "title": "" if "titles" in without else changed(r.title), "text": changed(r.text)}
        for r in collection.records()
    )
    output.mkdir(parents=True, exist_ok=True)
    count = jsonl.write(output / "corpus.jsonl", records)
    topics, qrels = collection.topics(config.split), collection.qrels(config.split)
    jsonl.write(output / "queries.jsonl", ({"_id": id, "text": text} for id, text in topics.items()))
    lines = [f"{query}\t{id}\t{grade}" for query, judged in qrels.items() for id, grade in judged.items()]
    write_text(output / "qrels" / "test.tsv", "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="variants.py",
        description="Write a collection without titles, punctuation or upper case, as a BEIR folder.",
        epilog="example:\n  python tests/benchmarks/variants.py hpo --without titles case --output data/hpo-plain",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("collection", help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--without", nargs="+", choices=["titles", "punctuation", "case"], required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    print(f"{args.output}: {write(args.collection, set(args.without), args.output):,} documents")


if __name__ == "__main__":
    main()
