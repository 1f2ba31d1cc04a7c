"""A run as data: a list of steps, planned first and executed later."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError


@dataclass(frozen=True)
class Step:
    """One call of a stage, which returns at once if its output is up to date. `call` does no long work before
    artifact.make, because a dry run stops there."""

    name: str  # unique among the steps of a run
    output: Path
    call: Callable[[], Path]
    inputs: tuple[Path, ...] = ()  # outputs of earlier steps


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
                    step.call()
            except artifact.NotUpToDate as found:
                reason = str(found)
        if reason is not None:
            pending[step.output] = step.name
        yield step, reason


def run(steps: Sequence[Step]) -> dict[str, float]:
    """Execute steps; returns the seconds that each output took. Raises CaiError if another process must finish one."""
    seconds: dict[str, float] = {}
    started = artifact.now()
    for step in steps:
        manifest = artifact.read_manifest(step.call())
        if manifest is None:
            raise CaiError(f"{step.name} is unfinished: another process has yet to encode its shards")
        seconds[step.name] = manifest.stats["seconds"]
        if manifest.created >= started:
            print(f"{step.name:<52} {seconds[step.name]:8.1f} s", file=sys.stderr)
    return seconds


def unchanged(call: Callable[[], Path]) -> Path:
    """Call a stage and return its output. Raises CaiError as `require_unchanged` does."""
    output = call()
    require_unchanged([Step("", output, call)], output)
    return output


def require_unchanged(steps: Sequence[Step], output: Path) -> None:
    """Raise CaiError if the inputs of executed steps have changed meanwhile, and mark `output` as outdated."""
    for _, reason in plan(steps):
        if reason is not None:
            artifact.outdate(output)
            raise CaiError(f"{output}: its inputs changed meanwhile ({reason}): run the command again")


def print_plan(steps: Sequence[Step]) -> None:
    for step, reason in plan(steps):
        print(f"{step.name:<52} {'up to date' if reason is None else f'must run: {reason}'}")
