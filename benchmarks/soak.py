"""Whether the service fails, grows or slows down under load for an hour.

Clients search two indexes of a collection in turn, BM25 and joint, over connections that stay open, with all of its
queries again and again, while the indexes are reopened once a minute. Other clients beside them do in turn what OTHERS
says: they send half a request, leave before the answer, or read it slowly or not at all. In the first sixth of the
time, the JVM compiles and caches fill; from then on, the server's threads, file handles and memory may not grow: the
medians of the last sixth are compared with those of the second, with a tolerance for memory, which is freed but not
returned, and for handles of the others, who come and go. The 99th percentile of the last sixth may exceed that of the
first by a fifth. A 5xx, or no answer within 10 seconds, is an error, and none is allowed; nor is a 500 for the others.
Writes soak.csv and soak.png. Exits with 1 if a target is missed. Needs Linux. The clients run on the same machine and
take their share of it.
"""

import asyncio
import csv
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import batched, cycle, islice
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

import harness
import serve

INDEXES = ("bm25", "joint")
INTERVAL, RELOAD = 10, 60  # seconds between samples, and between reloads
PARTS = 6
TOLERANCE = {"threads": 0.0, "handles": 0.1, "memory": 0.05}
LONG = "GET /v1/{index}/search?query={query}&hits=1000&snippets=false"
POST = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
HEAD = " HTTP/1.1\r\nHost: 127.0.0.1\r\n"
OTHERS = {  # what they send, and the seconds between two KB that they read; None: they leave at once
    "half of the headers": (LONG + HEAD, 1.0),
    "half of a body": (POST.replace("{path}", "/v1/{index}/search") + '{{"queries"', 1.0),
    "half of a message for assistants": (POST.replace("{path}", "/mcp") + "{{", None),
    "refused, and still sends": (POST.replace("{path}", "/mcp").replace("1000", "900000") + "{{" * 30000, 1.0),
    "gone before the answer": (LONG + HEAD + "\r\n", None),
    "gone in its body": (POST.replace("{path}", "/reload") + "{{", None),
    "reads slowly": (LONG + HEAD + "\r\n", 0.05),
    "reads nothing": (LONG + HEAD + "\r\n", 1000.0),
    "says nothing": ("", 1.0),
}
PATIENCE = 10  # seconds that the service gives a request, and a piece of an answer
GRACE = 120  # seconds after which a run that does not end is given up
COLUMNS = ("minute", "requests", "requests/s", "p50, ms", "p99, ms", "errors", "threads", "handles", "memory, MB")


class Sample(NamedTuple):
    """What happened since the last sample, and the size of the server at its end."""

    at: float  # seconds from the start
    span: float
    latencies: list[float]  # seconds
    errors: int
    threads: int
    handles: int
    memory: int  # resident bytes

    def row(self) -> tuple[str, ...]:
        """A row of the table and of the CSV."""
        p50, p99 = percentiles(self.latencies)
        rate = len(self.latencies) / self.span
        sizes = f"{self.threads}", f"{self.handles}", f"{self.memory / 1e6:.0f}"
        times = f"{rate:.0f}", f"{p50:.0f}", f"{p99:.0f}"
        return f"{self.at / 60:.1f}", f"{len(self.latencies)}", *times, f"{self.errors}", *sizes


def percentiles(latencies: Sequence[float]) -> tuple[float, float]:
    """The 50th and the 99th percentile in ms."""
    if len(latencies) < 2:
        return float("nan"), float("nan")
    cuts = quantiles(latencies, n=100)
    return 1000 * cuts[49], 1000 * cuts[98]


def summary(samples: Sequence[Sample]) -> Sample:
    """Samples as one: with all requests, and the median sizes."""
    threads, handles, memory = (int(median(sizes)) for sizes in zip(*(sample[4:] for sample in samples), strict=True))
    latencies = [seconds for sample in samples for seconds in sample.latencies]
    span, errors = sum(sample.span for sample in samples), sum(sample.errors for sample in samples)
    return Sample(samples[-1].at, span, latencies, errors, threads, handles, memory)


async def disturb(port: int, queries: Sequence[str], number: int) -> None:
    """Be a client that sends or reads less than others, in another way each time, until cancelled."""
    for (text, pause), query in zip(islice(cycle(OTHERS.values()), number, None), cycle(queries), strict=False):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        with suppress(ConnectionError, TimeoutError):
            writer.write(text.format(index=INDEXES[number % 2], query=quote(query)).encode())
            await writer.drain()
            async with asyncio.timeout(2 * PATIENCE):
                while pause is not None and await reader.read(1024):
                    await asyncio.sleep(pause)
        writer.transport.abort()
        await asyncio.sleep(0.1)


