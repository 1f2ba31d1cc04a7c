"""A queue of requests in front of open systems.

Waiting searches of one system are batched: encoded together and searched in parallel. One thread runs all batches, so
that models, tokenizers and indexes never serve two requests at a time; with a deadline, the parts of a hybrid have
their own threads, which take turns at a model. A batch costs no more than the largest allowed request, work for
requests that have timed out stops, and a failing request does not fail the rest of its batch.
"""

import asyncio
import gc
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice, repeat, takewhile
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

from cai_pyserini.core.errors import CaiError, Unavailable
from cai_pyserini.core.processes import trim_memory
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.found import Found
from cai_pyserini.engine.hits import Hit, Hits
from cai_pyserini.engine.retriever import Effort
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.filters import Filters
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.service.access_log import note

MAX_QUERY_LENGTH = 10_000  # characters of a query, and of all queries of a request or batch
MAX_HITS = 1000  # limit per search, and for all searches of a request or batch
BATCH = 64  # most queries of a request or batch
MAX_ANSWER_LENGTH = 1 << 24  # characters of the documents of one answer
MAX_PENDING_LENGTH = 1 << 27  # the same of all answers that are not sent yet
MIN_INTERVAL = 1.0  # seconds between probes, and between reloads
TRIM_SECONDS = 60.0  # freed memory is returned so often
PROBE_QUERY = "ready"  # the query of the readiness probe

type Show = Callable[[Engine], Callable[[Found], Iterator[Any]]]  # what is shown of the hits of a request
Rerank = Callable[[str, Sequence[str], float], list[float]]  # Reranker.scores
logger = logging.getLogger(__name__)


class Shown(NamedTuple):
    """A hit with its stored document and, if requested, a snippet and its page; None if there is none."""

    hit: Hit
    stored: Stored | None
    snippet: str | None = None
    page: int | None = None


class SearchResults(NamedTuple):
    """What is shown of the hits of each query of a request, the parts of a fusion that were late, and the number of
    reranked hits."""

    rankings: list[list[Any]]
    late: list[str]
    reranked: int | None = None

    @property
    def degraded(self) -> str | None:
        """Why the answer is partial; None if it is complete."""
        return f"{', '.join(self.late)} timed out" if self.late else None


class AnswerLength:
    """The characters of the documents in an answer, and in all `pending` answers, which are limited to save memory."""

    def __init__(self, pending: "set[AnswerLength]"):
        self._pending, self._characters = pending, 0

    def update(self, characters: int) -> None:
        """Set the characters so far. Raises HTTPException beyond a limit."""
        self._characters = characters
        if characters > MAX_ANSWER_LENGTH:
            advice = "ask for fewer hits, or with max_doc_length for the beginnings of documents"
            raise HTTPException(400, f"the documents have more than {MAX_ANSWER_LENGTH:,} characters in all: {advice}")
        if characters and sum(answer._characters for answer in list(self._pending)) > MAX_PENDING_LENGTH:
            raise HTTPException(503, "too many long answers are being sent; try again soon", {"Retry-After": "1"})


_answer_length: ContextVar[AnswerLength] = ContextVar("answer_length")  # of the current request


class Coalesced[T]:
    """Merge waiting calls of a function into one, which starts at least MIN_INTERVAL seconds after the previous ended.

    Each caller gets the result of a call that started after it asked, and repeated requests cost one call at a time.
    """

    def __init__(self, function: Callable[[], Awaitable[T]]):
        self._function = function
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None
        self._ended = -math.inf

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._call())
        return await asyncio.shield(self._next)

    async def _call(self) -> T:
        async with self._lock:
            await asyncio.sleep(max(0.0, self._ended + MIN_INTERVAL - time.monotonic()))
            self._next = None
            try:
                return await self._function()
            finally:
                self._ended = time.monotonic()


@dataclass
class Job:
    """A waiting request: a search, or a `call` on the engine."""

    index: str
    texts: Sequence[str] = ()
    hits: int = 0  # to search for, per query
    rerank: int = 0  # hits to rerank
    filter: Filters = None
    sort: str | None = None
    returned: int = 0  # hits to return, per query
    show: "Show | None" = None  # of a search
    call: Callable[[Engine], Any] | None = None
    answer: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    arrived: float = field(default_factory=time.monotonic)


