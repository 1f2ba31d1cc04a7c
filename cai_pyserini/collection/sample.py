"""A random sample of a stream whose length is not known beforehand."""

import random


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
