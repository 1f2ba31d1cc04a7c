"""A collection as others have it: smaller, without titles, without punctuation, in lower case. A BEIR folder.

Adaptation must not harm a collection that is small, or whose documents nobody has cut into titles and sentences.
"""

import random
import re
from pathlib import Path

import folders

from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core.config import load_index_config

PUNCTUATION = re.compile(r"[^\w\s]+")


SEED = 4


def write(spec: str, without: set[str], sample: int | None, output: Path) -> int:
    """Write the variant of a collection, or of a sample of its documents, with those of its test queries that have a
    relevant document there, and their qrels. Returns the number of documents."""
    config = load_index_config(spec)
    collection = open_collection(config)

    def changed(text: str) -> str:
        text = PUNCTUATION.sub(" ", text) if "punctuation" in without else text
        return text.lower() if "case" in without else text

    documents = list(collection.records())
    if sample is not None:
        documents = sorted(random.Random(SEED).sample(documents, sample), key=lambda record: record.id)
    ids = {record.id for record in documents}
    records = (
        record._replace(title="" if "titles" in without else changed(record.title), text=changed(record.text))
        for record in documents
    )
    judged = {
        query: {id: grade for id, grade in grades.items() if id in ids}
        for query, grades in collection.qrels(config.split).items()
    }
    qrels = {query: grades for query, grades in judged.items() if any(grade > 0 for grade in grades.values())}
    topics = {id: text for id, text in collection.topics(config.split).items() if id in qrels}
    return folders.write(output, records, topics, {"test": qrels})


def main() -> None:
    parser = folders.parser(
        "variants",
        "Write a collection without titles, punctuation or upper case, or a sample of it, as a BEIR folder.",
        "hpo --without titles case --output data/hpo-plain",
    )
    parser.add_argument("collection", help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--without", nargs="+", choices=["titles", "punctuation", "case"], default=())
    parser.add_argument("--documents", type=int, help="number of documents, drawn at random (default: all)")
    args = parser.parse_args()
    print(f"{args.output}: {write(args.collection, set(args.without), args.documents, args.output):,} documents")


if __name__ == "__main__":
    main()
