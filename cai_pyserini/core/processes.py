"""Work spread over processes, because Python code, and Java code that Python calls, uses one processor per process."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from cai_pyserini.core.errors import CaiError

MOST = 16  # processes, unless more threads are asked for; with a JVM each takes up to 0.4 GB

_entered: dict[str, int] = {}  # Java or PyTorch -> the process that has used it


def enter(library: str) -> None:
    """Note that this process uses Java or PyTorch. Raises CaiError if it was forked from one that had: a fork has none
    of the threads of either, and waits for them for ever."""
    if _entered.setdefault(library, os.getpid()) != os.getpid():
        raise CaiError(
            f"{library} cannot be used in this process, which was forked from one that had used it: start processes "
            'otherwise, as by multiprocessing.get_context("spawn"), or fork before anything is opened'
        )


def processes_for(size: int, least: int, threads: int = 0) -> int:
    """The number of processes for `size` units of work, such that each gets at least `least` units.

    At most `threads`, or, if that is 0, one per processor up to MOST.
    """
    return max(1, min(threads or min(MOST, os.cpu_count() or 1), size // least))


@contextmanager
def spread[P, R](work: Callable[[P], Generator[R]], parts: Sequence[P], apart: bool = False) -> Iterator[Iterator[R]]:
    """Iterate over what `work` yields for each part, as it comes. A single part is done in this process, unless `apart`
    is true, several in one process each.

    A process imports the module of `work`, which should import little. The first CaiError or OSError of a process is
    raised here, as is a CaiError for one that dies. No process outlives the context.
    """
    if len(parts) == 1 and not apart:
        with closing(work(parts[0])) as results:
            yield results
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads, or with a JVM, can hang
    running: dict[Connection, BaseProcess] = {}
    try:
        for part in parts:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send_results, args=(work, part, sender), daemon=True)
            process.start()
            running[receiver] = process
            sender.close()  # only the process has it now, so that its end can be noticed
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
                    died = f"a process that shared the work died (exit code {process.exitcode})"
                    raise CaiError(f"{died}; if the memory was not enough, use fewer --threads") from None
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
