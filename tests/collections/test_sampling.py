"""Duplicate ids, copies, uniform samples of streams, and random spans of texts."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from cai_pyserini.collections.copies import Copies
from cai_pyserini.collections.spans import LONGEST, SHORTEST, SPANS_PER_TEXT, Contexts, Reservoir, random_span
from cai_pyserini.collections.values import SeenIds
from cai_pyserini.core.config import document_of


def test_ids_are_remembered_after_merging() -> None:
    ids = SeenIds()
    count = (1 << 17) + 3  # merged twice, and three recent ones
    assert not any(ids.add(f"d{i}") for i in range(count))
    met = [0, (1 << 16) - 1, 1 << 16, (1 << 17) - 1, 1 << 17, count - 1]
    assert all(ids.add(f"d{i}") for i in met)
    assert not ids.add(f"d{count}")


def test_the_reservoir_is_uniform() -> None:
    draw = random.Random(1)
    kept: Counter[int] = Counter()
    for _ in range(3000):
        reservoir: Reservoir[int] = Reservoir(5, draw)
        for item in range(20):
            reservoir.add(item)
            assert reservoir.items == list(range(item + 1)) or item >= 5
        assert reservoir.seen == 20 and len(set(reservoir.items)) == 5
        kept.update(reservoir.items)
    assert all(650 < kept[item] < 850 for item in range(20))  # 750 expected, deviation 24


def contexts(texts: Iterable[str], size: int = 100) -> list[str]:
    sample = Contexts(size)
    for text in texts:
        sample.add(text)
    return sample.items


@pytest.mark.parametrize("size", [100, 10_000])  # of 4,000 spans
def test_adding_or_removing_a_text_changes_few_contexts(size: int) -> None:
    """They are in the order of the keys, not of the texts."""
    texts = [" ".join(f"{number}-{word}" for word in range(40)) for number in range(500)]
    whole = contexts(texts, size)
    assert len(whole) == min(size, 500 * SPANS_PER_TEXT) and contexts(reversed(texts + texts[:9]), size) == whole
    for removed in range(0, 500, 50):
        own = {span for span in whole if span.startswith(f"{removed}-")}
        left = contexts(texts[:removed] + texts[removed + 1 :], size)
        others = [span for span in whole if span not in own]
        assert left[: len(others)] == others and len(left) == min(size, 499 * SPANS_PER_TEXT)
        assert len(own) <= SPANS_PER_TEXT and own == set(contexts([texts[removed]])) & own


def test_contexts_are_spread_over_all_texts() -> None:
    texts = [" ".join(f"{number}-{word}" for word in range(40)) for number in range(500)]
    found = Counter(span.split("-")[0] for span in contexts(texts, 2000))
    # Of 500, 2 have none: each has 8 spans, half are chosen.
    assert len(found) > 480 and max(found.values()) <= SPANS_PER_TEXT
    assert len(set(contexts(texts, 2000))) > 1900 and contexts(["two words", ""]) == []


@pytest.mark.parametrize("count", [3, 4, 14, 15, 35, 36, 37, 500])
def test_a_span_is_5_to_12_words_and_at_most_a_third_of_its_text(count: int) -> None:
    words = [f"w{i}," for i in range(count)]
    text = " \n".join(words) + "\t"
    spans = [random_span(text, random.Random(seed)) or "" for seed in range(300)]
    for span in spans:
        found = span.split(" ")
        start = words.index(found[0])
        assert found == words[start : start + len(found)]
    third = count // 3
    lengths = {len(span.split()) for span in spans}
    assert lengths == set(range(min(SHORTEST, third), min(LONGEST, third) + 1))
    assert random_span(text, random.Random(7)) == spans[7]


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
    assert [document_of(id) for id in ("d#0", "d#12", "d", "d#x", "a#b#3", "#1")] == ["d", "d", "d", "d#x", "a#b", "#1"]
