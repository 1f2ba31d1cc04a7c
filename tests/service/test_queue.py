"""The queue: batches, failures, timeouts and reloads."""

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.service import queue as service_module
from cai_pyserini.service.queue import BATCH, MAX_HITS, MAX_QUERY_LENGTH, Job, SearchResults, Service, Shown, documents
from tests.service.conftest import SYSTEMS, engines

pytestmark = pytest.mark.slow


@pytest.fixture
def service(opened: dict[str, Engine]) -> Service:
    return Service(lambda: opened)


def run(service: Service, scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Run a scenario while the service answers, and return its result."""

    async def working() -> Any:
        work = asyncio.create_task(service.work())
        try:
            return await scenario()
        finally:
            work.cancel()

    return asyncio.run(working())


async def search_all(service: Service, index: str, texts: list[str], hits: int, **options: Any) -> SearchResults:
    return await service.search(Job(index=index, texts=texts, hits=hits, **options))


async def search(service: Service, index: str, text: str, hits: int) -> list[Shown]:
    """The hits of a single query."""
    (ranking,) = (await search_all(service, index, [text], hits)).rankings
    return ranking


async def together(service: Service, *requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results of requests that all wait until the worker is free."""
    release = threading.Event()
    holding = asyncio.create_task(service.call("bm25", lambda engine: release.wait(30)))
    await asyncio.sleep(0.1)
    asked = [asyncio.create_task(request) for request in requests]
    await asyncio.sleep(0.1)
    release.set()
    await holding
    return await asyncio.gather(*asked, return_exceptions=True)


def test_waiting_searches_are_batched(service: Service) -> None:
    texts = [f"cancer {word}" for word in ("risk", "salt", "fiber", "insulin", "sleep")]
    sizes: list[float] = []
    service.batches = sizes.append
    answers = run(service, lambda: together(service, *(search(service, "joint", text, 5) for text in texts)))
    for text, found in zip(texts, answers, strict=True):
        (alone,) = service.engines["joint"].search([text], 5)
        assert [(one.hit.id, pytest.approx(one.hit.score, rel=1e-6)) for one in found] == [
            (h.id, h.score) for h in alone
        ]
    assert sizes == [5]


def test_several_texts_are_one_request_of_a_batch(opened: dict[str, Engine]) -> None:
    service = Service(lambda: opened, limit=3)
    sizes: list[float] = []
    service.batches = sizes.append
    many = [["bladder"] * BATCH, ["cancer", "bladder"]]
    some, others = run(service, lambda: together(service, *(search_all(service, "bm25", texts, 1) for texts in many)))
    assert [found[0][0].id for found in (*some.rankings, *others.rankings)] == ["d4"] * BATCH + ["d3", "d4"]
    assert sizes == [BATCH, 2]


@pytest.mark.parametrize(
    ("searches", "expected"),
    [
        ([("cancer " * (n // 7), 5) for n in (MAX_QUERY_LENGTH, 4_000, 4_000, 4_000, 10)], [1, 2, 2]),
        ([("cancer", hits) for hits in (MAX_HITS, 400, MAX_HITS, 400, 400)], [1, 1, 2, 1]),
    ],
)
def test_a_batch_costs_no_more_than_the_largest_search(
    service: Service, searches: list[tuple[str, int]], expected: list[int]
) -> None:
    sizes: list[float] = []
    service.batches = sizes.append
    answers = run(service, lambda: together(service, *(search(service, "bm25", *asked) for asked in searches)))
    assert [found[0][0].id for found in answers] == ["d3"] * 5
    assert sizes == expected


@pytest.mark.parametrize("index", ["bm25", "joint"])
def test_a_request_fails_alone(service: Service, index: str) -> None:
    texts = ["bladder", "\x1c", "bladder infection"]
    found, failed, other = run(service, lambda: together(service, *(search(service, index, text, 1) for text in texts)))
    assert found[0][0].id == other[0][0].id == "d4"
    assert isinstance(failed, CaiError)


def test_a_full_queue_and_late_answers(opened: dict[str, Engine]) -> None:
    service = Service(lambda: opened, limit=3, timeout=0.5)
    release = threading.Event()
    called: list[Engine] = []

    async def crowd() -> None:
        calls = (lambda engine: release.wait(30), called.append, called.append)  # taken from the queue together
        waiting = [asyncio.create_task(service.call("bm25", call)) for call in calls]
        await asyncio.sleep(0.1)
        with pytest.raises(HTTPException, match="429"):
            await search(service, "bm25", "bladder", 1)
        assert not service.stuck
        late = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(answer) for answer in late] == [TimeoutError] * 3
        await asyncio.sleep(0.7)
        assert service.stuck
        release.set()
        ((hit, *_),) = await search(service, "bm25", "bladder", 1)
        assert hit.id == "d4" and not service.stuck

    run(service, crowd)
    assert called == []  # both had timed out


def test_snippets_come_from_the_beginning_of_documents_until_the_request_times_out(
    opened: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: 100 long documents keep the only worker busy for a minute after the request timed out."""
    engine, shown = opened["bm25"], list[str]()
    service = Service(lambda: opened, timeout=0.5)
    words = " ".join(f"w{number}" for number in range(100_000))

    def read(ids: Sequence[str]) -> dict[str, Stored]:
        shown.extend(ids)
        time.sleep(0.2)
        return {id: Stored(id, "", f"bladder {words} zinc") for id in ids}

    monkeypatch.setattr(engine, "_read", read)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await search_all(service, "bm25", ["bladder zinc cancer fever"] * 20, 12, show=documents(snippets=True))
        await service.call("bm25", lambda engine: None)

    run(service, give_up)
    assert len(shown) < 6
    described = next(engine.describe("zinc bladder", 1))
    assert "".join(piece for piece, _ in described.snippet).startswith("bladder w0 w1") and described.page is None


def test_waiting_probes_and_reloads_are_merged(opened: dict[str, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a loop of cheap requests for /ready or /reload keeps the service busy."""
    monkeypatch.setattr(service_module, "MIN_INTERVAL", 0.3)
    service = Service(lambda: opened)
    sizes: list[float] = []
    service.batches = sizes.append

    async def ask_again_and_again() -> None:
        until = time.monotonic() + 1

        async def ask() -> None:
            while time.monotonic() < until:
                assert await service.probe() == dict.fromkeys(SYSTEMS, "ok")

        await asyncio.gather(*(ask() for _ in range(50)))

    run(service, ask_again_and_again)
    assert len(SYSTEMS) <= len(sizes) <= 5 * len(SYSTEMS)


def test_a_service_without_systems_is_refused() -> None:
    with pytest.raises(CaiError, match="nothing to serve"):
        Service(dict)


def test_a_reload_frees_the_old_engines(run_folder: Path) -> None:
    """The fault: engines are in reference cycles, so that models stay in memory, reload after reload."""
    opened: list[weakref.ref[Engine]] = []

    def open_engines() -> dict[str, Engine]:
        found = engines(run_folder)
        opened.extend(map(weakref.ref, found.values()))
        return found

    service = Service(open_engines)
    run(service, service.reload)
    half = len(opened) // 2
    assert [engine() for engine in opened[:half]] == [None] * half and all(engine() for engine in opened[half:])


def test_reloads_take_turns_and_lose_no_request(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict[str, Engine]] = []
    opening = threading.Lock()

    def open_engines() -> dict[str, Engine]:
        assert opening.acquire(blocking=False)  # otherwise two reloads run at once
        opened.append(engines(run_folder, "bm25"))
        opening.release()
        return opened[-1]

    monkeypatch.setattr(service_module, "MIN_INTERVAL", 0.1)
    service = Service(open_engines)

    async def load() -> list[Any]:
        slow = asyncio.create_task(service.call("bm25", lambda old: time.sleep(1) or old.search(["bladder"], 1)))
        reloads = [asyncio.create_task(service.reload())]
        await asyncio.sleep(0)  # it has started, and may have read the state before the others were requested
        await asyncio.sleep(0)
        reloads += [asyncio.create_task(service.reload()) for _ in range(5)]
        found = []
        while not all(reload.done() for reload in reloads):
            found += await asyncio.gather(*(search(service, "bm25", "bladder " * n, 1) for n in range(1, 9)))
        await asyncio.gather(*reloads)
        return [*await slow, *found]

    first, *found = run(service, load)
    assert first[0].id == "d4"  # an old system is closed after its last search
    assert {hits[0][0].id for hits in found} == {"d4"}
    assert len(opened) == 3 and service.engines["bm25"] is opened[-1]["bm25"]
    for old in opened[:-1]:
        with pytest.raises(CaiError, match="closed"):
            old["bm25"].search(["cancer"], 1)
