"""Claim: LuceneSearcher is no slower than Pyserini's LuceneImpactSearcher on the same index, in opening it and in the
median and the 99th percentile of one query's time, and finds the same.

The index is of IDF-weighted impacts of a collection, at the encoder's own settings; queries are encoded beforehand,
and no encoder runs on either side. Opening is measured in a process of its own each time, the JVM running and
everything imported. Searching is measured in one process that has both open: each query goes to both, which one first
changes from query to query, one thread, with 10, 100 and 1,000 hits, and 300 queries as a warm-up. The clock stops when
Python has the document ids and scores; medians vary by some hundredths from run to run, and no slower means no more
than 5 % slower. Same: equal documents in equal order, and equal scores once ours are multiplied
by the scales of documents and queries, which they are divided by.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from math import isclose
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import harness
import inputs

Hits = list[tuple[str, float]]  # document id and score, best first

HITS = (10, 100, 1000)
WARM_UP = 300
PEERS = ("ours", "Pyserini")


def opening(index: str, peer: str) -> dict[str, Any]:
    """Seconds to open a searcher."""
    from cai_pyserini.retrieval.search import open_searcher

    inputs.import_stock()
    start = time.perf_counter()
    if peer == "ours":
        open_searcher(Path(index))
    else:
        inputs.open_stock(index, {})
    return {"seconds": time.perf_counter() - start}


def searching(index: str, queries: str, hits: int) -> dict[str, Any]:
    """Percentiles of the milliseconds of one query for each searcher, and how many queries had the same results."""
    import numpy as np

    from cai_pyserini.core import artifact
    from cai_pyserini.retrieval.search import open_searcher

    encoded: inputs.Queries = json.loads(Path(queries).read_text())
    stock, mine = inputs.open_stock(index, encoded), open_searcher(Path(index))
    stats = artifact.require(Path(index), "index").stats
    scale = stats["document_scale"] * stats["query_scale"]
    search: dict[str, Callable[[str], Hits]] = {
        "ours": lambda query: mine.search(encoded[query], hits),
        "Pyserini": lambda query: [(hit.docid, hit.score) for hit in stock.search(query, hits)],
    }
    milliseconds: dict[str, list[float]] = {peer: [] for peer in search}
    same = 0
    for number, query in enumerate([*islice(cycle(encoded), WARM_UP), *encoded]):
        found = {}
        for peer in sorted(search, reverse=number % 2 == 0):
            start = time.perf_counter()
            found[peer] = search[peer](query)
            milliseconds[peer].append(1000 * (time.perf_counter() - start))
        same += number >= WARM_UP and equal(found["ours"], found["Pyserini"], scale)
    percentiles = {peer: np.percentile(values[WARM_UP:], [50, 99]).tolist() for peer, values in milliseconds.items()}
    return {"same": same, "queries": len(encoded)} | {
        peer: {"p50": p50, "p99": p99} for peer, (p50, p99) in percentiles.items()
    }


def equal(ours: Hits, theirs: Hits, scale: float) -> bool:
    """Whether two results are the same, where our scores are theirs divided by `scale`."""
    return [id for id, _ in ours] == [id for id, _ in theirs] and all(
        isclose(our * scale, their, rel_tol=1e-6) for (_, our), (_, their) in zip(ours, theirs, strict=True)
    )


def main() -> None:
    parser = harness.parser(__doc__, "search")
    parser.add_argument("--queries", type=int, default=1000, help="how many are searched, at most")
    args = parser.parse_args()
    settings = {"collection": args.collection, "encoder": args.encoder}
    with TemporaryDirectory() as folder:
        index, queries = f"{folder}/index", f"{folder}/queries.json"
        impacts = inputs.write_impacts(**settings, folder=folder, name="impacts")
        harness.stage("index", "impact", input=impacts, output=index)
        harness.fresh(inputs.write_queries, **settings, limit=args.queries, output=queries)
        openers = {peer: partial(harness.fresh, opening, index=index, peer=peer) for peer in PEERS}
        opened = harness.rounds(args.repeats, openers)
        searches = {hits: partial(harness.fresh, searching, index=index, queries=queries, hits=hits) for hits in HITS}
        searched = harness.rounds(args.repeats, {f"{hits:,} hits": search for hits, search in searches.items()})
    measured = {"opening, s": ([r["seconds"] for r in opened["ours"]], [r["seconds"] for r in opened["Pyserini"]])}
    for name, results in searched.items():
        for key in ("p50", "p99"):
            measured[f"{name}, {key}, ms"] = ([r["ours"][key] for r in results], [r["Pyserini"][key] for r in results])
    count = searched["10 hits"][0]["queries"]
    rows, outcomes = [], []
    for name, (ours, theirs) in measured.items():
        ratio = median(their / our for our, their in zip(ours, theirs, strict=True))
        rows.append((name, f"{median(ours):.3f}", f"{median(theirs):.3f}", f"{ratio:.2f}x"))
        outcomes.append((f"no slower: {name}", f"{ratio:.2f} times as fast", ratio >= 0.95))
    harness.show(
        f"Searching {Path(args.collection).name}, {count:,} queries",
        ("", "ours", "Pyserini", "ours is faster by"),
        rows,
    )
    print(f"Medians of {args.repeats} repetitions, side by side; without encoding queries and the JVM's start.\n")
    for outcome in outcomes:
        harness.target(*outcome)
    for name, results in searched.items():
        same = min(result["same"] for result in results)
        harness.target(f"same documents and scores, {name}", f"{same:,} of {count:,} queries", same == count)


if __name__ == "__main__":
    main()