class Service:
    """The systems that `open_engines` opens, by name, and the queue of requests to them.

    Requests time out with TimeoutError after `timeout` seconds; with `limit` requests pending, new ones are refused.
    `deadline` seconds after it arrived, a search is answered without the late parts of a fusion, and reranking stops;
    without a deadline, parts are never late, and reranking has half of the timeout. Raises CaiError if there is no
    system.
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
        self.engines = self._open_all()
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self.unanswered = 0
        self._worker = ThreadPoolExecutor(1, "search")
        self._opener = ThreadPoolExecutor(1, "reload")
        self._sending: set[AnswerLength] = set()
        self.probe = Coalesced(self._probe)
        self.reload = Coalesced(self._reload)
        self._started: float | None = None  # when the running batch started
        self._threads = os.cpu_count() or 1
        self.batches: Callable[[float], None] = lambda queries: None  # called with the queries of each batch
        self.stages: Callable[[str, dict[str, float]], None] = lambda index, seconds: None  # and with its timings

    async def search_all(
        self,
        index: str,
        texts: Sequence[str],
        hits: int,
        *,
        rerank: int = 0,
        filter: Filters = None,
        sort: str | None = None,
        show: Show | None = None,
    ) -> SearchResults:
        """The best hits for each of several queries, as one request; by default, with their stored documents.

        A single query can have its best `rerank` hits reranked.
        """
        note(texts=texts, hits=hits)
        if rerank and self._rerank is None:
            raise HTTPException(400, "rerank: this server has no cross-encoder; it is started with --cross-encoder")
        job = Job(index, texts, max(hits, rerank), rerank, filter, sort, hits, show or documents())
        searched: SearchResults = await self._answer(job)
        note(returned=sum(map(len, searched.rankings)))
        if searched.late or rerank:
            note(degraded=searched.degraded, reranked=searched.reranked)
        return searched

    async def similar(
        self,
        index: str,
        id: str,
        hits: int,
        *,
        filter: Filters = None,
        sort: str | None = None,
        show: Show | None = None,
    ) -> tuple[str, SearchResults]:
        """The text of a document, and the best other documents with this text as the query."""
        text = (await self.document(index, id, MAX_QUERY_LENGTH)).contents
        if not text.strip():
            raise HTTPException(404, f"document {id!r} has no text")
        searched = await self.search_all(index, [text], hits + 1, filter=filter, sort=sort, show=show)
        others = [shown for shown in searched.rankings[0] if id not in (shown.hit.id, shown.hit.stored)]
        ranking = [shown._replace(hit=shown.hit.at(rank)) for rank, shown in enumerate(others[:hits], 1)]
        note(hits=hits, returned=len(ranking))
        return text, searched._replace(rankings=[ranking])

    async def document(self, index: str, id: str, length: int | None = None) -> Stored:
        """A document, with `length` characters of its contents. Raises HTTPException if there is none."""
        stored: Stored | None = await self.call(index, lambda engine: engine.document(id))
        if stored is None:
            raise HTTPException(404, f"no document {id!r}, or {index} does not store documents")
        stored = _truncate(stored, length)
        _answer_length.get(AnswerLength(set())).update(len(stored.contents))
        return stored

    async def call(self, index: str, function: Callable[[Engine], Any]) -> Any:
        """Run `function` on the engine in the worker thread and return its result; of an iterator, a list of its items
        until the request times out."""
        return await self._answer(Job(index, call=function))

    @property
    def default(self) -> str:
        """The recommended system, which the page and assistants use by default."""
        return next(iter(self.engines))

    @property
    def stuck(self) -> bool:
        """Whether a batch has been running for more than twice the timeout."""
        return self._started is not None and time.monotonic() - self._started > 2 * self._timeout

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count the documents of an answer, by AnswerLength, while it is made and sent."""
        length = AnswerLength(self._sending)
        self._sending.add(length)
        token = _answer_length.set(length)
        try:
            yield
        finally:
            _answer_length.reset(token)
            self._sending.remove(length)

    async def _probe(self) -> dict[str, str]:
        """Search every system: name -> "ok" or the type of error."""
        states = dict.fromkeys(self.engines, "ok")
        searches = [self.search_all(index, [PROBE_QUERY], 1) for index in states]
        for index, result in zip(list(states), await asyncio.gather(*searches, return_exceptions=True), strict=True):
            if isinstance(result, Exception):
                logger.warning("%s is not ready: %r", index, result)
                states[index] = type(result).__name__
        return states

    async def _reload(self) -> None:
        """Reopen all systems; the old ones serve until the new ones are open."""
        loop = asyncio.get_running_loop()
        engines = await loop.run_in_executor(self._opener, self._open_all)
        old, self.engines = self.engines, engines
        await loop.run_in_executor(self._worker, _close, old)  # after the batch that still uses them
        del old
        await loop.run_in_executor(self._opener, gc.collect)  # otherwise their models stay for many reloads

    def _open_all(self) -> dict[str, Engine]:
        engines = dict(self._open())
        if not engines:
            raise CaiError("there is nothing to serve: no folder has an index of a system that can be searched")
        return engines

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests within this context, and close the systems at its end."""
        tasks = [asyncio.create_task(self.work()), asyncio.create_task(self._trim_memory())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._worker.submit(_close, self.engines).result()
        self._worker.shutdown()
        self._opener.shutdown()

    async def _trim_memory(self) -> None:
        """Return freed memory to the system from time to time: answers of many lengths, and reopened models, leave gaps
        between what is in use, a set of them per thread."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            await loop.run_in_executor(self._opener, trim_memory)

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
        """Answer a batch, in the worker thread; if it fails, answer each of its requests alone."""
        jobs = [job for job in jobs if not job.answer.done()]  # skips those that have timed out
        try:
            for job, result in zip(jobs, self._results(jobs) if jobs else [], strict=True):
                _settle(job, result)
        except Exception as error:
            if len(jobs) == 1 or isinstance(error, Unavailable):
                for job in jobs:
                    _settle(job, error)
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
        how: dict[str, Any] = {"filter": first.filter, "sort": first.sort, "effort": effort}
        found = iter(engine.find(texts, first.hits, threads=self._threads, **how))
        of_jobs = [[*islice(found, len(job.texts))] for job in jobs]
        stages = {"encode": effort.encode, "search": effort.search}
        reranked = None
        if first.rerank:  # it is alone in its batch
            start = time.perf_counter()
            ((only,),) = of_jobs
            only.hits, reranked = self._rerank_hits(first, engine, only.hits)
            stages["rerank"] = time.perf_counter() - start
        start = time.perf_counter()
        results = [
            _shown(job, engine, of_job, effort.late, reranked) for job, of_job in zip(jobs, of_jobs, strict=True)
        ]
        stages["fetch"] = time.perf_counter() - start
        self.stages(first.index, stages)
        return results

    def _rerank_hits(self, job: Job, engine: Engine, ranking: Hits) -> tuple[Hits, int]:
        """A ranking with its best hits rescored by the cross-encoder, and the number of these."""
        stored = [engine.document(hit.stored) for hit in ranking[: job.rerank]]
        if None in stored:
            raise HTTPException(400, f"rerank: {job.index} does not store documents")
        assert self._rerank  # search_all checks it
        texts = [document.contents for document in stored if document]
        scores = self._rerank(normalized(job.texts[0]), texts, job.arrived + min(self._deadline, self._timeout / 2))
        scored = [hit.at(hit.rank, score) for hit, score in zip(ranking, scores, strict=False)]
        scored.sort(key=lambda hit: -hit.score)
        both = enumerate([*scored, *ranking[len(scored) :]], 1)
        return Hits(hit.at(rank) for rank, hit in both), len(scored)

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
        except Unavailable as error:
            logger.warning("%s: %s", job.index, error)
            reason = f"{job.index} cannot be searched now, because its index does not answer; try again later"
            raise HTTPException(503, reason, {"Retry-After": "1"}) from None
        finally:
            self.unanswered -= 1

    def _engine(self, name: str) -> Engine:
        if name not in self.engines:
            raise HTTPException(404, f"no index {name}; this server has {', '.join(self.engines)}")
        return self.engines[name]


