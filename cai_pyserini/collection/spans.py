"""Spans of a text, which stand in for queries where there are none."""

import random

SHORTEST, LONGEST = 5, 12  # words
SHARE = 3  # a span is at most this part of its text: a whole document is no query


def random_span(text: str, draw: random.Random) -> str | None:
    """5 to 12 consecutive words of a text, at most a third of it; None if it has fewer than 3 words."""
    words = text.split()
    length = min(draw.randint(SHORTEST, LONGEST), len(words) // SHARE)
    if not length:
        return None
    start = draw.randrange(len(words) - length + 1)
    return " ".join(words[start : start + length])
