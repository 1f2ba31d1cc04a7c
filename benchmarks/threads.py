"""Whether searches by eight threads find what one thread finds, and leave nothing behind in the JVM.

100,000 searches in random order over four open indexes, two of text and two of impacts. Documents are random texts of
60 words with Zipf's frequencies.
"""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness

DOCUMENTS, SEARCHES = 200_000, 100_000  # documents of each index
VOCABULARY = 20_000
LENGTH = 60  # words of a document
THREADS = 8
INDEXES = ("text 0", "text 1", "impacts 0", "impacts 1")
QUERIES = 250


def write_indexes(folder: str) -> harness.Result:
    """Two indexes of text and two of impacts, each of other documents under the same ids."""
    import numpy as np

    from cai_pyserini.collections.beir_folder import BeirFolder
    from cai_pyserini.indexes.impact_index import index_impacts
    from cai_pyserini.indexes.text_index import index_bm25

    for number, name in enumerate(INDEXES):
        source = Path(folder, f"source of {name}")
        source.mkdir()
        with (source / "corpus.jsonl").open("w") as file:
            for id, words in enumerate(random_texts(np.random.default_rng(number), DOCUMENTS)):
                record: dict[str, Any] = {"_id": f"d{id}", "text": " ".join(words)}
                if "impacts" in name:
                    record = {"id": f"d{id}", "contents": "", "vector": Counter(words)}
                file.write(json.dumps(record) + "\n")
        if "impacts" in name:
            index_impacts(source, Path(folder, name))
        else:
            index_bm25(BeirFolder(source, name), Path(folder, name), raw=False)
    return {}


def random_texts(draw: Any, texts: int, length: int = LENGTH) -> list[list[str]]:
    """Random texts, the words with Zipf's frequencies."""
    numbers = (VOCABULARY ** draw.random((texts, length))).astype(int)
    return [[f"word{number}" for number in row] for row in numbers.tolist()]


def searching(folder: str) -> harness.Result:
    """How many searches by several threads went wrong, and the Java threads before and after."""
    import numpy as np

    from cai_pyserini.indexes import jvm
    from cai_pyserini.indexes.engines import open_searcher

    def java_threads() -> int:
        with jvm.using_java("counting"):
            return len(jvm.java_class("java.lang.Thread").getAllStackTraces().keySet().toArray())

    kinds: list[tuple[Any, Any]] = []
    for name in INDEXES:
        searcher = open_searcher(Path(folder, name))
        for row in random_texts(np.random.default_rng(9), QUERIES, 12):
            kinds.append((searcher, " ".join(row) if "text" in name else dict.fromkeys(row, 7)))
    expected = [searcher.search(query, 10) for searcher, query in kinds]
    before = java_threads()

    def wrong(number: int) -> bool:
        searcher, query = kinds[number * 7919 % len(kinds)]
        return searcher.search(query, 10) != expected[number * 7919 % len(kinds)]

    with ThreadPoolExecutor(THREADS) as pool:
        failures = sum(pool.map(wrong, range(SEARCHES)))
    return {"wrong": failures, "before": before, "after": java_threads()}


def main() -> None:
    harness.parser(__doc__, collection=False, repeats=None).parse_args()
    with TemporaryDirectory() as folder:
        harness.fresh(write_indexes, folder=folder)
        counted = harness.fresh(searching, folder=folder)
    print(f"{SEARCHES:,} searches by {THREADS} threads: {counted['wrong']} wrong")
    print(f"Java threads: {counted['before']} before, {counted['after']} after")


if __name__ == "__main__":
    main()
