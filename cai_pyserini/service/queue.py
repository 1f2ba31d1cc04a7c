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
from cai_pyserini.core.processes import processors, trim_memory
from cai_pyserini.core.text import normalized
from cai_pyserini.engine.excerpts import Excerpt
from cai_pyserini.engine.found import Found
from cai_pyserini.engine.highlight import text_of
from cai_pyserini.engine.hits import Hit, Hits
from cai_pyserini.engine.quotes import Quote
from cai_pyserini.engine.retriever import Deadline
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.filters import Filters
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.service.access_log import note

MAX_QUERY_LENGTH = 10_000  # characters of a query, and of all queries of a request or batch
MAX_HITS = 1000  # limit per search, and for all searches of a request or batch
BATCH = 64  # most queries of a request or batch
MIN_BUDGET, MAX_BUDGET = 100, 16_000  # tokens of excerpts
MAX_ANSWER_LENGTH = 1 << 24  # characters of the documents of one answer
MAX_PENDING_LENGTH = 1 << 27  # the same of all answers that are not sent yet
MIN_INTERVAL = 1.0  # seconds between probes, and between reloads
TRIM_SECONDS = 60.0  # freed memory is returned so often

type Show = Callable[[Engine, Found], Iterator[Any]]  # what is shown of the hits of a query
Rerank = Callable[[str, Sequence[str], float], list[float]]  # Reranker.scores
logger = logging.getLogger(__name__)


class Shown(NamedTuple):
    """A hit with its stored document or best passage, a snippet if requested, and the page of these."""

    hit: Hit
    stored: Stored | None
    snippet: str | None = None
    page: int | None = None


class SearchResults(NamedTuple):
    """What is shown of the hits of each query of a request, why it is partial, and the number of reranked hits."""

    rankings: list[list[Any]]
    degraded: str | None = None  # None: complete
    reranked: int | None = None


class Answer:
    """The answer of a request, while it is made and sent."""

    characters = 0  # of its documents


_answer: ContextVar[Answer] = ContextVar("answer")  # of the current request


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


def documents(length: int | None = None, snippets: bool = False) -> Show:
    """Shows hits with their documents, of which contents are truncated to `length` characters, and snippets."""

    def show(engine: Engine, found: Found) -> Iterator[Shown]:
        described = found.describe(found.hits) if snippets else repeat(None)
        for hit, each in zip(found.hits, described, strict=False):
            stored = hit.document and hit.document._replace(contents=hit.document.contents[:length])
            yield Shown(hit, stored, each and text_of(each.snippet), each.page if each else hit.page)

    return show


