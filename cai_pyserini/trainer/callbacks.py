"""What happens during a training beside the training: checkpoints and progress."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm
from transformers import TrainerCallback

SAVE_SHARE = 0.02  # of the time, at most, is spent on saving checkpoints
LINE_SECONDS = 60.0  # between lines where there is no terminal
BAR_SECONDS = 0.5  # between updates of a bar
WARM_UP = 10  # steps that are slower: kernels are compiled for every new shape of a batch


class TimedCheckpoints(TrainerCallback):
    """Saves a checkpoint when the last one is `seconds` old, or later, so that saving takes at most SAVE_SHARE of the
    time, judged by how long the last one took. The first process decides for all."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._cost = 0.0  # seconds that the last checkpoint took

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved = time.monotonic()
        self._cost = self._saved - self._step_end

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._step_end = time.monotonic()
        interval = max(self._seconds, self._cost / SAVE_SHARE)
        due = torch.tensor(int(self._step_end - self._saved >= interval), device=args.device)
        if dist.is_initialized():
            dist.broadcast(due, 0)
        if due:
            control.should_save = True


class Progress(TrainerCallback):
    """A bar on a terminal, a line per minute elsewhere, on stderr, by the first process."""

    def __init__(self, trainer: Any, label: str):
        self._trainer = trainer
        self._label = label

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._first = state.global_step
            self._shown = time.monotonic()
            self._mark = state.global_step, self._shown  # the pace is measured from here
            self._bar = tqdm(
                total=state.max_steps, initial=state.global_step, desc=self._label, unit="step", disable=None
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        step, total, now = state.global_step, state.max_steps, time.monotonic()
        marked_step, marked = self._mark
        left = duration((total - step) * (now - marked) / (step - marked_step))
        if step == self._first + WARM_UP:
            self._mark = step, now
        if now - self._shown < (LINE_SECONDS if self._bar.disable else BAR_SECONDS) and step < total:
            return
        self._shown = now
        loss = f"{float(self._trainer.last_loss):.4g}"
        if not self._bar.disable:
            self._bar.set_postfix(loss=loss, refresh=False)
            self._bar.update(step - self._bar.n)
        elif step < total:
            print(f"{self._label}: step {step:,}/{total:,}, loss {loss}, {left} left", file=sys.stderr)
            self._mark = step, now

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._bar.close()


def duration(seconds: float) -> str:
    """A duration for people: `40 seconds`, `12 minutes`, `3.5 hours`."""
    if seconds < 90:
        return f"{max(2, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
