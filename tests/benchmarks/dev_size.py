"""Claim: to search, fuse and evaluate runs of the size of MS MARCO's dev set takes at most a minute and 1 GB in all.

7,000 queries with 1,000 hits each: those of a collection, repeated under new ids as often as needed. Every stage is
the command, timed from its start to its end. `search` loads the model and encodes SPLADE queries; the other run of
the fusion, of the same index and bags of words, is made beforehand. `fuse` takes all hits, and its run is evaluated.

A collection of some thousand documents is easier on runs than MS MARCO, of which 7 million hits name about half of the
documents. So `fuse` and `evaluate` are run a second time, on two runs of random hits among as many documents.

Memory is the private memory of a command, sampled ten times per second; files that are mapped into memory, such as
those of libraries, are left out, because the system can drop them.
"""

import sys
import time
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import inputs

DOCUMENTS = 8_841_823  # of MS MARCO's passages
SECONDS, GIGABYTES = 60, 1


def write_collection(collection: str, queries: int, folder: str) -> dict[str, Any]:
    """Write a BEIR folder with the documents of a collection and so many queries."""
    import folders

    from cai_pyserini.collection.readers import open_collection
    from cai_pyserini.core.config import load_index_config

    config = load_index_config(collection)
    source = open_collection(config)
    topics, qrels = source.topics(config.split), source.qrels(config.split)
    ids = {str(number): id for number, id in enumerate(islice(cycle(topics), queries))}
    repeated = {number: topics[id] for number, id in ids.items()}
    folders.write(Path(folder), source.records(), repeated, {"test": {number: qrels[id] for number, id in ids.items()}})
    return {}


def write_random(queries: int, hits: int, folder: str) -> dict[str, Any]:
    """Write `first.trec` and `second.trec`, which share two thirds of their documents, and a BEIR folder `random`."""
    import folders
    import numpy as np
    import pandas as pd

    from cai_pyserini.collection.contract import Record
    from cai_pyserini.core.trec import sorted_run, write_parts

    draw = np.random.default_rng(0)
    ids = [str(number) for number in range(queries)]
    pools = {id: draw.choice(DOCUMENTS, hits * 3 // 2, replace=False, shuffle=False).astype(str) for id in sorted(ids)}
    for name in ("first", "second"):
        columns = (
            {"query_id": id, "doc_id": draw.permutation(pool)[:hits], "score": draw.uniform(0, 30, hits)}
            for id, pool in pools.items()
        )
        write_parts((sorted_run(pd.DataFrame(of_query)) for of_query in columns), Path(folder, f"{name}.trec"), name)
    qrels = {id: {str(pool[0]): 1} for id, pool in pools.items()}
    records = (Record("", id, "", "text") for id in {document for judged in qrels.values() for document in judged})
    folders.write(Path(folder, "random"), records, dict.fromkeys(ids, "text"), {"test": qrels})
    return {}


def measure(stage: str, output: str | None = None, **options: object) -> harness.Result:
    """Run a stage: its seconds and its memory. What an earlier repetition wrote is deleted first."""
    if output:
        for path in (output, f"{output}.manifest.json"):
            Path(path).unlink(missing_ok=True)
        options["output"] = output
    flags = [
        text
        for key, value in options.items()
        for text in (f"--{key}", *(value if isinstance(value, list) else [value]))
    ]
    command = [sys.executable, "-m", *f"cai_pyserini.{stage}".split(), *map(str, flags)]
    start = time.perf_counter()
    _, peak = harness.run(command, memory_of="RssAnon")
    return {"seconds": time.perf_counter() - start, "peak": peak}


def main() -> None:
    parser = harness.parser(__doc__, "dev_size")
    parser.add_argument("--queries", type=int, default=7000)
    parser.add_argument("--hits", type=int, default=1000, help="per query")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        size = {"queries": args.queries}
        collection, splade, other, fused = (f"{folder}/{name}" for name in ("collection", "splade", "other", "fused"))
        harness.fresh(write_collection, collection=args.collection, **size, folder=collection)
        harness.fresh(write_random, **size, hits=args.hits, folder=folder)
        impacts = inputs.write_impacts(args.collection, args.encoder, folder, "impacts")
        harness.stage("index", "impact", input=impacts, output=f"{folder}/index")
        search = partial(measure, "search", index=f"{folder}/index", collection=collection, hits=args.hits)
        search(output=other, query="bow")
        fuse = partial(measure, "fusion fuse", depth=args.hits, hits=args.hits, output=fused)
        evaluate = partial(measure, "evaluate", runs=fused)
        random = [f"{folder}/{name}.trec" for name in ("first", "second")]
        peers = {
            "search": partial(search, output=splade, query="splade"),
            "fuse": partial(fuse, runs=[splade, other]),
            "evaluate": partial(evaluate, collection=collection),
            "fuse, random": partial(fuse, runs=random),
            "evaluate, random": partial(evaluate, collection=f"{folder}/random"),
        }
        results = harness.rounds(args.repeats, peers)
    seconds = {name: harness.middle(found, "seconds") for name, found in results.items()}
    memory = {name: harness.middle(found, "peak") for name, found in results.items()}
    title = f"Runs of {args.queries:,} queries with {args.hits:,} hits each ({Path(args.collection).name})"
    rows = [(name, f"{seconds[name]:.1f}", f"{memory[name] / 1e6:,.0f}") for name in results]
    harness.show(title, ("stage", "seconds", "private memory, MB"), rows)
    print(f"Medians of {args.repeats} repetitions.\n")
    for kind in ("", ", random"):
        total = seconds["search"] + seconds[f"fuse{kind}"] + seconds[f"evaluate{kind}"]
        harness.target(f"search, fuse and evaluate{kind} in {SECONDS} s", f"{total:.1f} s", total <= SECONDS)
    most = max(memory.values()) / 1e9
    harness.target(f"each in {GIGABYTES} GB", f"{most:.2f} GB", most <= GIGABYTES)


if __name__ == "__main__":
    main()
