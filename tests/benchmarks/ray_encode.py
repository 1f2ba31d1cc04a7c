"""Claim: on a Ray cluster, the encode stage takes at most 5 % more time than without one, for a hundred shards, and two
machines encode 1.8 times as many documents per second as one.

The documents of a collection, repeated until there are --shards of them, are encoded by `python -m
cai_pyserini.encode` without Ray, on a cluster of one machine and on one of two; and in two processes without Ray
(--shard-num), which shows what two processors can do. Each machine is a process with one processor, and each model runs
in one thread, so that this needs two processors and an otherwise idle machine. The time is that of the whole command:
imports, checking the collection, starting the workers, loading the model, encoding. Only the start of the cluster is
outside. The vectors are compared: they are the same bytes.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import harness
from memory import write_collection

OVERHEAD, SPEEDUP = 1.05, 1.8
SHARD = 4096


def encode(machines: int, processes: int, collection: str, encoder: str, output: str) -> harness.Result:
    """Run the encode stage on a cluster of so many machines, or else in so many processes, each for its own shards."""
    from cai_pyserini.vectors.shards import Vectors

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
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(lambda part: harness.stage("encode", **options, **part), parts if processes > 1 else [{}]))
    seconds = time.perf_counter() - start
    if machines:
        cluster.shutdown()
    return {"seconds": seconds, "documents": len(Vectors(Path(output)))}


def same(first: str, second: str) -> harness.Result:
    """Whether two folders have the same vectors, bit by bit."""
    import numpy as np

    from cai_pyserini.vectors.shards import Vectors

    pairs = zip(Vectors(Path(first)), Vectors(Path(second)), strict=True)
    names = ("data", "indices", "indptr")
    return {
        "same": all(
            a.ids == b.ids and all(np.array_equal(getattr(a.vectors, name), getattr(b.vectors, name)) for name in names)
            for a, b in pairs
        )
    }


def main() -> None:
    parser = harness.parser(__doc__, "ray_encode")
    parser.set_defaults(repeats=1)
    parser.add_argument("--shards", type=int, default=100, help=f"of {SHARD:,} documents each")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        collection = f"{folder}/collection"
        harness.fresh(
            write_collection, collection=args.collection, documents=args.shards * SHARD, copies=1, output=collection
        )
        names = {
            "without Ray": (0, 1),
            "two processes": (0, 2),
            "one machine": (1, 1),
            "two machines": (2, 1),
        }
        results = harness.rounds(
            args.repeats,
            {
                name: partial(
                    harness.fresh,
                    encode,
                    machines=machines,
                    processes=processes,
                    collection=collection,
                    encoder=args.encoder,
                    output=f"{folder}/{name}",
                )
                for name, (machines, processes) in names.items()
            },
        )
        equal = harness.fresh(same, first=f"{folder}/without Ray", second=f"{folder}/two machines")["same"]
    rows = [
        (
            name,
            f"{harness.middle(result, 'seconds'):,.0f}",
            f"{result[0]['documents'] / harness.middle(result, 'seconds'):,.0f}",
            f"{1 / harness.times(result, results['without Ray']):.2f}x",
        )
        for name, result in results.items()
    ]
    title = f"Encoding {args.shards} shards of {Path(args.collection).name} with {args.encoder}"
    harness.show(title, ("", "seconds", "documents/s", "speed"), rows)
    overhead = harness.times(results["one machine"], results["without Ray"])
    speedup = harness.times(results["one machine"], results["two machines"])
    harness.target(
        f"on one machine, Ray takes at most {OVERHEAD - 1:.0%} more", f"{overhead - 1:+.1%}", overhead <= OVERHEAD
    )
    harness.target(f"two machines are at least {SPEEDUP} times as fast as one", f"{speedup:.2f}", speedup >= SPEEDUP)
    harness.target("the same bytes", "yes" if equal else "no", equal)


if __name__ == "__main__":
    main()
