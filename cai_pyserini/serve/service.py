"""Open systems behind a queue.

Waiting searches of one system are batched: encoded together and searched in parallel. One thread runs all batches, so
that models, tokenizers and indexes are never used by two requests at a time; parts of a hybrid that may be late have
threads of their own, which take turns at a model. A batch costs no more than the largest request allowed, work for a
request that has timed out stops, and one that fails does so alone. So a timeout soon frees the thread.
"""

import asyncio
import gc
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

from cai_pyserini.core.errors import CaiError
from cai_pyserini.search.engine import Engine, Filters, Hit, Stored
from cai_pyserini.search.retriever import Effort
from cai_pyserini.serve.access_log import note

LONGEST_QUERY = 10_000  # the most characters of a query, and of all queries of a request or batch
MOST_HITS = 1000  # the most hits of a search, and of all searches of a request or batch
BATCH = 64  # the most queries of a request or batch
LONGEST_ANSWER = 1 << 24  # the most characters of the documents of one answer
HELD = 1 << 27  # the most of those of all answers that are made or sent
REST = 1.0  # seconds between two probes, and between two reloads
PROBE = "ready"  # the query of the readiness probe

Found = list[tuple[Hit, Stored | None]]
Rerank = Callable[[str, Sequence[str], float], list[float]]  # Reranker.scores
logger = logging.getLogger(__name__)


class Searched(NamedTuple):
    """The hits of each text of a request, the parts of a fusion that were late, and how many hits were reranked."""

    found: list[Found]
    late: list[str]
    reranked: int | None = None

    @property
    def degraded(self) -> str | None:
        """Why this is not the whole answer."""
        return f"{', '.join(self.late)} timed out" if self.late else None


class Held:
    """The characters of documents in the answer to a request until it is sent, among those of all such answers."""

    def __init__(self, others: "set[Held]"):
        self._others, self._characters = others, 0

    def hold(self, characters: int) -> None:
        """Say how many there are, so far. Raises HTTPException beyond the limits."""
        self._characters = characters
        if characters > LONGEST_ANSWER:
            advice = "ask for fewer hits, or with max_doc_length for the beginnings of documents"
            raise HTTPException(400, f"the documents have more than {LONGEST_ANSWER:,} characters in all: {advice}")
        if characters and sum(held._characters for held in list(self._others)) > HELD:
            raise HTTPException(503, "too many long answers are being sent; try again soon", {"Retry-After": "1"})


_held: ContextVar[Held] = ContextVar("held")  # of the request that is being answered


class Shared[T]:
    """Calls of a function that wait share one, which begins REST seconds after the last has ended.

    So each result is of a call that began after it was asked for, and no loop of requests costs more than one call.
    """

    def __init__(self, function: Callable[[], Awaitable[T]]):
        self._function = function
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None
        self._ended = -math.inf

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._call())
        return await asyncio.shield(self._next)

    async def _call(self) -> T:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._ended + REST - time.monotonic()))
            self._next = None
            try:
                return await self._function()
            finally:
                self._ended = time.monotonic()


@dataclass
class Job:
    """A waiting request: a search, or something else that the worker calls."""

    index: str
    texts: Sequence[str] = ()
    hits: int = 0
    rerank: int = 0  # so many of them
    filter: Filters = None
    sort: str | None = None
    returned: int = 0  # hits of each text, with
    length: int | None = None  # so many characters of their documents
    call: Callable[[Engine], Any] | None = None
    answer: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    arrived: float = field(default_factory=time.monotonic)
    held: Held = field(default_factory=lambda: _held.get(None) or Held(set()))