@dataclass(kw_only=True)
class Job:
    """A waiting request: a search, by default for hits with their documents, or a `call` on the engine."""

    index: str
    call: Callable[[Engine], Any] | None = None
    texts: Sequence[str] = ()
    hits: int = 0  # to return, per query
    rerank: int = 0  # hits to rerank, of a single query
    without: str | None = None  # a document, or the passage of one, that is left out
    filter: Filters = None
    sort: str | None = None
    show: Show = field(default_factory=documents)
    sent_in: Answer = field(default_factory=lambda: _answer.get(Answer()))
    answer: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    arrived: float = field(default_factory=time.monotonic)

    @property
    def depth(self) -> int:
        """Hits to search for, per query."""
        return max(self.hits, self.rerank) + (self.without is not None)


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
        self._sending: set[Answer] = set()
        self.probe = Coalesced(self._probe)
        self.reload = Coalesced(self._reload)
        self._started: float | None = None  # when the running batch started
        self._threads = processors()
        self.batches: Callable[[float], None] = lambda queries: None  # called with the queries of each batch

    async def search(self, job: Job) -> SearchResults:
        """The best hits for each of several queries, as one request."""
        note(texts=job.texts, hits=job.hits)
        if job.rerank and self._rerank is None:
            raise HTTPException(400, "rerank: this server has no cross-encoder; it is started with --cross-encoder")
        searched: SearchResults = await self._answer(job)
        note(returned=sum(map(len, searched.rankings)))
        if searched.degraded or job.rerank:
            note(degraded=searched.degraded, reranked=searched.reranked)
        return searched

    async def similar(self, index: str, id: str, **options: Any) -> tuple[Stored, SearchResults]:
        """A document, and the best other documents with its text as the query; `options` are those of a Job."""
        document = await self.document(index, id, MAX_QUERY_LENGTH)
        if not document.contents.strip():
            raise HTTPException(404, f"document {id!r} has no text")
        return document, await self.search(Job(index=index, texts=[document.contents], without=id, **options))

    async def document(self, index: str, id: str, length: int | None = None) -> Stored:
        """A document, with `length` characters of its contents. Raises HTTPException if there is none."""
        stored: Stored | None = await self.call(index, lambda engine: engine.document(id))
        if stored is None:
            raise HTTPException(404, f"no document {id!r}, or {index} does not store documents")
        stored = stored._replace(contents=stored.contents[:length])
        self._check_length(_answer.get(Answer()), len(stored.contents))
        return stored

    async def excerpts(self, index: str, query: str, budget_tokens: int, filter: Filters) -> list[Excerpt]:
        """Excerpts of the best documents for a query, see Engine.excerpts."""
        note(texts=[query])
        found: list[Excerpt] = await self.call(index, lambda engine: engine.excerpts(query, budget_tokens, filter))
        note(returned=len(found))
        return found

    async def quote(self, index: str, id: str, text: str) -> Quote:
        """Where a text stands in a document. Raises HTTPException for a text without words, or no such document."""
        if not any(map(str.isalnum, text)):
            raise HTTPException(400, "text: the quote has no words")
        try:
            quote: Quote = await self.call(index, lambda engine: engine.quote(id, text))
        except CaiError as error:
            raise HTTPException(404, str(error)) from None
        return quote

    async def call(self, index: str, function: Callable[[Engine], Any]) -> Any:
        """Run `function` on the engine in the worker thread and return its result; of an iterator, a list of its items
        until the request times out."""
        return await self._answer(Job(index=index, call=function))

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
        """Count the documents of an answer while it is made and sent."""
        answer = Answer()
        self._sending.add(answer)
        token = _answer.set(answer)
        try:
            yield
        finally:
            _answer.reset(token)
            self._sending.remove(answer)

    def _check_length(self, answer: Answer, characters: int) -> None:
        """Note the characters of the documents of an answer. Raises HTTPException for too many, in it or in all."""
        if characters > MAX_ANSWER_LENGTH:
            advice = "ask for fewer hits, or with max_doc_length for the beginnings of documents"
            raise HTTPException(400, f"the documents have more than {MAX_ANSWER_LENGTH:,} characters in all: {advice}")
        answer.characters = characters
        if characters and sum(each.characters for each in list(self._sending)) > MAX_PENDING_LENGTH:
            raise HTTPException(503, "too many long answers are being sent; try again soon", {"Retry-After": "1"})

    async def _probe(self) -> dict[str, str]:
        """Search every system: name -> "ok" or the type of error."""
        states = dict.fromkeys(self.engines, "ok")
        searches = [self.search(Job(index=index, texts=["ready"], hits=1)) for index in states]
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
        self._worker.submit(_close, dict(self.engines)).result()
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
        deadline = Deadline(min(job.arrived for job in jobs) + self._deadline) if self._deadline < math.inf else None
        options: dict[str, Any] = {"filter": first.filter, "sort": first.sort, "deadline": deadline}
        found = iter(engine.find(texts, first.depth, threads=self._threads, **options))
        of_jobs = [[*islice(found, len(job.texts))] for job in jobs]
        degraded = f"{', '.join(deadline.late)} timed out" if deadline and deadline.late else None
        reranked = None
        if first.rerank:  # it is alone in its batch
            ((only,),) = of_jobs
            only.hits, reranked = self._rerank_hits(first, engine, only.hits)
        return [self._shown(job, engine, of_job, degraded, reranked) for job, of_job in zip(jobs, of_jobs, strict=True)]

    def _shown(
        self, job: Job, engine: Engine, found: Sequence[Found], degraded: str | None, reranked: int | None
    ) -> SearchResults | HTTPException:
        """What is shown of the hits of a job, until it times out; an HTTPException if the documents are too long."""
        rankings, characters = [list[Any]() for _ in found], 0
        itself = job.without and engine.docid(job.without)
        try:
            for ranking, each in zip(rankings, found, strict=True):
                if job.answer.done():
                    break
                kept = [hit for hit in each.hits if hit.id != itself]
                each.hits = Hits(hit.at(rank) for rank, hit in enumerate(kept[: job.hits], 1))
                for shown in takewhile(lambda _: not job.answer.done(), job.show(engine, each)):
                    if isinstance(shown, Shown) and shown.stored:
                        characters += len(shown.stored.contents)
                        self._check_length(job.sent_in, characters)
                    ranking.append(shown)
        except HTTPException as error:
            return error
        return SearchResults(rankings, degraded, reranked)

    def _rerank_hits(self, job: Job, engine: Engine, ranking: Hits) -> tuple[Hits, int]:
        """A ranking with its best hits rescored by the cross-encoder, and the number of these."""
        stored = [hit.document for hit in ranking[: job.rerank]]
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
        key = id(job) if job.call or job.rerank else (job.index, job.depth, job.filter, job.sort)
        batches = groups.setdefault(key, [[]])
        texts = [text for member in (*batches[-1], job) for text in member.texts]
        if sum(map(len, texts)) > MAX_QUERY_LENGTH or job.depth * len(texts) > MAX_HITS or len(texts) > BATCH:
            batches.append([])
        batches[-1].append(job)
    return [batch for batches in groups.values() for batch in batches if batch]


def _settle(job: Job, result: Any) -> None:
    """Set the result or error of a request from the worker thread, unless it has timed out."""

    def in_loop() -> None:
        if not job.answer.done():
            (job.answer.set_exception if isinstance(result, Exception) else job.answer.set_result)(result)

    job.answer.get_loop().call_soon_threadsafe(in_loop)


def _close(engines: dict[str, Engine]) -> None:
    """Close engines, and empty the dict, which the thread that ran this may hold a moment longer."""
    while engines:
        engines.popitem()[1].close()
