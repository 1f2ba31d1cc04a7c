"""How long the steps of a run take, about, how much disk, and what would shorten them."""

import logging
from collections.abc import Iterator, Sequence
from shutil import disk_usage
from textwrap import wrap

from cai_pyserini.core.bars import columns, duration
from cai_pyserini.core.steps import Estimates, Step, total
from cai_pyserini.experiments.run_folder import RunFolder

logger = logging.getLogger(__name__)
ANNOUNCED_SECONDS = 60.0  # smaller totals are not announced
ANNOUNCED_BYTES = 1e9  # smaller needs are not reported
LISTED_SECONDS = 10.0  # steps that take less are not listed
LONG = 0.1  # share of all seconds
PAGE_COLUMNS = 100  # where no terminal limits them


def estimate(steps: Sequence[Step]) -> Estimates:
    """The seconds of each step. Measures the speed of encoders that are not known on this machine."""
    return {step.output: step.seconds() for step in steps}


def describe(run: RunFolder, steps: Sequence[Step], estimates: Estimates) -> Iterator[str]:
    """Yield lines that say how long steps will take, what shortens it, and how much disk they need; none for little."""
    yield from describe_time(steps, estimates)
    yield from describe_space(run, steps)


def describe_time(steps: Sequence[Step], estimates: Estimates) -> Iterator[str]:
    seconds = [estimates[step.output] for step in steps]
    known = sum(each or 0 for each in seconds)
    if known < ANNOUNCED_SECONDS and None not in seconds:
        return
    least = "" if total(seconds) is not None else "at least "
    yield f"{len(steps)} steps must run, {least}about {duration(known)} in all (estimated):"
    listed = [(step, each) for step, each in zip(steps, seconds, strict=True) if each is None or each >= LISTED_SECONDS]
    for step, each in listed:
        yield f"  {step.name:<40} {'unknown' if each is None else f'about {duration(each)}'}"
    if others := len(steps) - len(listed):
        rest = known - sum(each or 0 for _, each in listed)
        yield f"  {f'{others} others, each under {duration(LISTED_SECONDS)}':<40} about {duration(rest)}"
    long = [step for step, each in listed if each is None or each > LONG * known]
    remedies = {step.name.split()[0].removesuffix(":"): step.remedy for step in long if step.remedy}
    for work, remedy in remedies.items():
        yield from wrap(f"  {work} is shorter with: {remedy}", columns() or PAGE_COLUMNS, subsequent_indent="    ")


def describe_space(run: RunFolder, steps: Sequence[Step]) -> Iterator[str]:
    """Yield a line that says how much disk steps will take, if it is much; warn if less is free."""
    if (needed := sum(step.bytes() for step in steps)) < ANNOUNCED_BYTES:
        return
    free = disk_usage(next(path for path in (run.root, *run.root.absolute().parents) if path.exists())).free
    yield f"about {needed / 1e9:,.0f} GB of disk will be needed (estimated); {free / 1e9:,.0f} GB are free"
    if needed > free:
        logger.warning("the disk of %s may be too small: free some space, or run fewer systems", run.root)
