"""Searching, fusing and evaluating runs of the size of MS MARCO's dev set: the time and memory of each command.

7,000 queries with 1,000 hits each: those of a collection, repeated under new ids as often as needed. Every stage is
the command, timed from its start to its end. `search` loads the model and encodes SPLADE queries; the other run of
the fusion, of the same index and bags of words, is made beforehand. `fuse` takes all hits, and its run is evaluated.

A collection of some thousand documents is easier on runs than MS MARCO, of which 7 million hits name about half of the
documents. So `fuse` and `evaluate` are run a second time, on two runs of random hits among as many documents.

Memory is the private memory of a command, sampled ten times per second; files that are mapped into memory, such as
those of libraries, are left out, because the system can drop them.
"""

from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

QUERIES, HITS = 7000, 1000  # hits per query
DOCUMENTS = 8_841_823  # of MS MARCO's passages


def write_collection(collection: str, folder: str) -> harness.Result:
    """Write a BEIR folder with the documents of a collection and QUERIES queries."""
    source, topics, qrels = harness.opened(collection)
    ids = {str(number): id for number, id in enumerate(islice(cycle(topics), QUERIES))}
    repeated = {number: topics[id] for number, id in ids.items()}
    judged = {"test": {number: qrels[id] for number, id in ids.items()}}
    harness.write_folder(Path(folder), source.records(), repeated, judged)
    return {}


def write_random(folder: str) -> harness.Result:
    """Write `first.trec` and `second.trec`, and a BEIR folder `random` with qrels for them."""
    from cai_pyserini.collections.contract import Record

    qrels = harness.write_runs(folder, QUERIES, HITS, DOCUMENTS, judged=1)
    records = (Record("", id, "", "text") for id in {document for judged in qrels.values() for document in judged})
    harness.write_folder(Path(folder, "random"), records, dict.fromkeys(qrels, "text"), {"test": qrels})
    return {}


def measure(stage: str, output: str | None = None, **options: object) -> harness.Result:
    """Run a stage. What an earlier repetition wrote is deleted first."""
    if output:
        for path in (output, f"{output}.manifest.json"):
            Path(path).unlink(missing_ok=True)
        options["output"] = output
    return harness.stage(stage, memory_of="RssAnon", **options)


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    with TemporaryDirectory() as folder:
        names = ("collection", "index", "splade", "other", "fused")
        collection, index, splade, other, fused = (f"{folder}/{name}" for name in names)
        harness.fresh(write_collection, collection=args.collection, folder=collection)
        harness.fresh(write_random, folder=folder)
        impacts = harness.write_impacts(args.collection, args.encoder, folder, "impacts")
        harness.stage("stage index", "impact", input=impacts, output=index)
        search = partial(measure, "stage search", index=index, collection=collection, hits=HITS)
        search(output=other, query="bow")
        fuse = partial(measure, "fuse", depth=HITS, hits=HITS, output=fused)
        evaluate = partial(measure, "evaluate", trec=fused)
        random = [f"{folder}/{name}.trec" for name in ("first", "second")]
        peers = {
            "search": partial(search, output=splade, query="splade"),
            "fuse": partial(fuse, trec=[splade, other]),
            "evaluate": partial(evaluate, collection=collection),
            "fuse, random": partial(fuse, trec=random),
            "evaluate, random": partial(evaluate, collection=f"{folder}/random"),
        }
        results = harness.rounds(args.repeats, peers)
    title = f"Runs of {QUERIES:,} queries with {HITS:,} hits each, medians of {args.repeats}"
    rows = [(n, f"{harness.middle(r):.1f}", f"{harness.middle(r, 'peak') / 1e6:,.0f}") for n, r in results.items()]
    harness.show(title, ("stage", "seconds", "private memory, MB"), rows)
    for kind in ("", ", random"):
        total = sum(harness.middle(results[name]) for name in ("search", f"fuse{kind}", f"evaluate{kind}"))
        print(f"search, fuse and evaluate{kind}: {total:.1f} s")


if __name__ == "__main__":
    main()
