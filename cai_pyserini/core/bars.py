"""Progress bars, and the one line that a step of a run has on a terminal, which the bars of its work feed."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

if TYPE_CHECKING:
    Tqdm = tqdm[Any]
else:
    Tqdm = tqdm  # cannot be subscripted

COLUMNS = 80  # width of a terminal that does not tell it
NAME_COLUMNS = 48
SECONDS_COLUMNS = 11
DISABLED = True if os.environ.get("TERM") == "dumb" else None  # None: except on a terminal
INTERVAL = 0.5  # seconds between updates
# A bar predicts better than the estimate from before the step after these seconds and this share of the work.
SETTLED_SECONDS, SETTLED_SHARE = 3.0, 0.02
SMOOTHING = 0.1  # tqdm's, for the speed

_line: "_StepLine | None" = None


def progress_line(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr)


def bar[T](items: Iterable[T], total: int | None, label: str, unit: str) -> "tqdm[T]":
    """See terminal.progress."""
    options: dict[str, Any] = {"iterable": items, "total": total, "mininterval": INTERVAL, "smoothing": SMOOTHING}
    if _line is not None:
        return _Part(_line, unit=unit, **options)
    unit_text = "B" if unit == "B" else f" {unit}"
    return tqdm(desc=label, unit=unit_text, unit_scale=unit == "B", disable=DISABLED, **options)


@contextmanager
def step_line(name: str, estimate: float | None, later: float | None) -> Iterator[None]:
    """Let all bars feed one line, that of the step `name`. `estimate` is of the step's seconds, `later` of those of all
    later steps; None if unknown."""
    global _line
    with _StepLine(name, estimate, later) as _line:
        try:
            if _line.disable:
                yield
            else:
                with logging_redirect_tqdm():  # so that warnings do not begin within the line
                    yield
        finally:
            _line = None


class _StepLine(Tqdm):
    """The line of a step, which disappears when the step has finished."""

    def __init__(self, name: str, estimate: float | None, later: float | None):
        self._name, self._estimate, self._later = name, estimate, later
        self.part: _Part | None = None  # the bar that feeds it
        super().__init__(leave=False, disable=DISABLED)

    def __str__(self) -> str:
        own, part = self.format_dict, self.part.format_dict if self.part is not None else None
        count = ""
        left = None if self._estimate is None else max(self._estimate - own["elapsed"], 0.0)
        if part:
            done, total = part["n"], part["total"]
            count = f"{min(done / total, 1):.0%}" if total else f"{done:,} {part['unit']}"
            settled = total and part["elapsed"] > SETTLED_SECONDS and done > SETTLED_SHARE * total
            if total and part["rate"] and (left is None or settled):
                left = max(total - done, 0) / part["rate"]
        times = [] if left is None else [f"{clock(left)} left"]
        if left is not None and self._later is not None:
            times.append(f"{duration(left + self._later)} in all")
        more = "".join(f"  {text}" for text in (count, ", ".join(times)) if text)
        return shortened(self._name, max((columns() or COLUMNS) - len(more), 1)) + more


class _Part(Tqdm):
    """A bar that feeds a step's line; disabled if another one does."""

    def __init__(self, line: _StepLine, **options: Any):
        self._line = line
        super().__init__(position=0, leave=False, disable=line.disable or line.part is not None, **options)
        if not self.disable:
            line.part = self
            line.refresh()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self._line.part is self:
            self._line.refresh()

    def close(self) -> None:
        super().close()
        if self._line.part is self:
            self._line.part = None
            self._line.refresh()


def finished(name: str, seconds: float) -> None:
    """Print the line that stays of a step."""
    width = (columns() or sys.maxsize) - SECONDS_COLUMNS
    progress_line(f"{shortened(name, width):<{min(width, NAME_COLUMNS)}} {seconds:8.1f} s")


def columns() -> int | None:
    """The columns to write in on the terminal that standard error is; None if it is none. In the last column, some
    terminals begin another line."""
    with suppress(OSError, ValueError):
        size = shutil.get_terminal_size(os.get_terminal_size(sys.stderr.fileno()))  # COLUMNS in the environment first
        return (size.columns or COLUMNS) - 1
    return None


def shortened(text: str, length: int) -> str:
    """A text without its end if it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def clock(seconds: float) -> str:
    """Seconds as 2:10 or 1:02:10."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def duration(seconds: float) -> str:
    """Seconds in a unit that leaves few digits: 80 s, 9 min, 2.5 h."""
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
