"""Random samples: of a stream whose length is not known beforehand, and of the words of a text."""

import random

SHORTEST, LONGEST = 5, 12  # words of a span
SHARE = 3  # a span is at most this part of its text: a whole document is no query


class Reservoir[T]:
    """At most `size` of the items added so far, each with the same probability (algorithm R, Vitter 1985)."""

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


def random_span(text: str, draw: random.Random) -> str | None:
    """A span: 5 to 12 consecutive words of a text, at most a third of it; None if it has fewer than 3 words."""
    words = text.split()
    length = min(draw.randint(SHORTEST, LONGEST), len(words) // SHARE)
    if not length:
        return None
    start = draw.randrange(len(words) - length + 1)
    return " ".join(words[start : start + length])
