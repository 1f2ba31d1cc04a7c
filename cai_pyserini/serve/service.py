"""Open systems behind a queue: requests that wait are answered together.

Queries of one system that wait at the same time are encoded as one batch and searched in parallel. One thread works on
the queue, so that models, tokenizers and indexes are never used twice at a time, and a system can be replaced between
two batches.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cai_pyserini.engine.engine import Engine, Hit
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.lucene_index import Stored

BATCH = 64  # queries at most that are answered together
Found = list[tuple[Hit, Stored | None]]


class Busy(Exception):
    """The queue is full."""


class UnknownIndex(Exception):
    """There is no system with this name."""


@dataclass
class Job:
    """A request that waits: a search, or something else that the worker calls."""

    index: str
    text: str = ""
    hits: int = 0
    call: Callable[[Engine], Any] | None = None
    answer: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Service:
    """Systems by name, opened by `open_engines`, and the queue of requests to them.

    A request that has no answer within `timeout` seconds is given up, with TimeoutError; one that finds `limit` others
    without an answer is refused, with Busy.
    """

    def __init__(self, open_engines: Callable[[], Mapping[str, Engine]], limit: int = 256, timeout: float = 30.0):
        self._open, self._limit, self._timeout = open_engines, limit, timeout
        self.engines = dict(open_engines())
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self.unanswered = 0
        self._worker = ThreadPoolExecutor(1, "search")
        self._threads = os.cpu_count() or 1
        self.batches: Callable[[float], None] = lambda queries: None  # is told how many queries are answered together

    async def search(self, index: str, text: str, hits: int) -> Found:
        """The best documents for a text, with what the index stores of them."""
        found: Found = await self._answer(Job(index, text, hits))
        return found

    async def explain(self, index: str, text: str, id: str) -> Explanation | None:
        """Why a document has its score; None if it has none."""
        explained: dict[str, Explanation] = await self.call(index, lambda engine: engine.explain(text, [id]))
        return explained.get(id)

    async def document(self, index: str, id: str) -> Stored | None:
        """A stored document."""
        stored: Stored | None = await self.call(index, lambda engine: engine.document(id))
        return stored

    async def call(self, index: str, function: Callable[[Engine], Any]) -> Any:
        """What a function returns for a system, called when its turn comes."""
        return await self._answer(Job(index, call=function))

    async def reload(self) -> None:
        """Open all systems again; requests are answered by the old ones until the new ones are there."""
        loop = asyncio.get_running_loop()
        engines = await asyncio.to_thread(self._open)
        old, self.engines = self.engines, dict(engines)
        for engine in old.values():
            await loop.run_in_executor(self._worker, engine.close)  # after the batch that still uses it

    async def work(self) -> None:
        """Answer requests until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            jobs = [await self._queue.get()]
            while len(jobs) < BATCH and not self._queue.empty():
                jobs.append(self._queue.get_nowait())
            groups: dict[Any, list[Job]] = {}
            for job in jobs:
                if not job.answer.cancelled():
                    groups.setdefault(id(job) if job.call else (job.index, job.hits), []).append(job)
            for group in groups.values():
                await loop.run_in_executor(self._worker, self._do, self.engines, group, loop)

    def _do(self, engines: Mapping[str, Engine], jobs: list[Job], loop: asyncio.AbstractEventLoop) -> None:
        """Answer jobs: one call, or searches of one system for as many hits."""
        engine = engines.get(jobs[0].index)
        answers: list[Any]
        try:
            if engine is None:
                raise UnknownIndex(jobs[0].index)
            if call := jobs[0].call:
                answers = [call(engine)]
            else:
                self.batches(len(jobs))
                rankings = engine.search([job.text for job in jobs], jobs[0].hits, self._threads)
                answers = [[(hit, engine.document(hit.stored)) for hit in ranking] for ranking in rankings]
        except Exception as error:
            answers = [error] * len(jobs)
        loop.call_soon_threadsafe(_answer, jobs, answers)

    async def _answer(self, job: Job) -> Any:
        if job.index not in self.engines:
            raise UnknownIndex(job.index)
        if self.unanswered >= self._limit:
            raise Busy
        self.unanswered += 1
        self._queue.put_nowait(job)
        try:
            async with asyncio.timeout(self._timeout):
                return await job.answer
        finally:
            self.unanswered -= 1

    def close(self) -> None:
        """Close all systems."""
        self._worker.shutdown()
        for engine in self.engines.values():
            engine.close()


def _answer(jobs: list[Job], answers: list[Any]) -> None:
    for job, answer in zip(jobs, answers, strict=True):
        if job.answer.done():
            continue  # it took too long
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)
