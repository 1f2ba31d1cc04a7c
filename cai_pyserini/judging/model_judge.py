"""Grades by a language model, as those of one more judge.

Documents are written by strangers, who may want good grades. So the prompt has the text between lines with a random
marker that no document can contain, and an answer is a grade only if it is exactly {"grade": n}. The model's server
speaks OpenAI's chat/completions, such as Ollama, vLLM, or a provider.
"""

import asyncio
import json
import random
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from hashlib import blake2b
from pathlib import Path
from string import Template
from typing import NamedTuple

import httpx2

from cai_pyserini.core.errors import CaiError, without_secrets
from cai_pyserini.core.flags import MODEL_KEY
from cai_pyserini.core.terminal import progress
from cai_pyserini.engine.reasons import Stems, best_passage
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.judging.judgments import MODEL, Grades
from cai_pyserini.judging.pool import Pool

PROMPT = Path(__file__).with_name("judge_prompt.txt")
PLACEHOLDERS = {"query", "document", "marker"}
MAX_TITLE = 200  # characters, of a document that is shortened
GRADE = re.compile(r'\{\s*"grade"\s*:\s*([0-9])\s*\}')
REMINDER = '\nYour last reply could not be read. Reply with nothing but {"grade": n}, where n is the grade.\n'
BYTES_PER_TOKEN = 4  # a rule of thumb, for an estimate
ANSWER_TOKENS = 8
MAX_FAILURES = 5  # after so many in a row, the model, the server or the prompt must be wrong
ATTEMPTS = 6
FIRST_WAIT = 0.5  # seconds before the second attempt, doubled before each further one
LONGEST_WAIT = 600.0  # seconds; a server that asks for more has to be asked later
QUOTED = 200  # characters of what the server says
MAX_BYTES = 1 << 20  # largest response
REMEDIES = {401: f"set the key in {MODEL_KEY}", 403: f"check the key in {MODEL_KEY}", 404: "check --url and --model"}


class Question(NamedTuple):
    """A query and a document to grade, and the prompt that asks for the grade."""

    query: str
    document: str
    prompt: str