def _batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Divide jobs into batches of searches that differ only in their queries; calls and reranking stay alone."""
    groups: dict[Any, list[list[Job]]] = {}
    for job in jobs:
        key = id(job) if job.call or job.rerank else (job.index, job.hits, job.filter, job.sort)
        batches = groups.setdefault(key, [[]])
        texts = [text for member in (*batches[-1], job) for text in member.texts]
        if sum(map(len, texts)) > MAX_QUERY_LENGTH or job.hits * len(texts) > MAX_HITS or len(texts) > BATCH:
            batches.append([])
        batches[-1].append(job)
    return [batch for batches in groups.values() for batch in batches if batch]


def documents(length: int | None = None, snippets: bool = False) -> Show:
    """Shows hits with their documents, of which contents are truncated to `length` characters, and snippets. Raises
    HTTPException for documents that are too long for one answer, or with all that wait to be sent."""
    limit = _answer_length.get(None) or AnswerLength(set())

    def for_request(engine: Engine) -> Callable[[Found], Iterator[Shown]]:
        characters = 0

        def show(found: Found) -> Iterator[Shown]:
            nonlocal characters
            described = found.describe(found.hits) if snippets else repeat(None)
            for hit, each in zip(found.hits, described, strict=False):
                stored = each.document if each else engine.document(hit.stored)
                if stored:
                    stored = _truncate(stored, length)
                    characters += len(stored.contents)
                    limit.update(characters)
                snippet = "".join(piece for piece, _ in each.snippet) if each else None
                yield Shown(hit, stored, snippet, each and each.page)

        return show

    return for_request


def _shown(
    job: Job, engine: Engine, found: Sequence[Found], late: list[str], reranked: int | None
) -> SearchResults | HTTPException:
    """What is shown of the hits of a job, until it times out; or the error if that is too much."""
    assert job.show
    show, rankings = job.show(engine), [list[Any]() for _ in found]
    try:
        for ranking, each in zip(rankings, found, strict=True):
            if job.answer.done():
                break
            each.hits = Hits(each.hits[: job.returned])
            ranking += takewhile(lambda _: not job.answer.done(), show(each))
    except HTTPException as error:
        return error
    return SearchResults(rankings, late, reranked)


def _truncate(stored: Stored, length: int | None) -> Stored:
    """A document with the first `length` characters of its contents."""
    return stored._replace(contents=stored.contents[:length])


def _settle(job: Job, result: Any) -> None:
    """Set the result or error of a request from the worker thread, unless it has timed out."""

    def in_loop() -> None:
        if not job.answer.done():
            (job.answer.set_exception if isinstance(result, Exception) else job.answer.set_result)(result)

    job.answer.get_loop().call_soon_threadsafe(in_loop)


def _close(engines: Mapping[str, Engine]) -> None:
    for engine in engines.values():
        engine.close()
