"""Work in numbered parts, shared by the machines of a Ray cluster.

Each worker, an actor on one of the machines, sets up once (for example, loads a model) and then does one part after
another. If a machine fails, another one repeats its part.
"""

import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import require_modules

LOCAL = "local"  # the address of a cluster of this machine alone, which ends with this process
OBJECTS = 100 << 20  # bytes of shared memory for Ray on this machine; arguments and results are small
ATTEMPTS = 5  # workers that may die at a part
PATIENCE = 10  # seconds to wait for the cluster to answer

type Work = Callable[[int], object]  # does the part with this number


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to the Ray cluster at `address`: host:port of its head, or LOCAL. Raises CaiError if it does not answer.

    What Ray prints goes to standard error.
    """
    require_modules(("ray",), "ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        if address != LOCAL:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), PATIENCE).close()  # Ray itself would try for two minutes
        import ray.data

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
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        with redirect_stdout(sys.stderr):
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
        result: R = ray.get(ray.remote(num_gpus=1)(lambda: function()).remote())  # Ray does not accept a partial
    except CaiError as error:  # which is also a RayTaskError, whose text is a traceback
        raise CaiError(str(getattr(error, "cause", error))) from None
    return result


def share(set_up: Callable[[], Work], parts: Sequence[int], gpus: bool) -> Iterator[int]:
    """Do these parts, and yield the number of each when it is done.

    Every worker calls `set_up` once, and the function that it returns for every part. There is a worker per GPU with
    `gpus`, else one per machine, or several on a machine with more processors than others. Raises CaiError if a worker
    does, or if several die at the same part.
    """
    import ray.data
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not parts:
        return
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    attempts = ray.remote(num_cpus=0, scheduling_strategy=here)(_Attempts).remote()  # not where a machine may fail
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    processors = [int(machine.get("CPU", 0)) for machine in machines]
    threads = 1 if gpus else min(filter(None, processors))
    workers = int(sum(m.get("GPU", 0) for m in machines)) if gpus else sum(count // threads for count in processors)
    done = ray.data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts)).map(
        _Worker,
        fn_constructor_args=(set_up, attempts),
        # of a fixed size: a pool that grows leaves machines idle
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(parts)), max_tasks_in_flight_per_actor=1),
        num_cpus=threads,
        num_gpus=1 if gpus else 0,
    )
    for row in done.iter_rows():
        if row["error"]:
            raise CaiError(row["error"])
        yield row["part"]


class _Attempts:
    """Counts how often each part has been begun; Ray itself would begin again forever."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, part: int) -> int:
        """Count a further attempt; returns how many there were before."""
        self._counts[part] += 1
        return self._counts[part] - 1


class _Worker:
    """A worker. It returns errors for users instead of raising them, because Ray would wrap them in its own."""

    def __init__(self, set_up: Callable[[], Work], attempts: Any):
        self._set_up = set_up
        self._attempts = attempts
        self._work: Work | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        import ray

        try:
            if ray.get(self._attempts.add.remote(row["part"])) == ATTEMPTS:
                raise CaiError(f"{ATTEMPTS} workers have died at part {row['part']}; is their memory enough?")
            self._work = self._work or self._set_up()
            self._work(row["part"])
        except (CaiError, OSError) as error:
            return row | {"error": f"{error} (on {socket.gethostname()})"}
        return row | {"error": ""}
