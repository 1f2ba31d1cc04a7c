"""Passages of texts, random spans that stand in for queries, and random samples of streams.

Passages and spans are measured in words, separated by spaces; in languages without spaces, in characters.
"""

import hashlib
import random
import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from cai_pyserini.core.config import ENGLISH, Language

SHORTEST, LONGEST = 5, 12  # length of a random span, in words
UNSPACED = frozenset({"ja", "th", "zh"})  # languages without spaces between words
SHARE = 3  # a random span is at most a third of its text: a whole document does not resemble a query
WORDS = (re.compile(r"\S+"), re.compile(r"\S"))  # in languages with spaces, and without
CONTEXTS = 5_000  # spans that the meanings of words are learned from, besides documents
SPANS_PER_TEXT = 8  # candidates for the sample of Contexts


def passage_starts(words: int, size: int, step: int) -> list[int]:
    """The first words of the passages of a text of `words` words: `size` words each, `step` words apart. The last
    passage starts earlier if necessary, so that all have the same length."""
    last = max(words - size, 0)
    return [*range(0, last, step), last]


class Passage(NamedTuple):
    """Where a passage begins and ends in the text of its document, in characters, and the page where it begins."""

    start: int
    end: int
    page: int


def passages(text: str, size: int, overlap: int, language: Language = ENGLISH, is_paged: bool = False) -> list[Passage]:
    """Split a text into passages of `size` words. Consecutive ones share `overlap` words; the last two may share more.

    Each begins with a word and ends before the next word, so that all characters after the first word of the text are
    in a passage. If the text is paged, form feeds are between pages, which are numbered from 1.
    """
    words = [match.start() for match in WORDS[language in UNSPACED].finditer(text)] or [0]
    starts = passage_starts(len(words), size, size - overlap)
    ends = [*words, len(text)]
    found, page, before = list[Passage](), 1, 0
    for first in starts:
        start = words[first]
        page += text.count("\f", before, start) if is_paged else 0
        before = start
        found.append(Passage(start, ends[min(first + size, len(words))], page))
    return found


def share_after(texts: Iterable[str], size: int, language: Language = ENGLISH) -> float:
    """The share of all words that come after the first `size` of their text."""
    counts = [len(_words(text, language)[0]) for text in texts]
    return sum(max(0, count - size) for count in counts) / max(1, sum(counts))


def random_span(text: str, draw: random.Random, language: Language = ENGLISH) -> str | None:
    """5 to 12 consecutive words of a text, at most a third of it; None if it has fewer than 3 words."""
    words, separator = _words(text, language)
    length = min(draw.randint(SHORTEST, LONGEST), len(words) // SHARE)
    if not length:
        return None
    start = draw.randrange(len(words) - length + 1)
    return separator.join(words[start : start + length])


def _words(text: str, language: Language) -> tuple[list[str], str]:
    """The words of a text, and their separator."""
    words = text.split()
    return (list(" ".join(words)), "") if language in UNSPACED else (words, " ")


class Reservoir[T]:
    """A uniform sample of at most `size` of the items added (algorithm R, Vitter 1985)."""

    def __init__(self, size: int, draw: random.Random):
        self.size = size
        self.items: list[T] = []
        self.seen = 0
        self._draw = draw

    def add(self, item: T) -> None:
        """Offer an item, which may enter the sample and replace another."""
        self.seen += 1
        place = len(self.items) if len(self.items) < self.size else self._draw.randrange(self.seen)
        if place < self.size:
            self.items[place : place + 1] = [item]


class Contexts:
    """A sample of at most `size` random spans of texts. Sampling is stable: a few changed texts change few spans.

    Every text has SPANS_PER_TEXT keys of 64 bits, from its hash, and a span for each key. The sample has the spans with
    the smallest keys, in the order of the keys, so a text that is added or removed changes at most SPANS_PER_TEXT
    spans. Equal texts count once.
    """

    def __init__(self, size: int, language: Language = ENGLISH):
        self._size = size
        self._language = language
        self._spans: dict[int, str] = {}
        self._max_key = 1 << 64  # of the sample

    def add(self, text: str) -> None:
        keys = hashlib.blake2b(text.encode(), digest_size=8 * SPANS_PER_TEXT).digest()
        for key in struct.unpack(f"<{SPANS_PER_TEXT}Q", keys):
            if key <= self._max_key and (span := random_span(text, random.Random(key), self._language)):
                self._spans[key] = span
        if len(self._spans) >= 2 * self._size:
            self._shrink()

    @property
    def items(self) -> list[str]:
        self._shrink()
        return list(self._spans.values())

    def _shrink(self) -> None:
        """Keep only the spans with the `size` smallest keys."""
        smallest = sorted(self._spans)[: self._size]
        self._spans = {key: self._spans[key] for key in smallest}
        if len(smallest) == self._size:
            self._max_key = smallest[-1]
