"""Parts of texts and streams: passages to search, random spans that stand in for queries, and random samples.

Passages and spans are measured in words, which are what is between spaces; in languages that write none, characters.
"""

import hashlib
import random
import struct

from cai_pyserini.core.config import ENGLISH, Language

SHORTEST, LONGEST = 5, 12  # the least and largest number of words in a random span
UNSPACED = frozenset({"ja", "th", "zh"})  # languages that write no spaces between words
SHARE = 3  # a random span is at most a third of its text: a whole document is no query
TRIES = 8  # how many contexts of a text are tried


def passage_starts(words: int, size: int, step: int) -> list[int]:
    """Where the passages of `size` words begin in a text, `step` words apart. The last one begins earlier if need be,
    so that all are equally long."""
    last = max(words - size, 0)
    return [*range(0, last, step), last]


def passages(text: str, size: int, overlap: int, language: Language = ENGLISH) -> list[str]:
    """The passages of a text, `size` words each, of which consecutive ones share `overlap` or, the last two, more.

    A text that is no longer than a passage stays as it is.
    """
    words, gap = _words(text, language)
    starts = passage_starts(len(words), size, size - overlap)
    return [gap.join(words[start : start + size]) for start in starts] if len(starts) > 1 else [text]


def random_span(text: str, draw: random.Random, language: Language = ENGLISH) -> str | None:
    """5 to 12 consecutive words of a text, at most a third of it; None if it has fewer than 3 words."""
    words, gap = _words(text, language)
    length = min(draw.randint(SHORTEST, LONGEST), len(words) // SHARE)
    if not length:
        return None
    start = draw.randrange(len(words) - length + 1)
    return gap.join(words[start : start + length])


def _words(text: str, language: Language) -> tuple[list[str], str]:
    """The words of a text, and what is between them."""
    words = text.split()
    return (list(" ".join(words)), "") if language in UNSPACED else (words, " ")


class Reservoir[T]:
    """A sample of at most `size` of the items added, each with the same probability (algorithm R, Vitter 1985)."""

    def __init__(self, size: int, draw: random.Random):
        self.size = size
        self.items: list[T] = []
        self.seen = 0
        self._draw = draw

    def add(self, item: T) -> None:
        """Take the item, perhaps in another's place, or leave it."""
        self.seen += 1
        place = len(self.items) if len(self.items) < self.size else self._draw.randrange(self.seen)
        if place < self.size:
            self.items[place : place + 1] = [item]


class Contexts:
    """A sample of at most `size` random spans of texts, which hardly changes when a few of the texts do.

    Every text has TRIES keys, 64 bits each, which are its hash, and a span for each; the spans with the smallest keys
    are in the sample, in this order. So a text that is added takes at most TRIES places, and one that is removed leaves
    at most as many to others. Equal texts count once.
    """

    def __init__(self, size: int, language: Language = ENGLISH):
        self._size = size
        self._language = language
        self._spans: dict[int, str] = {}
        self._end = 1 << 64  # larger keys are not in the sample

    def add(self, text: str) -> None:
        keys = hashlib.blake2b(text.encode(), digest_size=8 * TRIES).digest()
        for key in struct.unpack(f"<{TRIES}Q", keys):
            if key <= self._end and (span := random_span(text, random.Random(key), self._language)):
                self._spans[key] = span
        if len(self._spans) >= 2 * self._size:
            self._cut()

    @property
    def items(self) -> list[str]:
        self._cut()
        return list(self._spans.values())

    def _cut(self) -> None:
        """Leave the spans with the smallest keys."""
        kept = sorted(self._spans)[: self._size]
        self._spans = {key: self._spans[key] for key in kept}
        if len(kept) == self._size:
            self._end = kept[-1]
