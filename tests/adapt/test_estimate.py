"""Estimates: samples, and seconds per text."""

import time
from collections import Counter

import pytest

from cai_pyserini.adapt import estimate


def test_a_sample_is_counted_and_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    assert estimate.sample(["a", " ", "b"], 1) == (3, ["a", "b"])
    monkeypatch.setattr(estimate, "SAMPLE", 5)
    texts = [str(i) for i in range(20)]
    drawn = Counter(text for seed in range(800) for text in estimate.sample(texts, seed)[1])
    assert set(drawn) == set(texts)
    assert min(drawn.values()) > 150 and max(drawn.values()) < 250  # 200 each, on average


def test_seconds_per_text() -> None:
    found = estimate.seconds_per_text(lambda texts: time.sleep(0.002 * len(texts)), ["x"] * 10)
    assert 0.002 <= found < 0.1
