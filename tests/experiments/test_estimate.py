"""How long a run will take, said before it begins."""

import json
import re
from pathlib import Path

import pytest

from cai_pyserini.core.config import IndexConfig, load_encoder
from cai_pyserini.core.steps import plan as reasons
from cai_pyserini.experiments.estimate import describe, estimate
from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.plan import plan
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.vectors import encode as encoding
from cai_pyserini.vectors import speed
from tests.conftest import corpus_of


def said(folder: Path, documents: int, *systems: str) -> list[str]:
    """What is said before a run on a collection of this many documents, with about 40 tokens each."""
    corpus_of(folder, {f"d{number}": f"{number} short fingers and long toes. " * 4 for number in range(documents)})
    config, dense = IndexConfig(name="some", source=str(folder)), load_encoder("minilm")
    experiment = Experiment(collection=config, encoder=load_encoder("splade-tiny"), device="cpu", dense=dense)
    run = RunFolder(folder / "run", experiment)
    steps = plan(run, [parse_system(name) for name in systems])
    must_run = [step for step, reason in reasons(steps) if reason]
    return [*describe(must_run, estimate(must_run))]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "speeds.json"


def test_a_long_run_says_how_long_each_step_takes_and_what_shortens_it(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults: a speed is measured again although it is known; documents of a resumed run count as missing."""
    speeds = iter([400.0, 100.0])
    monkeypatch.setattr(speed, "measure", lambda *_: next(speeds))
    lines = said(tmp_path / "c", 2500, "joint", "joint-near")
    assert re.fullmatch(r"1\d steps must run, about \d+ min in all \(estimated\):", lines[0])
    (splade,) = (line for line in lines if line.startswith("  encode documents "))
    tokens = 400 * 60 * int(splade.split()[-2]) / 2500
    assert 30 < tokens < 50
    assert any("  encode is shorter with: " in line for line in lines) and max(map(len, lines)) < 120
    assert sorted(json.loads(cache.read_text()).values()) == [100.0, 400.0]  # of minilm and splade-tiny
    assert said(tmp_path / "c", 2500, "joint", "joint-near") == lines  # no third speed is asked for
    cache.write_text("[")  # by a process that was killed, or another tool
    with pytest.raises(StopIteration):
        said(tmp_path / "c", 2500, "joint", "joint-near")


def test_of_a_small_collection_nothing_is_said_nor_measured(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "measure", lambda *_: pytest.fail("measured"))
    assert said(tmp_path / "c", 50, "joint", "dense") == []
    assert not cache.exists()


def test_the_speed_is_of_the_tokens_that_are_encoded(cache: Path) -> None:
    """The fault: padding, the prompt or the maximum length is left out of the tokens, and the estimate is of others."""
    encoder = EncoderModel(load_encoder("splade-tiny").replace(max_document_length=16), "cpu", "float32")
    texts = ["short", "short fingers and long toes " * 9, " "] * 20
    assert speed.count_tokens(encoder, texts) == 20 * (8 + 16)
    assert speed.tokens_per_second(encoder, texts) == json.loads(cache.read_text()).popitem()[1] > 0


def test_an_encoding_replaces_the_speed_that_was_measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: estimates stay wrong however often one encodes; few texts give a speed."""
    encoder, texts = (
        EncoderModel(load_encoder("splade-tiny"), "cpu", "float32"),
        [f"{number} fingers" for number in range(20)],
    )
    speed.remember(encoder, "documents", 1.0)
    for enough, is_learned in ((21, False), (20, True)):
        monkeypatch.setattr(encoding, "ENOUGH", enough)
        encoding.encode_texts(encoder, texts, 256, lambda count: None)
        assert (speed.tokens_per_second(encoder, texts) > 1) == is_learned