class Service:
    """Systems by name, opened by `open_engines`, and the queue of requests to them.

    A request without an answer after `timeout` seconds raises TimeoutError; one that finds `limit` others unanswered is
    refused. `deadline` seconds after a search arrived, it is answered without the parts of a fusion that are late, and
    `rerank` reranks no more; without one, parts are never late, and reranking has half of the timeout. Raises CaiError
    if there is no system.
    """

    def __init__(
        self,
        open_engines: Callable[[], Mapping[str, Engine]],
        limit: int = 256,
        timeout: float = 30.0,
        deadline: float = math.inf,
        rerank: Rerank | None = None,
    ):
        self._open, self._limit, self._timeout, self._deadline = open_engines, limit, timeout, deadline
        self._rerank = rerank
        self.engines = self._opened()
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self.unanswered = 0
        self._worker = ThreadPoolExecutor(1, "search")
        self._opener = ThreadPoolExecutor(1, "reload")
        self._sending: set[Held] = set()
        self.probe = Shared(self._probe)
        self.reload = Shared(self._reload)
        self._started: float | None = None  # when the running batch started
        self._threads = os.cpu_count() or 1
        self.batches: Callable[[float], None] = lambda queries: None  # is told the size of each batch of searches
        # Is told the seconds of the stages of each batch.
        self.stages: Callable[[str, dict[str, float]], None] = lambda index, seconds: None

    async def search(self, index: str, text: str, hits: int, filter: Filters = None, sort: str | None = None) -> Found:
        """The best documents for a text, see Engine.search, with what the index stores of them."""
        (found,) = (await self.search_all(index, [text], hits, 0, filter, sort)).found
        return found

    async def search_all(
        self,
        index: str,
        texts: Sequence[str],
        hits: int,
        rerank: int = 0,
        filter: Filters = None,
        sort: str | None = None,
        length: int | None = None,
    ) -> Searched:
        """The same for each of several texts, which are one request; of a single one, `rerank` documents can be
        reranked. Of each document, `length` characters are returned."""
        note(texts=texts, hits=hits)
        if rerank and self._rerank is None:
            raise HTTPException(400, "rerank: this server has no cross-encoder; it is started with --cross-encoder")
        job = Job(index, texts, max(hits, rerank), rerank, filter, sort, hits, length)
        searched: Searched = await self._answer(job)
        note(returned=sum(map(len, searched.found)))
        if searched.late or rerank:
            note(degraded=searched.degraded, reranked=searched.reranked)
        return searched

    async def similar(
        self, index: str, id: str, hits: int, filter: Filters = None, sort: str | None = None, length: int | None = None
    ) -> tuple[str, Searched]:
        """The text of a document, and the best other documents for it as a query."""
        text = (await self.document(index, id, LONGEST_QUERY)).contents
        if not text.strip():
            raise HTTPException(404, f"document {id!r} has no text")
        searched = await self.search_all(index, [text], hits + 1, 0, filter, sort, length)
        others = [(hit, stored) for hit, stored in searched.found[0] if id not in (hit.id, hit.stored)]
        ranking = [(hit._replace(rank=rank), stored) for rank, (hit, stored) in enumerate(others[:hits], 1)]
        note(hits=hits, returned=len(ranking))
        return text, searched._replace(found=[ranking])

    async def facets(
        self, index: str, names: Sequence[str], texts: Sequence[str], filter: Filters
    ) -> list[dict[str, dict[str, int]]]:
        """The facets of each text, see Engine.facets."""
        return await self.call(index, lambda engine: (engine.facets(names, text, filter) for text in texts))

    async def snippets(self, index: str, texts: Sequence[str], found: Sequence[Found]) -> list[list[str]]:
        """The snippets of the hits of each text."""

        def all_snippets(engine: Engine) -> Iterator[str]:  # one by one, so that they end when the request times out
            for text, of_text in zip(texts, found, strict=True):
                yield from engine.snippets(text, [hit for hit, _ in of_text])

        snippets = iter(await self.call(index, all_snippets))
        return [[next(snippets) for _ in of_text] for of_text in found]

    async def document(self, index: str, id: str, length: int | None = None) -> Stored:
        """A document, of whose contents `length` characters are returned. Raises HTTPException if there is none."""
        stored: Stored | None = await self.call(index, lambda engine: engine.document(id))
        if stored is None:
            raise HTTPException(404, f"no document {id!r}, or {index} does not store documents")
        stored = _beginning(stored, length)
        _held.get(Held(set())).hold(len(stored.contents))
        return stored

    async def call(self, index: str, function: Callable[[Engine], Any]) -> Any:
        """Run `function` on a system in the worker thread and return its result, or a list of what it yields until the
        request times out."""
        return await self._answer(Job(index, call=function))

    @property
    def default(self) -> str:
        """The recommended system, which the page and assistants use if they are told no other."""
        return next(iter(self.engines))

    @property
    def stuck(self) -> bool:
        """Whether a batch has been running for more than twice the timeout."""
        return self._started is not None and time.monotonic() - self._started > 2 * self._timeout

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Within it, a request is answered and the answer sent: its documents count as those of `Held`."""
        held = Held(self._sending)
        self._sending.add(held)
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)
            self._sending.remove(held)

    async def _probe(self) -> dict[str, str]:
        """Search every system: its name -> "ok", or the kind of error."""
        states = dict.fromkeys(self.engines, "ok")
        searches = [self.search(index, PROBE, 1) for index in states]
        for index, found in zip(list(states), await asyncio.gather(*searches, return_exceptions=True), strict=True):
            if isinstance(found, Exception):
                logger.warning("%s is not ready: %r", index, found)
                states[index] = type(found).__name__
        return states

    async def _reload(self) -> None:
        """Reopen all systems; the old ones answer until the new ones are open."""
        loop = asyncio.get_running_loop()
        engines = await loop.run_in_executor(self._opener, self._opened)
        old, self.engines = self.engines, engines
        await loop.run_in_executor(self._worker, _close, old)  # after the batch that still uses them
        del old
        await loop.run_in_executor(self._opener, gc.collect)  # or their models stay for many reloads

    def _opened(self) -> dict[str, Engine]:
        engines = dict(self._open())
        if not engines:
            raise CaiError("there is nothing to serve: no folder has an index of a system that can be searched")
        return engines

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests inside of this context, and close the systems at its end."""
        work = asyncio.create_task(self.work())
        yield
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        self.close()

    async def work(self) -> None:
        """Answer requests until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            jobs = [await self._queue.get()]
            while len(jobs) < BATCH and not self._queue.empty():
                jobs.append(self._queue.get_nowait())
            for batch in _batches(jobs):
                self._started = time.monotonic()
                await loop.run_in_executor(self._worker, self._run, batch)
                self._started = None

    def _run(self, jobs: Sequence[Job]) -> None:
        """In the worker thread: answer a batch; if it fails, each of its requests alone."""
        jobs = [job for job in jobs if not job.answer.done()]  # the others have timed out
        try:
            for job, result in zip(jobs, self._results(jobs) if jobs else [], strict=True):
                if isinstance(result, Exception):
                    _settle(job, job.answer.set_exception, result)
                else:
                    _settle(job, job.answer.set_result, result)
        except Exception as error:
            if len(jobs) == 1:
                _settle(jobs[0], jobs[0].answer.set_exception, error)
            else:
                for job in jobs:
                    self._run([job])

    def _results(self, jobs: Sequence[Job]) -> list[Any]:
        first = jobs[0]
        engine = self._engine(first.index)
        if first.call:
            result = first.call(engine)
            if isinstance(result, Iterator):
                result = list(takewhile(lambda _: not first.answer.done(), result))
            return [result]
        texts = [text for job in jobs for text in job.texts]
        self.batches(len(texts))
        effort = Effort(min(job.arrived for job in jobs) + self._deadline)
        found = iter(engine.search(texts, first.hits, self._threads, first.filter, first.sort, effort))
        rankings = [list(islice(found, len(job.texts))) for job in jobs]
        stages = {"encode": effort.encode, "search": effort.search}
        reranked = None
        if first.rerank:  # which is alone in its batch
            start = time.perf_counter()
            rankings[0][0], reranked = self._reranked(first, engine, rankings[0][0])
            stages["rerank"] = time.perf_counter() - start
        start = time.perf_counter()
        results = [
            _fetched(job, engine, of_job, effort.late, reranked) for job, of_job in zip(jobs, rankings, strict=True)
        ]
        stages["fetch"] = time.perf_counter() - start
        self.stages(first.index, stages)
        return results

    def _reranked(self, job: Job, engine: Engine, ranking: list[Hit]) -> tuple[list[Hit], int]:
        """The hits of a text, the first of which have the order and scores of the cross-encoder, and how many have."""
        stored = [engine.document(hit.stored) for hit in ranking[: job.rerank]]
        if None in stored:
            raise HTTPException(400, f"rerank: {job.index} does not store documents")
        assert self._rerank  # search_all checks it
        texts = [document.contents for document in stored if document]
        scores = self._rerank(job.texts[0], texts, job.arrived + min(self._deadline, self._timeout / 2))
        scored = [hit._replace(score=score) for hit, score in zip(ranking, scores, strict=False)]
        scored.sort(key=lambda hit: -hit.score)
        both = enumerate([*scored, *ranking[len(scored) :]], 1)
        return [hit._replace(rank=rank) for rank, hit in both], len(scored)

    async def _answer(self, job: Job) -> Any:
        self._engine(job.index)
        note(index=job.index)
        if self.unanswered >= self._limit:
            raise HTTPException(429, "too many requests wait; try again soon", {"Retry-After": "1"})
        self.unanswered += 1
        self._queue.put_nowait(job)
        try:
            async with asyncio.timeout(self._timeout):
                return await job.answer
        finally:
            self.unanswered -= 1

    def _engine(self, name: str) -> Engine:
        if name not in self.engines:
            raise HTTPException(404, f"no index {name}; this server has {', '.join(self.engines)}")
        return self.engines[name]

    def close(self) -> None:
        self._worker.submit(_close, self.engines).result()
        self._worker.shutdown()
        self._opener.shutdown()


def _batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Divide jobs into batches: calls, searches to be reranked, and searches that differ in their texts only."""
    groups: dict[Any, list[list[Job]]] = {}
    for job in jobs:
        alike = job.index, job.hits, job.filter, job.sort
        batches = groups.setdefault(id(job) if job.call or job.rerank else alike, [[]])
        texts = [text for one in (*batches[-1], job) for text in one.texts]
        if sum(map(len, texts)) > LONGEST_QUERY or job.hits * len(texts) > MOST_HITS or len(texts) > BATCH:
            batches.append([])
        batches[-1].append(job)
    return [batch for batches in groups.values() for batch in batches if batch]


