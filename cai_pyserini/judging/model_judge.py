"""Grades by a language model, as those of one more judge.

Documents are written by strangers, who may want good grades. So the prompt has the text between lines with a random
marker that no document can contain, and an answer is a grade only if it is exactly {"grade": n}.
"""

import asyncio
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from string import Template
from typing import NamedTuple

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.engine.reasons import Stems, best_passage
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.judging.chat import Chat, Unanswered
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
    if not prompt.is_valid():
        raise CaiError(f"{path}: a dollar sign that is not part of a placeholder is written $$")
    if (found := set(prompt.get_identifiers())) != PLACEHOLDERS:
        raise CaiError(
            f"{path}: a prompt has the placeholders ${', $'.join(sorted(PLACEHOLDERS))}, and this one "
            f"{', '.join(f'${name}' for name in sorted(found)) or 'none'}"
        )
    return prompt


def judge_name(model: str, prompt: Template, characters: int) -> str:
    """The name of a judge; another prompt or another length of documents make another judge."""
    return f"{MODEL}{model} #{blake2b(f'{characters} {prompt.template}'.encode(), digest_size=2).hexdigest()}"


def questions(pool: Pool, judged: Grades, prompt: Template, characters: int) -> list[Question]:
    """A question for each query and document of a pool that are not judged, in random order, so that the same few
    documents without a grade do not end every run with MAX_FAILURES."""
    asked, stems = [], cache(lambda: Analyzer(pool.language))  # starts Java for the first long document
    for query, documents in pool.documents.items():
        for id in documents - judged.get(query, {}).keys():
            if stored := pool.text(id):
                text = shortened(stored, pool.topics[query], characters, stems)
                marker = f"=== {secrets.token_hex(8)}"
                filled = prompt.substitute(marker=marker, query=pool.topics[query], document=text)
                asked.append(Question(query, id, filled))
    random.shuffle(asked)
    return asked


def shortened(document: Stored, query: str, characters: int, stems: Callable[[], Stems]) -> str:
    """A document as it is or, if it has more characters, its title and the passage with most words of the query."""
    if len(document.contents) <= characters:
        return document.contents
    text = document.contents.removeprefix(document.title)
    return f"{document.title[:MAX_TITLE]}\n{best_passage(text, query, stems(), characters)}"


def estimate(asked: Sequence[Question], price: float | None) -> str:
    """The number of questions, of their tokens, and what they cost at a `price` of a million tokens."""
    size = sum(len(question.prompt.encode()) for question in asked)
    tokens = size // BYTES_PER_TOKEN + ANSWER_TOKENS * len(asked)
    cost = "" if price is None else f", {tokens * price / 1e6:,.2f} at {price:g} per million"
    return f"{len(asked):,} documents to judge, about {tokens:,} tokens{cost}"


async def judge(
    asked: Sequence[Question],
    chat: Chat,
    grades: int,
    parallel: int,
    record: Callable[[str, str, int], object],
    say: Callable[[str], object],
) -> Mapping[tuple[str, str], str]:
    """Ask for grades below `grades`, at most `parallel` at a time, and `record` each query, document and grade at once.

    Returns the reasons of questions without a grade. Says how long it will take when it knows. Raises CaiError after
    MAX_FAILURES of these in succession.
    """
    failed: dict[tuple[str, str], str] = {}
    in_succession = 0
    remaining = iter(progress(asked, len(asked), "judged"))

    async def work(some: Iterator[Question]) -> None:
        nonlocal in_succession
        for query, document, prompt in some:
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
        await work(islice(remaining, 1))  # a server may load the model first
        start = time.monotonic()
        await work(islice(remaining, 1))
        if len(asked) > 2:
            seconds = (time.monotonic() - start) * (len(asked) - 2) / parallel
            duration = f"about {seconds / 60:.0f} minutes" if seconds > 90 else "less than two minutes"
            say(f"{duration}, if the server answers {parallel} requests at a time")
        await asyncio.gather(*(work(remaining) for _ in range(parallel)))
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
    raise Unanswered(f"the answer {answer[:80]!r} is no grade")
