"""What the encode stage takes on a Ray cluster: without one, on one of one machine, and on one of two.

The documents of a collection, repeated until there are --shards of them, are encoded by
`cai-pyserini stage encode` without Ray, on a cluster of one machine and on one of two; and in two processes without Ray
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

SHARD = 4096


def encode(machines: int, processes: int, collection: str, encoder: str, output: str) -> harness.Result:
    """Run the encode stage on a cluster of so many machines, or else in so many processes, each for its own shards."""
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
        list(pool.map(lambda part: harness.stage("stage encode", **options, **part), parts if processes > 1 else [{}]))
    seconds = time.perf_counter() - start
    if machines:
        cluster.shutdown()
    return {"seconds": seconds, "documents": harness.stats(output)["vectors"]}


def same(first: str, second: str) -> harness.Result:
    """Whether two folders have the same vectors, bit by bit."""
    from cai_pyserini.vectors.shards import Vectors

    def parts(folder: str) -> list:
        return [(s.ids, s.vectors.data.tobytes(), s.vectors.indices.tobytes()) for s in Vectors(Path(folder))]

    return {"same": parts(first) == parts(second)}


def main() -> None:
    parser = harness.parser(__doc__, repeats=1)
    parser.add_argument("--shards", type=int, default=100, help=f"of {SHARD:,} documents each")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        collection = f"{folder}/collection"
        documents = args.shards * SHARD
        harness.fresh(harness.write_repeated, collection=args.collection, documents=documents, output=collection)
        one = partial(harness.fresh, encode, collection=collection, encoder=args.encoder)
        names = {"without Ray": (0, 1), "two processes": (0, 2), "one machine": (1, 1), "two machines": (2, 1)}
        peers = {n: partial(one, machines=m, processes=p, output=f"{folder}/{n}") for n, (m, p) in names.items()}
        results = harness.rounds(args.repeats, peers)
        equal = harness.fresh(same, first=f"{folder}/without Ray", second=f"{folder}/two machines")["same"]
    plain = results["without Ray"]
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
