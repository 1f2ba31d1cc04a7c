"""Copies, and passages of the same document, by hand."""

import random
from collections import Counter

from cai_pyserini.collections.copies import Copies, source


def test_copies_equal_those_of_an_exhaustive_comparison() -> None:
    draw = random.Random(1)
    words = [f"word{number}" for number in range(30)]
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 25))) for _ in range(40)]
    for text in texts[:40]:
        changed = text.split()
        for place in draw.sample(range(len(changed)), min(len(changed), draw.randint(0, 3))):
            changed[place] = draw.choice(words)
        texts.append("  ".join(changed).upper() + ".")
    copies = Copies(texts)
    for number, text in enumerate(texts):
        expected = [other for other, each in enumerate(texts) if other == number or _common(text, each)]
        assert copies.of(number).tolist() == expected


def _common(one: str, other: str) -> bool:
    left, right = (Counter(text.casefold().replace(".", "").split()) for text in (one, other))
    return (left & right).total() >= 0.9 * max(left.total(), right.total()) > 0


def test_passages_are_of_a_document() -> None:
    assert [source(id) for id in ("d#0", "d#12", "d", "d#x", "a#b#3", "#1")] == ["d", "d", "d", "d#x", "a#b", "#1"]
