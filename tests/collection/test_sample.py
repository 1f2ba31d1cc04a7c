"""The reservoir: what it keeps is a uniform sample of what it has seen."""

import random
from collections import Counter

from cai_pyserini.collection.sample import Reservoir


def test_every_item_is_kept_as_often_as_every_other() -> None:
    draw = random.Random(1)
    kept: Counter[int] = Counter()
    for _ in range(3000):
        reservoir: Reservoir[int] = Reservoir(5, draw)
        for item in range(20):
            reservoir.add(item)
        assert reservoir.seen == 20 and len(set(reservoir.items)) == 5
        kept.update(reservoir.items)
    assert all(650 < kept[item] < 850 for item in range(20))  # 750 expected, deviation 24


def test_a_short_stream_is_kept_whole() -> None:
    reservoir: Reservoir[str] = Reservoir(5, random.Random(1))
    for item in "abc":
        reservoir.add(item)
    assert reservoir.items == ["a", "b", "c"] and reservoir.seen == 3
