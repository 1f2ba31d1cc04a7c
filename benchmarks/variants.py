"""A collection as others have it: smaller, without titles or texts, in lower case. A BEIR folder.

Adaptation must not harm a collection that is small, or whose documents nobody has cut into titles and sentences. The
variant has the queries with a relevant document in it, and their qrels.
"""

import random

import harness

from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import load_index_config


def main() -> None:
    parser = harness.output_of(__doc__)
    parser.add_argument("collection", help="a name in index_configs/, a YAML file, or a BEIR folder")
    parser.add_argument("--without", nargs="+", choices=["titles", "texts", "case"], default=())
    parser.add_argument("--documents", type=int, help="number of documents, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=4, help="of that sample (default: %(default)s)")
    parser.add_argument("--splits", nargs="+", help="whose queries are taken (default: the collection's)")
    args = parser.parse_args()

    def changed(part: str, text: str) -> str:
        if part in args.without:
            return ""
        return text.lower() if "case" in args.without else text

    config = load_index_config(args.collection)
    collection = open_collection(config)
    documents = list(collection.records())
    if args.documents is not None:
        sample = random.Random(args.seed).sample(documents, args.documents)
        documents = sorted(sample, key=lambda record: record.id)
    records = [
        record._replace(title=changed("titles", record.title), text=changed("texts", record.text))
        for record in documents
    ]
    ids = {record.id for record in documents}
    topics, qrels = {}, {}
    for split in args.splits or [config.split]:
        texts = collection.topics(split)
        for query, grades in collection.qrels(split).items():
            judged = {id: grade for id, grade in grades.items() if id in ids}
            if any(grade > 0 for grade in judged.values()):
                topics[query], qrels[query] = texts[query], judged
    harness.write_folder(args.output, records, topics, {"test": qrels})
    print(f"{args.output}: {len(records):,} documents, {len(topics):,} queries")


if __name__ == "__main__":
    main()
