"""Our LuceneSearcher and Pyserini's LuceneImpactSearcher on the same index: opening it, the time per query, and whether
they find the same.

The index is of IDF-weighted impacts of a collection; queries are encoded beforehand, no encoder runs on either side.
Opening is measured in a process of its own each time, the JVM running and everything imported. Searching is measured in
one process that has both open: each query goes to both, which one first changes from query to query, one thread, after
1,000 queries as a warm-up. The clock stops when Python has the document ids and scores. Same: equal documents in equal
order, and equal scores once ours are multiplied by the scales of documents and queries, which they are divided by.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

HITS = (10, 100, 1000)
PEERS = ("ours", "Pyserini")
Hits = list[tuple[str, float]]  # document id and score, best first


def opening(index: str, peer: str) -> harness.Result:
    """Seconds to open a searcher."""
    from cai_pyserini.indexes.engines import open_searcher

    harness.import_stock()
    start = time.perf_counter()
    open_searcher(Path(index)) if peer == "ours" else harness.open_stock(index, {})
    return {"seconds": time.perf_counter() - start}


def searching(index: str, queries: str, hits: int) -> harness.Result:
    """Percentiles of the milliseconds of one query for each searcher, and how many queries had the same results."""
    import numpy as np

    from cai_pyserini.indexes.engines import open_searcher

    encoded: dict[str, harness.Impacts] = json.loads(Path(queries).read_text())
    stock, mine, stats = harness.open_stock(index, encoded), open_searcher(Path(index)), harness.stats(index)
    scale = stats["document_scale"] * stats["query_scale"]
    search: dict[str, Callable[[str], Hits]] = {
        "ours": lambda query: mine.search(encoded[query], hits),
        "Pyserini": lambda query: [(hit.docid, hit.score) for hit in stock.search(query, hits)],
    }
    milliseconds: dict[str, list[float]] = {peer: [] for peer in search}
    same = 0
    for number, query in enumerate([*islice(cycle(encoded), harness.WARM_UP), *encoded]):
        found = {}
        for peer in sorted(search, reverse=number % 2 == 0):
            start = time.perf_counter()
            found[peer] = search[peer](query)
            milliseconds[peer].append(1000 * (time.perf_counter() - start))
        same += number >= harness.WARM_UP and equal(found["ours"], found["Pyserini"], scale)
    result: harness.Result = {"same": same, "queries": len(encoded)}
    for peer, values in milliseconds.items():
        result |= {f"{peer} {p}": float(np.percentile(values[harness.WARM_UP :], p)) for p in (50, 99)}
    return result


def equal(ours: Hits, theirs: Hits, scale: float) -> bool:
    """Whether two results are the same, where our scores are theirs divided by `scale`."""
    return [id for id, _ in ours] == [id for id, _ in theirs] and all(
        isclose(our * scale, their, rel_tol=1e-6) for (_, our), (_, their) in zip(ours, theirs, strict=True)
    )


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    settings = {"collection": args.collection, "encoder": args.encoder}
    with TemporaryDirectory() as folder:
        index, queries = f"{folder}/index", f"{folder}/queries.json"
        impacts = harness.write_impacts(**settings, folder=folder, name="impacts")
        harness.stage("stage index", "impact", input=impacts, output=index)
        harness.fresh(harness.write_queries, **settings, limit=1000, output=queries)
        peers = {peer: partial(harness.fresh, opening, index=index, peer=peer) for peer in PEERS}
        opened = harness.rounds(args.repeats, peers)
        peers = {f"{n:,} hits": partial(harness.fresh, searching, index=index, queries=queries, hits=n) for n in HITS}
        searched = harness.rounds(args.repeats, peers)
    rows = [["opening, s", *(f"{harness.middle(opened[peer]):.3f}" for peer in PEERS)]]
    rows[0].append(harness.times(opened["Pyserini"], opened["ours"]))
    for name, results in searched.items():
        for p in (50, 99):
            ours, theirs = ([{"seconds": result[f"{peer} {p}"]} for result in results] for peer in PEERS)
            times = (f"{harness.middle(of_peer):.3f}" for of_peer in (ours, theirs))
            rows.append([f"{name}, p{p}, ms", *times, harness.times(theirs, ours)])
    header = ("", *PEERS, "speed-up of ours")
    harness.show(f"Searching {Path(args.collection).name}, medians of {args.repeats}", header, rows)
    for name, results in searched.items():
        same = min(result["same"] for result in results)
        print(f"same documents and scores, {name}: {same:,} of {results[0]['queries']:,} queries")


if __name__ == "__main__":
    main()
