"""Work in numbered parts, shared by the machines of a Ray cluster.

Each worker, an actor on one of the machines, sets up once (for example, loads a model) and then does one part after
another. If a machine fails, another one repeats its part.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import require_modules

LOCAL = "local"  # the address of a cluster of this machine alone, which ends with this process
OBJECTS = 100 << 20  # bytes of shared memory for Ray on this machine, which puts more on disk
ATTEMPTS = 5  # workers that may die at a part
PATIENCE = 10  # seconds to wait for the cluster to answer
FATAL = signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL
HANDLER = 512  # bytes, more than a `struct sigaction` has

type Work[P] = Callable[[int, P], object]  # does the part with this number


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to the Ray cluster at `address`: host:port of its head, or LOCAL. Raises CaiError if it does not answer.

    What Ray prints goes to standard error. Do not call Java meanwhile.
    """
    require_modules(("ray",), "ray")
    with _same_handlers(), _connected(address), redirect_stdout(sys.stderr):
        yield


@contextmanager
def _same_handlers() -> Iterator[None]:
    """Give fatal signals back their handlers, which Ray replaces. Java's are part of how it works: compiled code that
    meets a null pointer relies on SIGSEGV."""
    system, kept = ctypes.CDLL(None), {number: ctypes.create_string_buffer(HANDLER) for number in FATAL}
    for number, handler in kept.items():
        system.sigaction(number, None, handler)
    try:
        yield
    finally:
        for number, handler in kept.items():
            system.sigaction(number, handler, None)


@contextmanager
def _connected(address: str) -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        if address != LOCAL:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), PATIENCE).close()  # Ray itself would try for two minutes
        import ray

        own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECTS} if address == LOCAL else {}
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # Ray raises many kinds, also this one
        reason = str(error).strip().partition("\n")[0]
        if address == LOCAL:
            raise CaiError(f"Ray does not start on this machine ({reason}); is it very busy?") from None
        raise CaiError(
            f"no Ray cluster at {address} ({reason}): give host:port of its head, as `ray start --head` prints it, and "
            "run this command on one of its machines"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def has_gpus() -> bool:
    import ray

    return bool(ray.cluster_resources().get("GPU"))


def on_gpu[R](function: Callable[[], R]) -> R:
    """Call a function on a machine that has a GPU. Raises CaiError if the function does."""
    import ray

    try:
        result: R = ray.get(ray.remote(num_gpus=1)(function).remote())
    except CaiError as error:  # which is also a RayTaskError, whose text is a traceback
        raise CaiError(str(getattr(error, "cause", error))) from None
    return result


def share[P](set_up: Callable[[], Work[P]], parts: Iterable[tuple[int, P]], gpus: bool) -> Iterator[int]:
    """Do these parts, each with its number, and yield the number of each when it is done.

    Every worker calls `set_up` once, and the function that it returns for every part. There is a worker per GPU with
    `gpus`, else one per machine, or several on a machine with more processors than others. Raises CaiError if a worker
    does, or if several die at the same part.
    """
    import ray
    from ray.exceptions import OutOfMemoryError, RayActorError

    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    processors = [int(machine.get("CPU", 0)) for machine in machines]
    threads = 1 if gpus else min(filter(None, processors), default=1)
    workers = int(sum(m.get("GPU", 0) for m in machines)) if gpus else sum(count // threads for count in processors)
    if not workers:
        raise CaiError("the Ray cluster has no processors, or no whole GPU: add machines")
    worker = ray.remote(num_cpus=threads, num_gpus=int(gpus))(_Worker)
    waiting, again = iter(parts), list[tuple[int, P]]()  # the latter after the death of a worker
    free: list[Any] = [None] * workers  # None: one that is not started
    running: dict[Any, tuple[Any, tuple[int, P]]] = {}  # a result to come -> the worker, and the part
    deaths: Counter[int] = Counter()  # by part
    while True:
        while free and (part := again.pop() if again else next(waiting, None)):
            at_work = free.pop() or worker.remote(set_up)
            running[at_work.work.remote(*part)] = at_work, part
        for idle in filter(None, free):
            ray.kill(idle)  # in case another, whose machine has failed, waits for its processors
        free = [None] * len(free)
        if not running:
            return
        (done,), _ = ray.wait([*running], num_returns=1)
        at_work, part = running.pop(done)
        try:
            error = ray.get(done)
        except (RayActorError, OutOfMemoryError) as death:
            number = part[0]
            deaths[number] += 1
            if deaths[number] == ATTEMPTS:
                raise CaiError(
                    f"{ATTEMPTS} workers have died at part {number}; is their memory enough? {death}"
                ) from None
            again.append(part)
            free.append(None)
            continue
        if error:
            raise CaiError(error)
        free.append(at_work)
        yield part[0]


class _Worker:
    """A worker. It returns errors for users instead of raising them, because Ray would wrap them in its own."""

    def __init__(self, set_up: Callable[[], Work[Any]]):
        self._set_up = set_up
        self._work: Work[Any] | None = None

    def work(self, number: int, part: Any) -> str:
        """Do a part; returns what went wrong."""
        try:
            self._work = self._work or self._set_up()
            self._work(number, part)
        except (CaiError, OSError) as error:
            return f"{error} (on {socket.gethostname()})"
        return ""
