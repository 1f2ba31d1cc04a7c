"""Checkpoints by time, and progress, with the calls that a training makes."""

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


@pytest.mark.parametrize("cost, saved", [(1, [5, 10, 15, 20]), (10, [5, 25])])
def test_checkpoints_are_spaced_by_what_they_cost(clock: Clock, cost: float, saved: list[int]) -> None:
    """Every two minutes, unless that were more than 2% of the time: one that takes 10 seconds, every 500."""
    found = []
    callback = TimedCheckpoints(120)
    callback.on_train_begin(*step(0))
    for number in range(1, 26 if cost > 1 else 21):
        clock.now += 25
        arguments, state, control = step(number)
        callback.on_step_end(arguments, state, control)
        if control.should_save:
            found.append(number)
            clock.now += cost
            callback.on_save(arguments, state, control)
    assert found == saved


def progress(clock: Clock, steps: int, seconds: float, **more: Any) -> None:
    """`steps` steps of `seconds` each, but the first takes 1,000 seconds."""
    callback = Progress(SimpleNamespace(last_loss=0.25), "contrast 1/2")
    callback.on_train_begin(*step(0, **more))
    for number in range(1, steps + 1):
        clock.now += seconds if number > 1 else 1000
        callback.on_step_end(*step(number, **more))
    callback.on_train_end(*step(steps, **more))


def test_without_a_terminal_there_is_a_line_per_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress(clock, 14, 20, total=100)
    assert capsys.readouterr().err.splitlines() == [
        "contrast 1/2: step 1/100, loss 0.25, 27.5 hours left",
        "contrast 1/2: step 4/100, loss 0.25, 32 minutes left",
        "contrast 1/2: step 7/100, loss 0.25, 31 minutes left",
        "contrast 1/2: step 10/100, loss 0.25, 30 minutes left",
        "contrast 1/2: step 13/100, loss 0.25, 29 minutes left",
    ]


def test_only_the_first_process_speaks(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress(clock, 14, 70, first_process=False)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress(clock, 20, 20, total=20)
    bar = capsys.readouterr().err.split("\r")[-1]
    assert "contrast 1/2: 100%" in bar and "20/20" in bar and "loss=0.25" in bar
