"""Questions to a language model whose server speaks OpenAI's chat/completions, such as Ollama, vLLM, or a provider."""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from email.utils import parsedate_to_datetime

import httpx2
from pydantic import BaseModel, Field, ValidationError

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import MODEL_KEY

ATTEMPTS = 6
FIRST_WAIT = 0.5  # seconds before the second attempt, doubled before each further one
LONGEST_WAIT = 600.0  # seconds; a server that asks for more has to be asked later
MAX_BYTES = 1 << 20  # largest response
REMEDIES = {401: f"set the key in {MODEL_KEY}", 403: f"check the key in {MODEL_KEY}", 404: "check --url and --model"}


class Unanswered(Exception):
    """A question without an answer; the text is the reason."""


class _Message(BaseModel):
    content: str


class _Choice(BaseModel):
    message: _Message


class _Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class Chat:
    """A model at an address such as http://localhost:11434/v1. `key` is sent only there: redirects are not followed.

    An answer may take `seconds`. `tokens` counts what the server reports. To be used in one event loop.
    """

    def __init__(self, url: str, model: str, key: str = "", seconds: float = 120.0):
        if not (key.isascii() and key.isprintable()):
            raise CaiError(f"the key in {MODEL_KEY} has characters that no key has, such as a line break")
        self._url, self._model, self._seconds = f"{url.rstrip('/')}/chat/completions", model, seconds
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.AsyncClient(headers=headers, timeout=seconds)  # of each read; below, of an answer
        self._resume = 0.0  # no request before this time
        self._has_answered = False
        self.tokens: Counter[str] = Counter()

    async def ask(self, text: str) -> str:
        """The answer to a text, at temperature 0. Waits if the server has too many requests, and tries again if it
        fails. Raises Unanswered, and CaiError if further questions are pointless."""
        reason, wait = "", 0.0
        for attempt in range(ATTEMPTS):
            await asyncio.sleep(max(wait, self._resume - time.monotonic()))
            wait = FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311 - so that not all come back at once
            try:
                async with asyncio.timeout(self._seconds):
                    response, body = await self._post(text)
            except (TimeoutError, httpx2.TimeoutException):
                raise Unanswered(f"no answer within {self._seconds:g} seconds") from None
            except httpx2.HTTPError as error:
                reason = str(error) or type(error).__name__
                if not self._has_answered and isinstance(error, httpx2.ConnectError):
                    raise CaiError(f"no server answers at {self._url} ({reason}): start it, or give --url") from None
            else:
                self._has_answered = True
                if response.status_code == 200:
                    return self._content(body)
                reason = f"HTTP {response.status_code}, {' '.join(body.decode(errors='replace').split())[:200]!r}"
                if remedy := REMEDIES.get(response.status_code):
                    raise CaiError(f"{self._url}: {reason}: {remedy}")
                if response.status_code != 429 and response.status_code < 500:
                    raise Unanswered(reason)
                if (asked := _retry_after(response.headers.get("Retry-After", ""))) > LONGEST_WAIT:
                    raise CaiError(f"{self._url}: {reason}: it asks to wait {asked:,.0f} seconds; then start again")
                if asked:
                    self._resume = max(self._resume, time.monotonic() + asked)  # for all requests
        raise Unanswered(f"{reason}, {ATTEMPTS} times")

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

    def _content(self, body: bytes) -> str:
        try:
            completion = _Completion.model_validate_json(body)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise Unanswered(f"a response that is not one of chat/completions ({reason})") from None
        if completion.usage:
            self.tokens.update(completion.usage.model_dump())
        return completion.choices[0].message.content


def _retry_after(value: str) -> float:
    """The seconds to wait that a header asks for, as a number or a date; 0 if it does not."""
    if value.isdecimal():
        return float(value)
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0
