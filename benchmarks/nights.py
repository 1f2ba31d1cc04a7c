"""Nights of a collection that changes under a service that is searched: each night 1% of the documents is changed,
deleted or added, and `cai-pyserini update --reload` makes the run one of the collection as it is then.

Clients search two indexes, BM25 and joint, without a pause. A status other than 200, or no answer within 10 seconds, is
an error, and none is allowed. Memory is the service's resident memory, peak that of the update, disk what the run,
the earlier run and the cache of vectors take, each file counted once. At the end, the run is compared with one from
scratch. Exits with 1 after an error, or if the service's memory grows by more than a tenth from the second night to the
last.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import count, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import harness
import serve
import update
from soak import INDEXES, percentiles

CLIENTS = 4  # connections at the same time
GROWTH = 0.1  # of the service's memory, from the second night on
COLUMNS = ("night", "update, s", "peak, GB", "requests", "p99, ms", "slowest, ms", "errors", "memory, MB", "disk, MB")


def disk(*folders: Path) -> int:
    """The bytes of the files in folders; those with several names are counted once."""
    stats = [path.stat() for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())


async def live(collection: str, folder: Path, queries: list[str], nights: int) -> list[tuple[str, ...]]:
    """Serve the run in a folder, search it and update it for so many nights: a row of the table for each."""
    rows: list[tuple[str, ...]] = []
    answered, running = serve.Answered(), True
    run, cache = folder / "run", folder / "cache"

    def paths(first: int) -> Iterator[str]:
        texts = islice(cycle(queries), first * len(queries) // CLIENTS, None)
        for number, query in zip(count(first), texts, strict=False):
            if not running:
                break
            yield serve.search(INDEXES[number % 2], query)

    with serve.ours(run, *INDEXES) as (pid, port):
        while (await serve.once(port, "/ready"))[0] != 200:  # loads the model
            pass
        searching = asyncio.gather(*(serve.client(port, paths(number), answered) for number in range(CLIENTS)))
        for night in range(1, nights + 1):
            output = str(folder / "collection")
            await asyncio.to_thread(harness.fresh, update.write, collection=collection, output=output, nights=night)
            words = ("update", str(run), "--reload", f"http://127.0.0.1:{port}")
            result = await asyncio.to_thread(update.command, *words, cache=str(cache))
            sizes = harness.memory(pid) / 1e6, disk(run, cache) / 1e6
            taken = answered.seconds
            times = f"{percentiles(taken)[1]:.0f}", f"{1000 * max(taken, default=0):.0f}"
            spent = f"{result['seconds']:.1f}", f"{result['peak'] / 1e9:.2f}"
            counts = f"{len(taken):,}", *times, f"{answered.errors}"
            rows.append((f"{night}", *spent, *counts, *(f"{size:.0f}" for size in sizes)))
            print(*(f"{name} {cell}" for name, cell in zip(COLUMNS, rows[-1], strict=True)), file=sys.stderr)
            answered.seconds = []
        running = False
        await searching
    return rows


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--nights", type=int, default=10, help="how many")
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        collection, run, queries = (str(folder / part) for part in ("collection", "run", "queries.json"))
        harness.fresh(update.write, collection=args.collection, output=collection, nights=0)
        how = {"encoder": args.encoder, "systems": [*INDEXES]}
        update.command("run", collection, cache=str(folder / "cache"), output=run, **how)
        harness.fresh(serve.write_texts, collection=args.collection, limit=1000, output=queries)
        texts = json.loads(Path(queries).read_text())
        rows = asyncio.run(live(args.collection, folder, texts, args.nights))
        update.command("update", run, "--evaluate", cache=str(folder / "cache"))
        update.command("run", collection, cache="", output=str(folder / "scratch"), **how)
        difference = harness.fresh(update.largest_difference, first=run, second=str(folder / "scratch"))
    harness.show(f"{args.nights} nights of {Path(args.collection).name}, {CLIENTS} clients", COLUMNS, rows)
    print(update.in_words(difference))
    errors = int(rows[-1][6])
    memory = [int(row[7]) for row in rows]
    missed = [f"{errors:,} errors"] if errors else []
    if memory[-1] > memory[min(1, len(memory) - 1)] * (1 + GROWTH):
        missed.append(f"memory: {memory[1]:,} MB in the second night, {memory[-1]:,} in the last")
    sys.exit("\n".join(missed) or None)


if __name__ == "__main__":
    main()
