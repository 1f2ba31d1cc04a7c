"""Claims: threads find what one thread finds, and leave nothing behind in the JVM; and a batch of queries, which is one
call into Java that Java's threads share, takes no longer than Python threads that call Java all at the same time, which
pyjnius does not allow.

Correctness: 100,000 searches in random order over four open indexes, two of text and two of impacts, by eight threads.

Speed: milliseconds per query of every way in turn, in one process, with as many threads as processors; medians over
--repeats rounds. "Python threads" are a pool that searches without the lock of core.jvm, which goes well for one
searcher only by luck. Documents are random texts of 60 words, which are as frequent as Zipf says.
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
        rows = _words(np.random.default_rng(number), documents)
        with (source / "corpus.jsonl").open("w") as file:
            for id, words in enumerate(rows):
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
    """Random texts, the words as frequent as Zipf says."""
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

    opened = list(_opened(folder, 250).values())
    kinds = [(searcher, query) for searcher, queries in opened for query in queries]
    expected = [searcher.search(query, 10) for searcher, query in kinds]
    before = java_threads()

    def wrong(number: int) -> bool:
        searcher, query = kinds[number * 7919 % len(kinds)]
        found: object = searcher.search(query, 10)
        return found != expected[number * 7919 % len(kinds)]

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
            calls: dict[str, Callable[[], object]] = {
                "one by one": partial(_one_by_one, map, searcher, queries, hits),
                "Python threads": partial(_one_by_one, pool.map, searcher, queries, hits),
                "a batch, one thread": partial(_batch, searcher, queries, hits, 1),
                "a batch": partial(_batch, searcher, queries, hits, threads),
                "Anserini's batch_search": _anserini(str(Path(folder, name)), queries, hits, threads),
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


def _one_by_one(apply: Callable[..., Any], searcher: Any, queries: list[Any], hits: int) -> list[Any]:
    return list(apply(lambda query: searcher.search(query, hits), queries))


def _batch(searcher: Any, queries: list[Any], hits: int, threads: int) -> list[Any]:
    return list(searcher.search_many({str(n): query for n, query in enumerate(queries)}, hits, threads))


def _anserini(index: str, queries: list[Any], hits: int, threads: int) -> Callable[[], object]:
    """Anserini's own batch, whose hits Python reads one by one, as Pyserini does."""
    from cai_pyserini.core import jvm

    kind = "SimpleSearcher" if isinstance(queries[0], str) else "SimpleImpactSearcher"
    searcher = jvm.java_class(f"io.anserini.search.{kind}")(index)
    integer, array = jvm.java_class("java.lang.Integer"), jvm.java_class("java.util.ArrayList")

    def search() -> object:
        ids, given = array(), array()
        for number, query in enumerate(queries):
            ids.add(str(number))
            weights = query if isinstance(query, str) else {term: integer(weight) for term, weight in query.items()}
            given.add(weights if isinstance(query, str) else jvm.java_map(weights))
        found = searcher.batch_search(given, ids, hits, threads).entrySet().toArray()
        return {entry.getKey(): [(hit.docid, hit.score) for hit in entry.getValue()] for entry in found}

    return search


def main() -> None:
    parser = harness.parser(__doc__, "threads", collection=False)
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
    for key, found in measured.items():
        ratio = found["Python threads"] / found["a batch"]
        harness.target(f"a batch is no slower than Python threads: {key}", f"{ratio:.2f} times as fast", ratio >= 0.95)
    wrong, before, after = counted["wrong"], counted["before"], counted["after"]
    harness.target(f"{args.searches:,} searches by {THREADS} threads", f"{wrong} wrong", wrong == 0)
    harness.target("no thread stays in the JVM", f"{before} before, {after} after", after <= before + THREADS)


if __name__ == "__main__":
    main()