def read_prompt(path: Path = PROMPT) -> Template:
    """A prompt with the placeholders $query, $document and $marker. Raises CaiError for a file that is none."""
    try:
        prompt = Template(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise CaiError(f"{path} is not UTF-8 text") from None
    if not prompt.is_valid() or set(prompt.get_identifiers()) != PLACEHOLDERS:
        raise CaiError(f"{path}: a prompt has $query, $document and $marker; any other dollar sign is written $$")
    return prompt


def judge_name(model: str, prompt: Template, characters: int) -> str:
    """The name of a judge; another prompt or another length of documents make another judge."""
    return f"{MODEL}{model} #{blake2b(f'{characters} {prompt.template}'.encode(), digest_size=2).hexdigest()}"


def questions(pool: Pool, judged: Grades, prompt: Template, characters: int) -> list[Question]:
    """A question for each query and document of a pool that are not judged, in random order, so that the same few
    documents without a grade do not end every run with MAX_FAILURES."""
    asked, analyzer = [], cache(lambda: Analyzer(pool.language))  # starts Java for the first long document
    for query, documents in pool.documents.items():
        topic = pool.topics[query]
        stems = cache(lambda topic=topic: analyzer().likely(topic))
        for id in documents - judged.get(query, {}).keys():
            if stored := pool.text(id):
                text = shortened(stored, topic, characters, stems)
                marker = f"=== {secrets.token_hex(8)}"
                filled = prompt.substitute(marker=marker, query=topic, document=text)
                asked.append(Question(query, id, filled))
    random.shuffle(asked)
    return asked


def shortened(document: Stored, query: str, characters: int, stems: Callable[[], Stems]) -> str:
    """A document as it is or, if it has more characters, its title and the passage with most words of the query."""
    if len(document.contents) <= characters:
        return document.contents
    text = document.contents.removeprefix(document.title)
    return f"{document.title[:MAX_TITLE]}\n{best_passage(text, query, stems(), characters)}"


def estimate(asked: Sequence[Question]) -> str:
    """The number of questions, and of their tokens."""
    size = sum(len(question.prompt.encode()) for question in asked)
    tokens = size // BYTES_PER_TOKEN + ANSWER_TOKENS * len(asked)
    return f"{len(asked):,} documents to judge, about {tokens:,} tokens"


class Unanswered(Exception):
    """A question without an answer; the text is the reason."""


class Chat:
    """A model at an address such as http://localhost:11434/v1. `key` is sent only there: redirects are not followed.

    An answer may take `seconds`. To be used in one event loop.
    """

    def __init__(self, url: str, model: str, key: str = "", seconds: float = 120.0):
        if not (key.isascii() and key.isprintable()):
            raise CaiError(f"the key in {MODEL_KEY} has characters that no key has, such as a line break")
        self._key = key
        self._url, self._model, self._seconds = f"{url.rstrip('/')}/chat/completions", model, seconds
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.AsyncClient(headers=headers, timeout=seconds)  # of each read; below, of an answer
        self._has_answered = False

    async def ask(self, text: str) -> str:
        """The answer to a text, at temperature 0. Waits if the server has too many requests, and tries again if it
        fails. Raises Unanswered, and CaiError if further questions are pointless."""
        reason, wait = "", 0.0
        for attempt in range(ATTEMPTS):
            await asyncio.sleep(wait)
            wait = FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311 - so that not all come back at once
            try:
                async with asyncio.timeout(self._seconds):
                    response, body = await self._post(text)
            except (TimeoutError, httpx2.TimeoutException):
                raise Unanswered(f"no answer within {self._seconds:g} seconds") from None
            except httpx2.HTTPError as error:
                reason = self.quoted(str(error) or type(error).__name__)
                if not self._has_answered and isinstance(error, httpx2.ConnectError):
                    raise CaiError(f"no server answers at {self._url} ({reason}): start it, or give --url") from None
            else:
                self._has_answered = True
                if response.status_code == 200:
                    return _content(body)
                reason = f"HTTP {response.status_code}, {self.quoted(body.decode(errors='replace'))!r}"
                if remedy := REMEDIES.get(response.status_code):
                    raise CaiError(f"{self._url}: {reason}: {remedy}")
                if response.status_code != 429 and response.status_code < 500:
                    raise Unanswered(reason)
                wait = max(wait, retry_after(response.headers.get("Retry-After", "")))
                if wait > LONGEST_WAIT:
                    raise CaiError(f"{self._url}: {reason}: it asks to wait {wait:,.0f} seconds; then start again")
        raise Unanswered(f"{reason}, {ATTEMPTS} times")

    def quoted(self, text: str) -> str:
        """The beginning of what the server says, which may repeat the key."""
        return " ".join(without_secrets(text, self._key).split())[:QUOTED]

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, text: str) -> tuple[httpx2.Response, bytes]:
        question = {"model": self._model, "temperature": 0, "messages": [{"role": "user", "content": text}]}
        async with self._client.stream("POST", self._url, json=question) as response:
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise Unanswered(f"a response of more than {MAX_BYTES:,} bytes")
            return response, body


def retry_after(header: str) -> float:
    """The seconds that the header Retry-After asks for, which can be a date; 0 for a past one, and for nonsense."""
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _content(body: bytes) -> str:
    """The text of the answer."""
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        content = None
    if not isinstance(content, str):
        raise Unanswered("a response that is not one of chat/completions")
    return content


async def judge(
    asked: Sequence[Question], chat: Chat, grades: int, parallel: int, record: Callable[[str, str, int], object]
) -> Mapping[tuple[str, str], str]:
    """Ask for grades below `grades`, at most `parallel` at a time, and `record` each query, document and grade at once.

    Returns the reasons of questions without a grade. Raises CaiError after MAX_FAILURES of these in succession.
    """
    failed: dict[tuple[str, str], str] = {}
    in_succession = 0
    remaining = iter(progress(asked, len(asked), "judged"))

    async def work() -> None:
        nonlocal in_succession
        for query, document, prompt in remaining:
            try:
                record(query, document, await _grade(chat, prompt, grades))
                in_succession = 0
            except Unanswered as error:
                failed[query, document] = str(error)
                in_succession += 1
                if in_succession == MAX_FAILURES:
                    raise CaiError(
                        f"{MAX_FAILURES} documents in succession have no grade; the last reason: {error}. The others "
                        "are saved: start again to continue"
                    ) from None

    try:
        await asyncio.gather(*(work() for _ in range(parallel)))
    finally:
        await chat.close()
    return failed


async def _grade(chat: Chat, prompt: str, grades: int) -> int:
    """The grade that the model answers with. Raises Unanswered if the second answer cannot be read either."""
    answer = ""
    for text in (prompt, prompt + REMINDER):
        answer = (await chat.ask(text)).strip()
        if (found := GRADE.fullmatch(answer)) and int(found[1]) < grades:
            return int(found[1])
    raise Unanswered(f"the answer {chat.quoted(answer)[:80]!r} is no grade")
