"""Estimates: samples, and measurements that follow the length of documents."""

import time
from collections import Counter
from pathlib import Path

import pytest

from cai_pyserini.core.settings import build
from cai_pyserini.recipes import estimate
from cai_pyserini.trainer.settings import SpladeSettings
from cai_pyserini.trainer.splade import SpladeTraining


def test_a_sample_is_counted_and_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    assert estimate.sample(["a", " ", "b"], 1) == (3, ["a", "b"])
    monkeypatch.setattr(estimate, "SAMPLE", 5)
    texts = [str(i) for i in range(20)]
    drawn = Counter(text for seed in range(800) for text in estimate.sample(texts, seed)[1])
    assert set(drawn) == set(texts)
    assert min(drawn.values()) > 150 and max(drawn.values()) < 250  # 200 each, on average


def test_seconds_per_text() -> None:
    found = estimate.seconds_per_text(lambda texts: time.sleep(0.002 * len(texts)), ["x"] * 10)
    assert 0.002 <= found < 0.01


@pytest.mark.slow
def test_steps_on_long_documents_take_longer(steady: Path, tmp_path: Path) -> None:
    values = {"data": "x", "base": str(steady), "output": tmp_path, "batch_size": 8, "device": "cpu"}
    job = SpladeTraining(build(SpladeSettings, values, ""))
    short, long = (
        job.step_seconds(estimate.as_examples([f"{i} fever and cough " * repeat for i in range(9)], 1, 0))
        for repeat in (1, 60)
    )
    assert long > 1.5 * short
