"""Claim: the memory of the encode stage does not depend on the size of the collection.

`python -m cai_pyserini.encode` is run as a process of its own on a BEIR folder of the first documents of a collection,
and on one that repeats the same documents ten times under new ids; its peak resident memory may differ by 10 %. The
stage encodes a shard of 4,096 documents at a time, so the small collection is a whole number of shards (--documents is
rounded up; a collection that has fewer is repeated): otherwise the large one would be compared with a part of a shard.
As the documents repeat, the shards of both are the same.
"""

import json
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import harness

TIMES = 10


def write_collection(collection: str, documents: int, copies: int, output: str) -> dict[str, Any]:
    """Write a BEIR folder with `copies` of the first documents of a collection, rounded up to whole shards."""
    from itertools import cycle, islice

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.encode.encode import SHARD

    documents = -(-documents // SHARD) * SHARD
    contents = [
        document.contents for document in islice(open_collection(load_index_config(collection)).documents(), documents)
    ]
    Path(output).mkdir()
    with Path(output, "corpus.jsonl").open("w", encoding="utf-8") as file:
        for copy in range(copies):
            for number, text in enumerate(islice(cycle(contents), documents)):
                file.write(json.dumps({"_id": f"{copy}-{number}", "text": text}) + "\n")
    return {"documents": documents * copies}


def encode(collection: str, encoder: str, output: str) -> harness.Result:
    """Run the encode stage."""
    rmtree(output, ignore_errors=True)
    return {"peak": harness.stage("encode", collection=collection, encoder=encoder, output=output)}


def main() -> None:
    parser = harness.parser(__doc__, "memory")
    parser.add_argument("--documents", type=int, default=4096, help="of the small collection, in whole shards of 4096")
    args = parser.parse_args()
    peers = {}
    with TemporaryDirectory() as folder:
        for copies in (1, TIMES):
            path = f"{folder}/{copies}"
            size = harness.fresh(
                write_collection, collection=args.collection, documents=args.documents, copies=copies, output=path
            )["documents"]
            peers[f"{size:,}"] = partial(encode, path, args.encoder, f"{folder}/vectors")
        results = harness.rounds(args.repeats, peers)
    small, large = results.values()
    growth = harness.times(large, small, "peak")
    rows = [(documents, harness.gigabytes(result)) for documents, result in results.items()]
    harness.show(f"Memory of the encode stage ({Path(args.collection).name})", ("documents", "peak memory, GB"), rows)
    print(f"Medians of {args.repeats} repetitions, side by side.\n")
    harness.target(f"{TIMES} times the documents, at most 10 % more memory", f"{growth - 1:+.1%}", growth <= 1.1)


if __name__ == "__main__":
    main()
