"""What the encode stage takes on a Ray cluster: without one, on one of one machine, and on one of two.

The documents of a collection, repeated until there are --shards of them, are encoded by
`cai-pyserini stage encode` without Ray, on a cluster of one machine and on one of two; and in two processes without Ray
(--shard-num), which shows what two processors can do. Each machine is a process with one processor, and each model runs
in one thread, so that this needs two processors and an otherwise idle machine. The time is that of the whole command:
imports, checking the collection, starting the workers, loading the model, encoding. Only the start of the cluster is
outside. The vectors are compared: they are the same bytes. On two machines, Ray Data also distributes the shards, in
place of vectors.cluster.share.
"""

import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import harness

SHARD = 4096
PEERS = {  # machines, processes
    "without Ray": (0, 1),
    "two processes": (0, 2),
    "one machine": (1, 1),
    "two machines": (2, 1),
    "two machines, Ray Data": (2, 1),
}


def share_by_ray_data(set_up: Callable[[], Any], parts: Iterable[tuple[int, Any]], gpus: bool) -> Iterator[int]:
    """What vectors.cluster.share does, on machines of one processor each."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext, from_items

    from cai_pyserini.core.errors import CaiError
    from cai_pyserini.vectors import cluster

    class Worker:
        def __init__(self) -> None:
            self.worker = cluster._Worker(set_up)

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            return {"number": row["number"], "error": self.worker.work(row["number"], pickle.loads(row["part"]))}

    DataContext.get_current().enable_progress_bars = False
    rows = [{"number": number, "part": pickle.dumps(part)} for number, part in parts]
    pool = ActorPoolStrategy(size=len(ray.nodes()), max_tasks_in_flight_per_actor=1)
    data = from_items(rows, override_num_blocks=len(rows))
    for row in data.map(Worker, compute=pool, num_cpus=1, max_task_retries=cluster.ATTEMPTS - 1).iter_rows():
        if row["error"]:
            raise CaiError(row["error"])
        yield row["number"]


def stage_by_ray_data(options: dict[str, str]) -> harness.Result:
    from cai_pyserini.cli.stage import main
    from cai_pyserini.vectors import cluster

    cluster.share = share_by_ray_data
    main(["encode", *(f"--{name}={value}" for name, value in options.items())])
    return {}


def encode(name: str, collection: str, encoder: str, output: str) -> harness.Result:
    """Run the encode stage on a cluster of so many machines, or else in so many processes, each for its own shards."""
    machines, processes = PEERS[name]
    rmtree(output, ignore_errors=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    options = {"collection": collection, "encoder": encoder, "output": output, "device": "cpu"}
    if machines:
        from ray.cluster_utils import Cluster

        machine = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=machine)
        for _ in range(machines - 1):
            cluster.add_node(**machine)
        options["ray"] = cluster.address
    start = time.perf_counter()
    parts = [{"shard-num": processes, "shard-id": number} for number in range(processes)]
    if "Ray Data" in name:
        harness.fresh(stage_by_ray_data, options=options)
    else:
        with ThreadPoolExecutor(processes) as pool:
            one = partial(harness.stage, "stage encode", **options)
            list(pool.map(lambda part: one(**part), parts if processes > 1 else [{}]))
    seconds = time.perf_counter() - start
    if machines:
        cluster.shutdown()
    return {"seconds": seconds, "documents": harness.stats(output)["vectors"]}


def same(folders: list[str]) -> harness.Result:
    """Whether folders have the same vectors, bit by bit."""
    from cai_pyserini.vectors.shards import Vectors

    def parts(folder: str) -> list:
        return [(s.ids, s.vectors.data.tobytes(), s.vectors.indices.tobytes()) for s in Vectors(Path(folder))]

    first, *others = map(parts, folders)
    return {"same": all(other == first for other in others)}


def main() -> None:
    parser = harness.parser(__doc__, repeats=1)
    parser.add_argument("--shards", type=int, default=100, help=f"of {SHARD:,} documents each")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=PEERS, help="measure these")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        collection = f"{folder}/collection"
        documents = args.shards * SHARD
        harness.fresh(harness.write_repeated, collection=args.collection, documents=documents, output=collection)
        one = partial(harness.fresh, encode, collection=collection, encoder=args.encoder)
        folders = {name: f"{folder}/{name}" for name in args.only}
        peers = {name: partial(one, name=name, output=output) for name, output in folders.items()}
        results = harness.rounds(args.repeats, peers)
        equal = harness.fresh(same, folders=[*folders.values()])["same"]
    plain = results[next(iter(args.only))]
    rows = [
        (
            name,
            f"{(seconds := harness.middle(result)):,.0f}",
            f"{documents / seconds:,.0f}",
            harness.times(plain, result),
        )
        for name, result in results.items()
    ]
    title = f"Encoding {args.shards} shards of {Path(args.collection).name} with {args.encoder}"
    harness.show(title, ("", "seconds", "documents/s", "speed"), rows)
    print(f"the same bytes: {equal}")


if __name__ == "__main__":
    main()
