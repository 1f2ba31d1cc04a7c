"""Parts of texts and streams: passages to search, random spans that stand in for queries, and random samples."""

import random

SHORTEST, LONGEST = 5, 12  # the least and largest number of words in a random span
SHARE = 3  # a random span is at most a third of its text: a whole document is no query


def passage_starts(words: int, size: int, step: int) -> list[int]:
    """Where the passages of `size` words begin in a text, `step` words apart. The last one begins earlier if need be,
    so that all are equally long."""
    last = max(words - size, 0)
    return [*range(0, last, step), last]


def passages(text: str, size: int, overlap: int) -> list[str]:
    """The passages of a text, `size` words each, of which consecutive ones share `overlap` or, the last two, more.

    A text that is no longer than a passage stays as it is.
    """
    words = text.split()
    starts = passage_starts(len(words), size, size - overlap)
    return [" ".join(words[start : start + size]) for start in starts] if len(starts) > 1 else [text]


def random_span(text: str, draw: random.Random) -> str | None:
    """5 to 12 consecutive words of a text, at most a third of it; None if it has fewer than 3 words."""
    words = text.split()
    length = min(draw.randint(SHORTEST, LONGEST), len(words) // SHARE)
    if not length:
        return None
    start = draw.randrange(len(words) - length + 1)
    return " ".join(words[start : start + length])


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
        if len(self.items) < self.size:
            self.items.append(item)
        elif (place := self._draw.randrange(self.seen)) < self.size:
            self.items[place] = item
