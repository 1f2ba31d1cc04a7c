"""Threads that search: results are those of one thread, and no thread stays in the JVM."""

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.searcher import Searcher
from tests.indexes.test_searcher import bm25_of, impacts_of

pytestmark = pytest.mark.slow

THREADS = 8
CALLS = 1500
WORDS = [f"{first}{second}" for first in ("fever", "cold", "zinc", "cough", "rash") for second in "abcdefgh"]

Call = Callable[[], Any]


@pytest.fixture(scope="module")
def indexes(java: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two indexes of text and two of impacts, each of other documents under the same ids."""
    draw, made = random.Random(1), {}
    for name in ("text", "other text", "impacts", "other impacts"):
        folder = tmp_path_factory.mktemp("index")
        words = {f"d{number}": draw.choices(WORDS, k=draw.choice([5, 10, 20])) for number in range(300)}
        if "text" in name:
            made[name] = bm25_of(folder, {id: " ".join(of) for id, of in words.items()})
        else:
            made[name] = impacts_of(folder, {id: Counter(of) for id, of in words.items()})
    return made


def calls_of(indexes: dict[str, Path], searchers: dict[str, Searcher], draw: random.Random) -> list[Call]:
    """Calls of all kinds, one kind after the other; each has the same result whenever it is called."""
    analyze = Analyzer()

    def reopen(name: str, query: Any) -> Any:
        searcher = open_searcher(indexes[name])
        found = searcher.search(query, 5)
        searcher.close()
        return found

    calls: dict[str, list[Call]] = defaultdict(list)
    for number in range(CALLS // 5):
        name = draw.choice(["text", "other text"])
        words, ids = draw.choices(WORDS, k=3), [f"d{draw.randrange(300)}" for _ in range(5)]
        calls["explain"].append(partial(searchers[name].explain, " ".join(words), ids))
        calls["document"].append(partial(searchers[name].document, ids[0]))
        calls["analyze"].append(partial(analyze, " ".join(words)))
        name = draw.choice(list(indexes))
        query = " ".join(words) if "text" in name else {word: n for n, word in enumerate(words, 1)}
        calls["impacts"].append(partial(searchers[name].impacts, ids, words))
        if number % 20 == 0:
            calls["search"].append(partial(reopen, name, query))
        calls["search"].append(partial(searchers[name].search, query, 10))
    return [call for of_kind in calls.values() for call in of_kind]


def test_threads_find_what_one_thread_finds(indexes: dict[str, Path]) -> None:
    """pyjnius confuses objects of one class that two threads call at the same time."""
    searchers = {name: open_searcher(path) for name, path in indexes.items()}
    calls = calls_of(indexes, searchers, random.Random(2))
    expected = [call() for call in calls]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda call: call(), calls))
    assert [number for number, result in enumerate(found) if result != expected[number]] == []


def java_threads() -> int:
    with jvm.using_java("counting"):
        return jvm.java_class("java.lang.Thread").getAllStackTraces().size()


def test_searches_leave_no_threads_in_the_jvm(indexes: dict[str, Path]) -> None:
    searchers = [open_searcher(path) for path in (indexes["impacts"], indexes["text"])]
    queries = {str(n): {word: 1} for n, word in enumerate(WORDS)}, {str(n): word for n, word in enumerate(WORDS)}
    for number in range(70):
        if number == 20:
            before = java_threads()
        for searcher, some in zip(searchers, queries, strict=True):
            list(searcher.search_many(some, 10, 2))
    assert java_threads() <= before


def test_threads_that_end_leave_the_jvm(indexes: dict[str, Path]) -> None:
    """As those of a user's program, or of a server, that each search once."""
    searcher = open_searcher(indexes["impacts"])
    before = java_threads()
    for _ in range(50):
        thread = threading.Thread(target=searcher.search, args=({"fevera": 1}, 10))
        thread.start()
        thread.join()
    assert java_threads() <= before + 1
