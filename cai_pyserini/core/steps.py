"""A run as data: a list of steps, planned first and executed later."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError

type Estimates = Mapping[Path, float | None]  # output of a step that must run -> its seconds; None if unknown


class Step(Protocol):
    """What makes one artifact."""

    @property
    def name(self) -> str:
        """Unique among the steps of a run; its first word says what is done."""

    @property
    def output(self) -> Path: ...

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Outputs of earlier steps."""

    @property
    def remedy(self) -> str:
        """What makes it faster; empty if nothing does."""

    @property
    def make(self) -> Callable[[], Path]:
        """A stage, which returns at once if its output is up to date. It does no long work before artifact.make,
        because a dry run stops there."""

    def require(self) -> None:
        """Raise CaiError, before any step runs, if this one cannot run."""

    def seconds(self) -> float | None:
        """An estimate of the time it takes; None if it is not known."""


@dataclass(frozen=True)
class Call:
    """A step that calls a function."""

    name: str
    output: Path
    make: Callable[[], Path]
    inputs: tuple[Path, ...] = ()
    remedy: str = ""

    def require(self) -> None:
        """A function checks its settings itself."""

    def seconds(self) -> None:
        return None


def plan(steps: Sequence[Step]) -> Iterator[tuple[Step, str | None]]:
    """Yield every step with the reason why it must run, or None if it is up to date. Nothing is written."""
    pending: dict[Path, str] = {}
    for step in steps:
        reason = None
        if blockers := [pending[path] for path in step.inputs if path in pending]:
            reason = f"after {blockers[0]}"
        else:
            try:
                with artifact.dry_run():
                    step.make()
            except artifact.NotUpToDate as found:
                reason = str(found)
        if reason is not None:
            pending[step.output] = step.name
        yield step, reason


def run(
    steps: Sequence[Step], estimates: Estimates | None = None, finished: Callable[[Step], None] = lambda step: None
) -> dict[str, float]:
    """Execute steps, and call `finished` with each; returns the seconds that each output took. `estimates` has the
    steps that must run, by default without estimates. Raises CaiError if another process must finish one."""
    from cai_pyserini.core import bars  # imports tqdm, which takes time

    if estimates is None:
        estimates = {step.output: None for step, reason in plan(steps) if reason is not None}
    seconds: dict[str, float] = {}
    started, count, later = artifact.now(), f"{len(estimates)}", [*estimates.values()]
    for step in steps:
        estimate, must_run = None, step.output in estimates
        if must_run:
            estimate, *later = later
        name = f"[{len(estimates) - len(later):>{len(count)}}/{count}] {step.name}"
        with bars.step_line(name, estimate, total(later)) if must_run else nullcontext():
            manifest = artifact.read_manifest(step.make())
        if manifest is None:
            raise CaiError(f"{step.name} is unfinished: another process has yet to encode its shards")
        seconds[step.name] = manifest.stats["seconds"]
        if manifest.created >= started:
            bars.finished(name, seconds[step.name])
        if must_run:
            finished(step)
    return seconds


def total(estimates: Sequence[float | None]) -> float | None:
    """The sum of estimates; None if one is unknown."""
    known = [estimate for estimate in estimates if estimate is not None]
    return sum(known) if len(known) == len(estimates) else None


def unchanged(call: Callable[[], Path]) -> Path:
    """Call a stage and return its output. Raises CaiError as `require_unchanged` does."""
    output = call()
    require_unchanged([Call("", output, call)], output)
    return output


def require_unchanged(steps: Sequence[Step], output: Path) -> None:
    """Raise CaiError if the inputs of executed steps have changed meanwhile, and mark `output` as outdated."""
    for _, reason in plan(steps):
        if reason is not None:
            artifact.outdate(output)
            raise CaiError(f"{output}: its inputs changed meanwhile ({reason}): run the command again")


def print_plan(steps: Sequence[Step]) -> list[Step]:
    """Print every step with the reason why it must run, and return those that must."""
    reasons = dict(plan(steps))
    for step, reason in reasons.items():
        print(f"{step.name:<52} {'up to date' if reason is None else f'must run: {reason}'}")
    return [step for step, reason in reasons.items() if reason is not None]
