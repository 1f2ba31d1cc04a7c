"""A collection as others have it: smaller, without titles or texts, without punctuation, in lower case. A BEIR folder.

Adaptation must not harm a collection that is small, or whose documents nobody has cut into titles and sentences.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path

import folders

from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core.config import load_index_config

PUNCTUATION = re.compile(r"[^\w\s]+")


def write(
    spec: str, without: set[str], sample: int | None, seed: int, splits: Sequence[str] | None, output: Path
) -> tuple[int, int]:
    """Write the variant of a collection, or of a sample of its documents, with the queries that have a relevant one
    there, and their qrels. Returns the numbers of documents and queries."""
    config = load_index_config(spec)
    collection = open_collection(config)

    def changed(part: str, text: str) -> str:
        if part in without:
            return ""
        text = PUNCTUATION.sub(" ", text) if "punctuation" in without else text
        return text.lower() if "case" in without else text

    documents = list(collection.records())
    if sample is not None:
        documents = sorted(random.Random(seed).sample(documents, sample), key=lambda record: record.id)
    ids = {record.id for record in documents}
    records = (
        record._replace(title=changed("titles", record.title), text=changed("texts", record.text))
        for record in documents
    )
    topics, qrels = {}, {}
    for split in splits or [config.split]:
        texts = collection.topics(split)
        for query, grades in collection.qrels(split).items():
            judged = {id: grade for id, grade in grades.items() if id in ids}
            if any(grade > 0 for grade in judged.values()):
                topics[query], qrels[query] = texts[query], judged
    return folders.write(output, records, topics, {"test": qrels}), len(topics)


def main() -> None:
    parser = folders.parser(
        "variants",
        "Write a collection without titles, texts, punctuation or upper case, or a sample of it, as a BEIR folder.",
        "hpo --without titles case --output data/hpo-plain",
    )
    parser.add_argument("collection", help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--without", nargs="+", choices=["titles", "texts", "punctuation", "case"], default=())
    parser.add_argument("--documents", type=int, help="number of documents, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=4, help="of that sample (default: %(default)s)")
    parser.add_argument("--splits", nargs="+", help="whose queries are taken (default: the collection's)")
    args = parser.parse_args()
    documents, queries = write(args.collection, set(args.without), args.documents, args.seed, args.splits, args.output)
    print(f"{args.output}: {documents:,} documents, {queries:,} queries")


if __name__ == "__main__":
    main()
