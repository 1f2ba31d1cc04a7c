"""A collection as others have it: without titles, without punctuation, in lower case. A BEIR folder.

Adaptation must not harm a collection whose documents nobody has cut into titles and sentences.
"""

import re
from pathlib import Path

import folders

from cai_pyserini.collection.readers import open_collection
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
        record._replace(title="" if "titles" in without else changed(record.title), text=changed(record.text))
        for record in collection.records()
    )
    topics, qrels = collection.topics(config.split), collection.qrels(config.split)
    return folders.write(output, records, topics, {"test": qrels})


def main() -> None:
    parser = folders.parser(
        "variants",
        "Write a collection without titles, punctuation or upper case, as a BEIR folder.",
        "hpo --without titles case --output data/hpo-plain",
    )
    parser.add_argument("collection", help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--without", nargs="+", choices=["titles", "punctuation", "case"], required=True)
    args = parser.parse_args()
    print(f"{args.output}: {write(args.collection, set(args.without), args.output):,} documents")


if __name__ == "__main__":
    main()
