"""What happens during a training beside the training: checkpoints, progress, and an estimate of its duration."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm
from transformers import TrainerCallback

SAVE_SECONDS = 120.0  # between checkpoints: what an interruption costs at most
LINE_SECONDS = 60.0  # between lines where there is no terminal
BAR_SECONDS = 0.5  # between updates of a bar
WARM_UP = 10  # steps that are slower: kernels are compiled for every new shape of a batch
ESTIMATED = 20  # the step after which the duration is estimated, from the steps after the warm-up


class TimedCheckpoints(TrainerCallback):
    """Saves a checkpoint when the last one is older than SAVE_SECONDS. The first process decides for all."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        due = torch.tensor(int(time.monotonic() - self._saved >= SAVE_SECONDS), device=args.device)
        if dist.is_initialized():
            dist.broadcast(due, 0)
        if due:
            control.should_save = True


class Progress(TrainerCallback):
    """A bar on a terminal, a line per minute elsewhere, on stderr, by the first process.

    With `estimate`, also a line that says how long the training will take, after the first steps.
    """

    def __init__(self, trainer: Any, label: str, estimate: bool):
        self._trainer = trainer
        self._label = label
        self._estimate = estimate

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
        if self._estimate and step == self._first + ESTIMATED and step < total:
            self._bar.write(f"{self._label}: {total:,} steps, about {left}", file=sys.stderr)
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
