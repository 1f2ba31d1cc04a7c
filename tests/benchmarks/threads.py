"""Searches by several threads: whether they find what one thread finds and leave nothing in the JVM; and the time of a
batch of queries, which is one call into Java that Java's threads share.

Correctness: 100,000 searches in random order over four open indexes, two of text and two of impacts, by eight threads.

Speed: milliseconds per query of every way in turn, in one process, with as many threads as processors; medians over
--repeats rounds. "Python threads" are a pool that searches without the lock of core.jvm, which goes well for one
searcher only by luck. Documents are random texts of 60 words with Zipf's frequencies.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import harness

VOCABULARY = 20_000
LENGTH = 60  # words of a document
THREADS = 8
BATCH = 64
HITS = (10, 1000)


def write_indexes(documents: int, folder: str) -> harness.Result:
    """Two indexes of text and two of impacts, each of other documents under the same ids."""
    import numpy as np

    from cai_pyserini.collection.beir_folder import BeirFolder
    from cai_pyserini.index.bm25 import index_bm25
    from cai_pyserini.index.impact import index_impacts

    for number, name in enumerate(("text 0", "text 1", "impacts 0", "impacts 1")):
        source = Path(folder, f"source of {name}")
        source.mkdir()
        with (source / "corpus.jsonl").open("w") as file:
            for id, words in enumerate(_words(np.random.default_rng(number), documents)):
                record: dict[str, Any] = {"_id": f"d{id}", "text": " ".join(words)}
                if "impacts" in name:
                    record = {"id": f"d{id}", "contents": "", "vector": Counter(words)}
                file.write(json.dumps(record) + "\n")
        if "impacts" in name:
            index_impacts(source, Path(folder, name))
        else:
            index_bm25(BeirFolder(source, name), Path(folder, name), raw=False)
    return {}


def _words(draw: Any, texts: int, length: int = LENGTH) -> list[list[str]]:
    """Random texts, the words with Zipf's frequencies."""
    numbers = (VOCABULARY ** draw.random((texts, length))).astype(int)
    return [[f"word{number}" for number in row] for row in numbers.tolist()]


def _opened(folder: str, count: int) -> dict[str, tuple[Any, list[Any]]]:
    """The searchers, each with queries."""
    import numpy as np

    from cai_pyserini.retrieval.search import open_searcher

    rows = _words(np.random.default_rng(9), count, 12)
    texts, impacts = [" ".join(row) for row in rows], [dict.fromkeys(row, 7) for row in rows]
    paths = sorted(path for path in Path(folder).iterdir() if not path.name.startswith("source"))
    return {path.name: (open_searcher(path), texts if "text" in path.name else impacts) for path in paths}


def searching(folder: str, searches: int) -> harness.Result:
    """How many searches by several threads went wrong, and the Java threads before and after."""
    from cai_pyserini.core import jvm

    def java_threads() -> int:
        with jvm.using_java("counting"):
            return len(jvm.java_class("java.lang.Thread").getAllStackTraces().keySet().toArray())

    kinds = [(searcher, query) for searcher, queries in _opened(folder, 250).values() for query in queries]
    expected = [searcher.search(query, 10) for searcher, query in kinds]
    before = java_threads()

    def wrong(number: int) -> bool:
        searcher, query = kinds[number * 7919 % len(kinds)]
        return searcher.search(query, 10) != expected[number * 7919 % len(kinds)]

    with ThreadPoolExecutor(THREADS) as pool:
        failures = sum(pool.map(wrong, range(searches)))
    return {"wrong": failures, "before": before, "after": java_threads()}


def ways(folder: str, rounds: int) -> harness.Result:
    """Milliseconds per query of each way, by index and hits."""
    from cai_pyserini.core import jvm

    threads, lock = os.cpu_count() or 1, jvm._lock
    medians: dict[str, dict[str, float]] = {}
    opened = _opened(folder, BATCH)
    with ThreadPoolExecutor(threads) as pool:
        for name, hits in product(("text 0", "impacts 0"), HITS):
            searcher, queries = opened[name]
            numbered = {str(number): query for number, query in enumerate(queries)}
            one = partial(searcher.search, hits=hits)
            calls: dict[str, Callable[[], object]] = {
                "one by one": lambda one=one, queries=queries: [one(query) for query in queries],
                "Python threads": lambda one=one, queries=queries: list(pool.map(one, queries)),
                "a batch, one thread": lambda s=searcher, n=numbered, h=hits: list(s.search_many(n, h, 1)),
                "a batch": lambda s=searcher, n=numbered, h=hits: list(s.search_many(n, h, threads)),
            }
            times: dict[str, list[float]] = {way: [] for way in calls}
            for number, (way, call) in enumerate(list(calls.items()) * (rounds + 1)):
                jvm._lock = nullcontext() if way == "Python threads" else lock  # type: ignore[assignment]
                start = time.perf_counter()
                call()
                if number >= len(calls):  # the first round warms up
                    times[way].append(1000 * (time.perf_counter() - start) / len(queries))
            medians[f"{name.split()[0]}, {hits:,} hits"] = {way: median(values) for way, values in times.items()}
    return medians


def main() -> None:
    parser = harness.parser(__doc__, collection=False)
    parser.add_argument("--documents", type=int, default=200_000, help="of each index")
    parser.add_argument("--searches", type=int, default=100_000, help="by eight threads")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        harness.fresh(write_indexes, documents=args.documents, folder=folder)
        measured = harness.fresh(ways, folder=folder, rounds=args.repeats)
        counted = harness.fresh(searching, folder=folder, searches=args.searches)
    measured.pop("peak")
    names = list(next(iter(measured.values())))
    rows = [(key, *(f"{found[name]:.2f}" for name in names)) for key, found in measured.items()]
    harness.show(f"Milliseconds per query, batches of {BATCH}, {args.documents:,} documents", ("", *names), rows)
    print(f"{args.searches:,} searches by {THREADS} threads: {counted['wrong']} wrong")
    print(f"Java threads: {counted['before']} before, {counted['after']} after")


if __name__ == "__main__":
    main()
