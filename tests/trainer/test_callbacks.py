"""Checkpoints by time, progress and estimates, with the calls that a training makes."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cai_pyserini.trainer import callbacks
from cai_pyserini.trainer.callbacks import Progress, TimedCheckpoints, duration


class Clock:
    """Stands in for time.monotonic."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(callbacks.time, "monotonic", clock)
    return clock


def step(number: int, total: int = 1000, first_process: bool = True) -> tuple[Any, Any, Any]:
    state = SimpleNamespace(global_step=number, max_steps=total, is_world_process_zero=first_process)
    return SimpleNamespace(device="cpu"), state, SimpleNamespace(should_save=False)


def test_durations() -> None:
    assert [duration(s) for s in (0.1, 40, 89.9, 90, 5000, 5400, 12600)] == [
        "2 seconds", "40 seconds", "90 seconds", "2 minutes", "83 minutes", "1.5 hours", "3.5 hours"
    ]  # fmt: skip


def test_a_checkpoint_is_due_two_minutes_after_the_last(clock: Clock) -> None:
    saved = []
    callback = TimedCheckpoints()
    callback.on_train_begin(*step(0))
    for number in range(1, 13):
        clock.now += 25
        arguments, state, control = step(number)
        if number == 7:  # one that save_steps asked for
            callback.on_save(arguments, state, control)
        callback.on_step_end(arguments, state, control)
        if control.should_save:
            saved.append(number)
            callback.on_save(arguments, state, control)
    assert saved == [5, 12]


def progress(clock: Clock, steps: int, seconds: float, estimate: bool, **more: Any) -> None:
    """`steps` steps of `seconds` each, but the first takes 1,000 seconds."""
    callback = Progress(SimpleNamespace(last_loss=0.25), "contrast 1/2", estimate)
    callback.on_train_begin(*step(0, **more))
    for number in range(1, steps + 1):
        clock.now += seconds if number > 1 else 1000
        callback.on_step_end(*step(number, **more))
    callback.on_train_end(*step(steps, **more))


def test_without_a_terminal_there_is_a_line_per_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress(clock, 14, 20, estimate=False, total=100)
    assert capsys.readouterr().err.splitlines() == [
        "contrast 1/2: step 1/100, loss 0.25, 27.5 hours left",
        "contrast 1/2: step 4/100, loss 0.25, 32 minutes left",
        "contrast 1/2: step 7/100, loss 0.25, 31 minutes left",
        "contrast 1/2: step 10/100, loss 0.25, 30 minutes left",
        "contrast 1/2: step 13/100, loss 0.25, 29 minutes left",
    ]


def test_the_duration_is_estimated_after_the_first_steps(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress(clock, 25, 0.6, estimate=True, total=1020)
    assert "contrast 1/2: 1,020 steps, about 10 minutes" in capsys.readouterr().err
    progress(clock, 20, 0.6, estimate=True, total=20)
    assert "about" not in capsys.readouterr().err


def test_only_the_first_process_speaks(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress(clock, 14, 70, estimate=True, first_process=False)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress(clock, 20, 20, estimate=False, total=20)
    bar = capsys.readouterr().err.split("\r")[-1]
    assert "contrast 1/2: 100%" in bar and "20/20" in bar and "loss=0.25" in bar
