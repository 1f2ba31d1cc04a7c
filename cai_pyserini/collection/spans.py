"""Parts of texts and streams: passages to search, random spans that stand in for queries, and random samples.

Passages and spans are measured in words, which are what is between spaces; in languages that write none, characters.
"""

import random

from cai_pyserini.core.config import ENGLISH, Language

SHORTEST, LONGEST = 5, 12  # the least and largest number of words in a random span
UNSPACED = frozenset({"ja", "th", "zh"})  # languages that write no spaces between words
SHARE = 3  # a random span is at most a third of its text: a whole document is no query


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
        if (place := self.place()) is not None:
            self.put(place, item)

    def place(self) -> int | None:
        """Where to `put` the next item, which need not be made if this is None: then it is left out."""
        self.seen += 1
        if len(self.items) < self.size:
            return len(self.items)
        place = self._draw.randrange(self.seen)
        return place if place < self.size else None

    def put(self, place: int, item: T) -> None:
        self.items[place : place + 1] = [item]
