"""Spread work over processes: Python code, and Java called from Python, use only one processor per process."""

import ctypes
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from cai_pyserini.core.errors import CaiError

MOST = 16  # default limit of processes; each takes up to 0.4 GB with a JVM

_entered: dict[str, int] = {}  # Java or PyTorch -> id of the process that used it first


def enter(library: str) -> None:
    """Record that this process uses Java or PyTorch. Raises CaiError if it was forked from a process that used the
    library: a fork lacks the library's threads, and would wait for them forever."""
    if _entered.setdefault(library, os.getpid()) != os.getpid():
        raise CaiError(
            f"{library} cannot be used in this process, which was forked from one that had used it: start processes "
            'with multiprocessing.get_context("spawn"), or fork before anything is opened'
        )


@cache
def processors(root: Path = Path("/")) -> int:
    """The number of processors that this process may use: those of its CPU affinity, or fewer if the control groups
    (cgroups) in the file system at `root` have a lower CPU quota, which is rounded up."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([affinity, *map(math.ceil, _quotas(root))])


def openmp_threads() -> int:
    """The number of threads for PyTorch and Faiss: OMP_NUM_THREADS if it is set, else the number of processors."""
    chosen = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return (int(chosen) if chosen.isdecimal() else 0) or processors()


def _quotas(root: Path) -> Iterator[float]:
    """The quotas, in processors, of the control groups of this process, of version 1 or 2, and of their ancestors."""
    try:
        groups, mounts = (
            (root / "proc/self" / name).read_text(encoding="utf-8").splitlines() for name in ("cgroup", "mountinfo")
        )
    except OSError:  # not Linux
        return
    paths = {controllers: Path(path) for _, controllers, path in (line.split(":", 2) for line in groups)}
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        (top, folder), kind = left.split(" ")[3:5], right.partition(" ")[0]
        for controllers, path in paths.items():
            if kind == "cgroup2" if not controllers else kind == "cgroup" and "cpu" in controllers.split(","):
                inside = path.relative_to(top) if path.is_relative_to(top) else Path()  # a container sees only its own
                for group in (inside, *inside.parents):
                    yield from _quota(root / folder[1:] / group)


def _quota(group: Path) -> Iterator[float]:
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with suppress(OSError, ValueError):  # no such file, or no quota: "max"
            quota, period = map(int, " ".join((group / name).read_text(encoding="utf-8") for name in names).split())
            if quota > 0:
                yield quota / period


def processes_for(size: int, least: int, threads: int = 0) -> int:
    """The number of processes for `size` units of work, so that each gets at least `least` units: at most `threads`; if
    that is 0, at most one per processor, and MOST in all."""
    return max(1, min(threads or min(MOST, processors()), size // least))


@contextmanager
def spread[P, R](work: Callable[[P], Generator[R]], parts: Sequence[P], apart: bool = False) -> Iterator[Iterator[R]]:
    """Iterate over the results that `work` yields for all parts, in the order in which they arrive. A single part is
    done in this process unless `apart`; several get a process each, which imports the module of `work`. Raises the
    first CaiError or OSError of a process, and CaiError if one dies. No process outlives the context."""
    if len(parts) == 1 and not apart:
        with closing(work(parts[0])) as results:
            yield results
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads or a JVM can hang
    running: dict[Connection, BaseProcess] = {}
    try:
        for part in parts:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send_results, args=(work, part, sender), daemon=True)
            process.start()
            running[receiver] = process
            sender.close()  # now only the process holds it, so its end raises EOFError in `recv`
        yield _received(running)
    finally:
        for worker in running.values():
            worker.kill()
            worker.join()


def _received(running: dict[Connection, BaseProcess]) -> Iterator[Any]:
    while running:
        for receiver in cast(list[Connection], wait(list(running))):
            try:
                result = receiver.recv()
            except EOFError:  # the process has ended
                process = running.pop(receiver)
                process.join()
                if process.exitcode:
                    died = f"a worker process died (exit code {process.exitcode})"
                    raise CaiError(f"{died}; if it ran out of memory, use fewer threads") from None
                continue
            if isinstance(result, Exception):
                raise result
            yield result


def _send_results[P, R](work: Callable[[P], Generator[R]], part: P, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then kills this process
    with suppress(BrokenPipeError):  # the parent is gone
        try:
            for result in work(part):
                sender.send(result)
        except (CaiError, OSError) as error:
            sender.send(error)


def trim_memory() -> None:
    """Return freed memory to the system; otherwise glibc keeps it until the process ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
