"""Distribute numbered parts of work over the machines of a Ray cluster.

Each worker, a Ray actor, sets up once (for example, loads a model), then does one part after another. If a machine
fails, another one repeats its part.
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

LOCAL = "local"  # address of a cluster on this machine alone, which ends with this process
OBJECT_STORE_BYTES = 100 << 20  # Ray's shared memory on this machine; larger data spills to disk
ATTEMPTS = 5  # the run fails after so many deaths of workers on the same part
CONNECT_SECONDS = 10
FATAL = signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL
SIGACTION_BYTES = 512  # more than sizeof(struct sigaction)

type Work[P] = Callable[[int, P], object]  # gets the number of a part, and the part


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to the Ray cluster at `address`: host:port of its head, or LOCAL. Raises CaiError if it does not answer.
    Ray's output goes to standard error. Do not call Java inside this context."""
    require_modules(("ray",), "ray")
    with _same_handlers(), _connected(address), redirect_stdout(sys.stderr):
        yield


@contextmanager
def _same_handlers() -> Iterator[None]:
    """Restore the handlers of fatal signals, which Ray replaces: Java detects null pointers by SIGSEGV."""
    libc, saved = ctypes.CDLL(None), {number: ctypes.create_string_buffer(SIGACTION_BYTES) for number in FATAL}
    for number, handler in saved.items():
        libc.sigaction(number, None, handler)
    try:
        yield
    finally:
        for number, handler in saved.items():
            libc.sigaction(number, handler, None)


@contextmanager
def _connected(address: str) -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        if address != LOCAL:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()  # Ray would try for two minutes
        import ray

        local: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        options = local if address == LOCAL else {}
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises many kinds, among them Exception itself
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
    """Call a function on a machine with a GPU. Raises CaiError if the function does."""
    import ray

    try:
        result: R = ray.get(ray.remote(num_gpus=1)(function).remote())
    except CaiError as error:  # also a RayTaskError, whose text is a traceback
        raise CaiError(str(getattr(error, "cause", error))) from None
    return result


def share[P](set_up: Callable[[], Work[P]], parts: Iterable[tuple[int, P]], gpus: bool) -> Iterator[int]:
    """Do numbered parts, and yield the number of each when it is done.

    Every worker calls `set_up` once, and calls the function that it returns with every part. With `gpus`, there is a
    worker per GPU; else every worker gets as many processors as the smallest machine has. Raises CaiError if a worker
    does, or if ATTEMPTS workers die on the same part.
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
    waiting, retries = iter(parts), list[tuple[int, P]]()  # retries: parts whose worker died
    free: list[Any] = [None] * workers  # None: not started yet
    running: dict[Any, tuple[Any, tuple[int, P]]] = {}  # future -> worker, part
    deaths: Counter[int] = Counter()  # by part
    while True:
        while free and (part := retries.pop() if retries else next(waiting, None)):
            busy = free.pop() or worker.remote(set_up)
            running[busy.work.remote(*part)] = busy, part
        for idle in filter(None, free):
            ray.kill(idle)  # another worker, whose machine failed, may wait for its processors
        free = [None] * len(free)
        if not running:
            return
        (done,), _ = ray.wait([*running], num_returns=1)
        busy, part = running.pop(done)
        try:
            error = ray.get(done)
        except (RayActorError, OutOfMemoryError) as death:
            number = part[0]
            deaths[number] += 1
            if deaths[number] == ATTEMPTS:
                raise CaiError(f"{ATTEMPTS} workers died on part {number}; is their memory enough? {death}") from None
            retries.append(part)
            free.append(None)
            continue
        if error:
            raise CaiError(error)
        free.append(busy)
        yield part[0]


class _Worker:
    """A worker. It returns user errors instead of raising them, because Ray would wrap them in its own."""

    def __init__(self, set_up: Callable[[], Work[Any]]):
        self._set_up = set_up
        self._work: Work[Any] | None = None

    def work(self, number: int, part: Any) -> str:
        """Do a part, and return the error message, empty on success."""
        try:
            self._work = self._work or self._set_up()
            self._work(number, part)
        except (CaiError, OSError) as error:
            return f"{error} (on {socket.gethostname()})"
        return ""
