"""Spans of texts of any length."""

import random
from collections import Counter

import pytest

from cai_pyserini.collection.spans import LONGEST, SHORTEST, random_span


@pytest.mark.parametrize("count", [3, 4, 14, 15, 35, 36, 37, 500])
def test_a_span_is_5_to_12_words_and_at_most_a_third_of_its_text(count: int) -> None:
    words = [f"w{i}," for i in range(count)]
    text = " \n".join(words) + "\t"
    lengths = set()
    for seed in range(300):
        span = random_span(text, random.Random(seed))
        assert span is not None
        found = span.split(" ")
        start = words.index(found[0])
        assert found == words[start : start + len(found)]
        lengths.add(len(found))
    third = count // 3
    assert lengths == set(range(min(SHORTEST, third), min(LONGEST, third) + 1))
    assert random_span(text, random.Random(7)) == random_span(text, random.Random(7))


@pytest.mark.parametrize("text", ["", " \n", "word", "two words"])
def test_a_text_of_less_than_three_words_has_no_span(text: str) -> None:
    assert random_span(text, random.Random(1)) is None


def test_every_place_is_as_likely() -> None:
    draw = random.Random(1)
    found = Counter(random_span("a b c", draw) for _ in range(3000))
    assert found.keys() == {"a", "b", "c"} and min(found.values()) > 900