async def soak(
    pid: int, port: int, queries: list[str], clients: int, others: int, seconds: float
) -> tuple[list[Sample], int]:
    """Search and reload for some time, and take a sample after each interval; and the number of failures of any."""
    answered, running = serve.Answered(), True

    def paths(number: int) -> Iterator[str]:
        all_paths = (serve.search(index, query) for query in cycle(queries) for index in INDEXES)
        for path in islice(all_paths, number * len(INDEXES) * len(queries) // clients, None):
            if not running:
                break
            yield path

    async def reload() -> None:
        while True:
            await asyncio.sleep(RELOAD)
            answered.check("/reload", *await serve.once(port, "/reload", "POST"))

    async def sample() -> list[Sample]:
        nonlocal running
        samples: list[Sample] = []
        last = 0.0
        while last + INTERVAL / 2 < seconds:
            await asyncio.sleep(last + INTERVAL - (time.perf_counter() - start))
            now = time.perf_counter() - start
            threads, handles = (len(list(Path(f"/proc/{pid}/{kind}").iterdir())) for kind in ("task", "fd"))
            counts = answered.seconds, answered.errors, threads, handles, harness.memory(pid)
            samples.append(Sample(now, now - last, *counts))
            print(*(f"{name} {cell}" for name, cell in zip(COLUMNS, samples[-1].row(), strict=True)), file=sys.stderr)
            answered.seconds, answered.errors, last = [], 0, now
        running = False
        return samples

    answered.check("/ready", *await serve.once(port, "/ready"))  # loads the model
    start = time.perf_counter()
    async with asyncio.timeout(seconds + GRACE), asyncio.TaskGroup() as tasks:
        disturbing = [tasks.create_task(disturb(port, queries, number)) for number in range(others)]
        sampling = tasks.create_task(sample())
        reloading = tasks.create_task(reload())
        await asyncio.gather(*(serve.client(port, paths(number), answered) for number in range(clients)))
        await sampling
        for task in (reloading, *disturbing):
            task.cancel()
    _, metrics = await serve.once(port, "/metrics")
    counts = Counter[str]()
    for status, count in re.findall(r'cai_requests_total{.*status="(\d+)"} (\S+)', metrics.decode()):
        counts[status] += int(float(count))
    print("answers by status:", *(f"{status}: {count:,}" for status, count in sorted(counts.items())), file=sys.stderr)
    return sampling.result(), counts["500"]


def plot(rows: list[list[str]], path: str) -> harness.Result:
    """Plot requests per second, latencies, threads and handles, and memory against the time."""
    from matplotlib.figure import Figure

    from cai_pyserini.core.figures import save

    columns = dict(zip(COLUMNS, ([float(cell) for cell in column] for column in zip(*rows, strict=True)), strict=True))
    made = Figure(figsize=(9, 5), layout="constrained")
    panels = (("requests/s",), ("p50, ms", "p99, ms"), ("threads", "handles"), ("memory, MB",))
    for axes, names in zip(made.subplots(2, 2).flat, panels, strict=True):
        for name in names:
            axes.plot(columns["minute"], columns[name], label=name)
        axes.set(xlabel="minutes", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="lower right")
    save(made, Path(path))
    return {}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--clients", type=int, default=32, help="connections at the same time")
    parser.add_argument("--others", type=int, default=16, help="clients beside them that send or read less than others")
    parser.add_argument("--minutes", type=float, default=60, help="how long")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        run, queries = f"{folder}/run", f"{folder}/queries.json"
        harness.stage("run", args.collection, "--systems", *INDEXES, encoder=args.encoder, output=run)
        harness.fresh(serve.write_texts, collection=args.collection, limit=10_000, output=queries)
        texts = json.loads(Path(queries).read_text())
        with serve.ours(Path(run), *INDEXES) as (pid, port):
            samples, failures = asyncio.run(soak(pid, port, texts, args.clients, args.others, 60 * args.minutes))
    rows = [sample.row() for sample in samples]
    with Path("soak.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    harness.fresh(plot, rows=rows, path="soak.png")
    parts = [summary(part) for part in batched(samples, -(-len(samples) // PARTS))]
    harness.show(
        f"Serving {Path(args.collection).name} for {args.minutes:g} minutes, {args.clients} + {args.others} clients",
        COLUMNS,
        [part.row() for part in parts],
    )
    first, second, last = parts[0], parts[1], parts[-1]
    slower = percentiles(last.latencies)[1] / percentiles(first.latencies)[1]
    errors = sum(part.errors for part in parts)
    missed = [f"{errors:,} errors"] * bool(errors) + [f"{failures:,} answers with 500"] * bool(failures)
    for name, tolerance in TOLERANCE.items():
        before, after = getattr(second, name), getattr(last, name)
        if after > before * (1 + tolerance):
            missed.append(f"{name}: {before:,} in the second sixth, {after:,} in the last")
    if slower > 1.2:
        missed.append(f"p99: {slower - 1:+.0%} from the first sixth to the last")
    sys.exit("\n".join(missed) or None)


if __name__ == "__main__":
    main()