def _fetched(
    job: Job, engine: Engine, rankings: Sequence[Sequence[Hit]], late: list[str], reranked: int | None
) -> Searched | HTTPException:
    """The hits of a job with what the index stores of them, until it times out; or why it has too much."""
    found: list[Found] = [[] for _ in rankings]
    characters = 0
    try:
        for of_text, ranking in zip(found, rankings, strict=True):
            for hit in takewhile(lambda _: not job.answer.done(), ranking[: job.returned]):
                stored = engine.document(hit.stored)
                if stored:
                    stored = _beginning(stored, job.length)
                    characters += len(stored.contents)
                    job.held.hold(characters)
                of_text.append((hit, stored))
    except HTTPException as error:
        return error
    return Searched(found, late, reranked)


def _beginning(stored: Stored, length: int | None) -> Stored:
    """A document with so many characters of its contents."""
    return stored._replace(contents=stored.contents[:length])


def _settle[T](job: Job, settle: Callable[[T], None], value: T) -> None:
    """From the worker thread: give a request its result or error, unless it has timed out."""

    def in_loop() -> None:
        if not job.answer.done():
            settle(value)

    job.answer.get_loop().call_soon_threadsafe(in_loop)


def _close(engines: Mapping[str, Engine]) -> None:
    for engine in engines.values():
        engine.close()
