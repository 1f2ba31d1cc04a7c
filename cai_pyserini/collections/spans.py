"""Random spans of texts that stand in for queries, and random samples of streams.

Spans are measured in words, separated by spaces. Except in English texts, each character of a script without spaces
counts as a word.
"""

import hashlib
import random
import struct

import regex

from cai_pyserini.core.config import ENGLISH, Language
from cai_pyserini.core.text import UNSPACED_SCRIPTS

SHORTEST, LONGEST = 5, 12  # length of a random span, in words
# With the space after it, in a text whose white space is single spaces.
WORD = regex.compile(rf"(?:[{UNSPACED_SCRIPTS}]\p{{M}}*|[^\s{UNSPACED_SCRIPTS}]+) ?")
SHARE = 3  # a random span is at most a third of its text: a whole document does not resemble a query
CONTEXTS = 5_000  # spans that the meanings of words are learned from, besides documents
SPANS_PER_TEXT = 8  # candidates for the sample of Contexts


def random_span(text: str, draw: random.Random, language: Language = ENGLISH) -> str | None:
    """5 to 12 consecutive words of a text, at most a third of it; None if it has fewer than 3 words."""
    words = words_of(text, language)
    length = min(draw.randint(SHORTEST, LONGEST), len(words) // SHARE)
    if not length:
        return None
    start = draw.randrange(len(words) - length + 1)
    return "".join(words[start : start + length]).rstrip()


def words_of(text: str, language: Language = ENGLISH) -> list[str]:
    """The words of a text, each with the space after it."""
    words = text.split()
    return [f"{word} " for word in words] if language == ENGLISH else WORD.findall(" ".join(words))


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
