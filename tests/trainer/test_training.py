"""Shared by all trainings: number of steps, progress, checkpoints, and errors."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cai_pyserini.cli.adapt import main as adapt
from cai_pyserini.cli.train import main
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.trainer import training
from cai_pyserini.trainer.pairs import train
from cai_pyserini.trainer.settings import DenseSettings, PairSettings, SpladeSettings

MakeSettings = Callable[..., SpladeSettings]
PAIRS = {"data": "x.jsonl", "base": "x", "output": "x"}
MSMARCO = 502_939  # queries with a positive in msmarco-hard-negatives.jsonl.gz, each with 30 negatives in our file


@pytest.mark.parametrize(
    "kind, steps",
    [
        (SpladeSettings, 377_220),  # 30 epochs of 12,574 steps of 40
        (DenseSettings, 235_770),  # 30 epochs of 7,859 steps of 64
    ],
)
def test_the_defaults_train_as_long_and_warm_up_as_long_as_the_paper(
    kind: type[PairSettings], steps: int, tmp_path: Path
) -> None:
    settings = build(kind, PAIRS | {"device": "cpu"}, "")
    assert training.total_steps(settings, MSMARCO) == steps
    assert training.training_arguments(settings, tmp_path).get_warmup_steps(steps) == 1000


def test_steps_of_accumulated_batches() -> None:
    settings = build(SpladeSettings, PAIRS | {"batch_size": 4, "epochs": 2.5}, "")
    assert training.total_steps(settings, 9) == 8  # 2.5 epochs of 3 batches
    assert training.total_steps(settings.replace(accumulate=3), 9) == 3  # of 1
    assert training.total_steps(settings.replace(max_steps=7), 9) == 7


@pytest.mark.slow
def test_a_training_of_one_step_trains_and_shows_its_loss_on_stderr(
    splade_settings: MakeSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(splade_settings(tmp_path / "model", max_steps=0, epochs=0.1, log_steps=1))
    out, err = capsys.readouterr()
    (log,) = json.loads((tmp_path / "model" / "log.json").read_text())
    assert log["learning_rate"] == 1e-4  # a warm-up would begin at 0
    lines = err.splitlines()
    assert {"splade: 24 examples, 1 steps", f"step 1/1, loss {log['loss']:.4g}"} <= {*lines} and not out


def test_checkpoints_are_saved_every_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now, found = 100.0, []
    monkeypatch.setattr(training.time, "monotonic", lambda: now)
    callback = training.TimedCheckpoints(120)
    arguments: Any = SimpleNamespace(device="cpu"), None
    callback.on_train_begin(*arguments, None)
    for number in range(1, 16):
        now += 25
        control = SimpleNamespace(should_save=False)
        callback.on_step_end(*arguments, control)
        if control.should_save:
            found.append(number)
            callback.on_save(*arguments, control)
    assert found == [5, 10, 15]


@pytest.mark.parametrize(
    "run, call",
    [
        (main, "splade --data TRIPLES"),
        (main, "pretrain --corpus hpo"),
        (adapt, "--collection hpo"),
    ],
)
def test_devices_on_which_a_training_would_go_wrong_are_refused(
    run: Callable[[list[str]], None], call: str, triples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults: auto was used instead of the device, or only auto and cpu were accepted."""
    flags = [*call.replace("TRIPLES", str(triples)).split(), "--base", "splade-tiny", f"--output={tmp_path / 'model'}"]
    for device in ("cuda:1", "mps"):
        with pytest.raises(CaiError, match=f"no device '{device}'"):
            run([*flags, "--device", device])
    monkeypatch.setenv("WORLD_SIZE", "2")
    if run is main:
        with pytest.raises(CaiError, match="a training runs in one process, on one GPU: start it without torchrun"):
            run(flags)
    assert not list(tmp_path.iterdir())


def test_one_of_several_gpus_trains(splade_settings: MakeSettings, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for device, gpu in {"cuda:1": 1, "cuda": 0}.items():
        settings = splade_settings(tmp_path / "model", device=device, precision="float32")
        assert training.training_arguments(settings, tmp_path).gpu == gpu
