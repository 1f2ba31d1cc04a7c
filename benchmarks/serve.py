"""Requests per second of our service and of pyserini.server.rest, on the same indexes.

Both serve the BM25 index of a collection and its IDF-weighted impact index, each in a process of its own, Pyserini's
with our plugin, so that both encode queries with the same encoder. Clients in a third process ask over connections that
stay open, each its next query when it has the answer to the last; every query is asked once, since Pyserini keeps
answers, after a hundred others as a warm-up. The clock of a request stops when the whole answer has been read. Requests
that get an error, or no answer within 10 seconds, are counted as errors; after a hundred of them an index is given up,
and what was not asked is not counted. Memory is the server's peak resident memory after both indexes were searched.
Same: equal documents in equal order; a model may round a weight otherwise in another batch, so that one query in a
hundred may find them in another order.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product, takewhile
from pathlib import Path
from shutil import copyfileobj
from socket import socket
from tempfile import TemporaryDirectory
from threading import Thread
from urllib.parse import quote

import harness

INDEXES = ("bm25", "splade-idf")
HITS = 10
CLIENTS = (1, 4, 32)  # connections at the same time
WARM_UP = 100
PATIENCE = 10  # seconds for an answer
FAILURES = 100  # after which a server is asked no more
STOCK = "from cai_pyserini.plugin.hook import register; register(); from pyserini.server.rest.app import main; main()"
Answers = dict[str, tuple[float, list[str]]]  # query -> seconds and document ids
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextmanager
def ours(folder: Path, *indexes: str) -> Iterator[tuple[int, int]]:
    """Our server of an index, or of these in a run folder: its process id and its port."""
    systems = ("--systems", *indexes) if indexes else ()
    command = [sys.executable, "-m", "cai_pyserini", "serve", str(folder), *systems, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, ExitStack() as at_end:
        at_end.callback(process.kill)
        assert process.stderr
        lines = (re.search(r"http://\S+:(\d+)/", line) for line in process.stderr)  # warnings can come first
        address = next(filter(None, lines))
        Thread(target=copyfileobj, args=(process.stderr, sys.stderr), daemon=True).start()
        yield process.pid, int(address[1])


@contextmanager
def pyserini(run: Path, encoder: str) -> Iterator[tuple[int, int]]:
    """Pyserini's server of the same indexes."""
    folders = {index: str(run / "indexes" / index) for index in INDEXES}
    impact = {"path": folders["splade-idf"], "index_type": "impact", "encoder": encoder, "base_index": "bm25"}
    indexes = {"bm25": {"path": folders["bm25"], "index_type": "tf"}, "splade-idf": impact}
    config = run / "pyserini.json"  # YAML reads JSON
    config.write_text(json.dumps({"indexes": indexes}))
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", STOCK, "--config", str(config), "--no-prebuilt-indexes", "--no-access-log"]
    with (
        (run / "pyserini.log").open("w") as log,
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=subprocess.STDOUT
        ) as process,
        ExitStack() as at_end,
    ):
        at_end.callback(process.kill)
        while process.poll() is None:
            try:
                with socket() as connection:
                    connection.connect(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.2)
        yield process.pid, port


async def request(connection: Connection, port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Ask over an open connection: the status and the body."""
    reader, writer = connection
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = re.search(r"content-length: (\d+)", head)
    assert length
    return int(head.split()[1]), await reader.readexactly(int(length[1]))


async def once(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Ask over a connection of its own: the status and the body."""
    connection = await asyncio.open_connection("127.0.0.1", port)
    answer = await request(connection, port, path, method)
    connection[1].close()
    return answer


class Answered:
    """The seconds of requests, and the number of those without the status 200, which are printed."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.errors = 0

    def __call__(self, path: str, seconds: float, status: int, body: bytes) -> None:
        self.seconds.append(seconds)
        self.check(path, status, body)

    def check(self, path: str, status: int, body: bytes) -> None:
        if status != 200:
            self.errors += 1
            print(f"{path}: {status or 'no answer'} {body[:200]!r}", file=sys.stderr)


async def client(port: int, paths: Iterable[str], answered: Callable[[str, float, int, bytes], None]) -> None:
    """Ask for one path after another over a connection that stays open.

    `answered` is told the path, the seconds, the status, which is 0 for no answer within PATIENCE, and the body.
    """
    connection = await asyncio.open_connection("127.0.0.1", port)
    for path in paths:
        start = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE):
                status, body = await request(connection, port, path)
        except (TimeoutError, EOFError, ConnectionError):
            status, body = 0, b""
            connection[1].close()
            connection = await asyncio.open_connection("127.0.0.1", port)
        answered(path, time.perf_counter() - start, status, body)
    connection[1].close()


def search(index: str, query: str) -> str:
    """The path of a search."""
    return f"/v1/{index}/search?query={quote(query)}&hits={HITS}"


async def ask(port: int, index: str, queries: list[str], clients: int) -> tuple[float, Answers, int]:
    """Ask a server, over as many connections: the seconds for all queries, the answers, and the number of errors."""
    of_path = {search(index, query): query for query in queries}
    answers, errors = Answers(), 0

    def answered(path: str, seconds: float, status: int, body: bytes) -> None:
        nonlocal errors
        if status == 200:
            found = [candidate["docid"] for candidate in json.loads(body)["candidates"]]
            answers[of_path[path]] = seconds, found
        else:
            errors += 1

    paths = takewhile(lambda _: errors < FAILURES, of_path)  # shared by the clients
    start = time.perf_counter()
    await asyncio.gather(*(client(port, paths, answered) for _ in range(clients)))
    return time.perf_counter() - start, answers, errors


def measured(port: int, index: str, texts: list[str], clients: int) -> harness.Result:
    """After a warm-up: requests per second, percentiles in ms, the number of errors, and what each query finds."""
    import numpy as np

    asyncio.run(ask(port, index, texts[:WARM_UP], clients))
    seconds, answers, errors = asyncio.run(ask(port, index, texts[WARM_UP:], clients))
    p50, p99 = np.percentile([1000 * taken for taken, _ in answers.values()] or [np.nan], [50, 99]).tolist()
    found = {query: ids for query, (_, ids) in answers.items()}
    return {"rate": len(answers) / seconds, "p50": p50, "p99": p99, "errors": errors, "found": found}


def measure(peer: str, run: str, encoder: str, queries: str, clients: int) -> harness.Result:
    """Serve and ask: for each index requests per second, percentiles in ms and the documents; the server's memory."""
    texts = json.loads(Path(queries).read_text())
    result: harness.Result = {}
    server = ours(Path(run), *INDEXES) if peer == "ours" else pyserini(Path(run), encoder)
    with server as (pid, port):
        for index in INDEXES:
            result[index] = measured(port, index, texts, clients)
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert peak
        result["memory"] = 1024 * int(peak[1])
    return result


def write_texts(collection: str, limit: int, output: str) -> harness.Result:
    """Different texts of a collection's queries, to a JSON file."""
    Path(output).write_text(json.dumps(list(dict.fromkeys(harness.opened(collection)[1].values()))[:limit]))
    return {}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--queries", type=int, default=1100, help="how many are asked, at most")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        run, queries = f"{folder}/run", f"{folder}/queries.json"
        systems = ("--systems", *INDEXES)
        harness.stage("run", args.collection, *systems, encoder=args.encoder, output=run)
        harness.fresh(write_texts, collection=args.collection, limit=args.queries, output=queries)
        settings = {"run": run, "encoder": args.encoder, "queries": queries}
        peers = {
            f"{peer} {clients}": partial(harness.fresh, measure, peer=peer, clients=clients, **settings)
            for clients in CLIENTS
            for peer in ("ours", "Pyserini")
        }
        results = harness.rounds(args.repeats, peers)
    rows, agreement = [], []
    for index, clients in product(INDEXES, CLIENTS):
        for name in ("ours", "Pyserini"):
            peer = results[f"{name} {clients}"]
            values = (
                harness.middle([result[index] for result in peer], key) for key in ("rate", "p50", "p99", "errors")
            )
            memory = f"{harness.middle(peer, 'memory') / 1e9:.2f}"
            rows.append((index, clients, name, *(f"{value:.0f}" for value in values), memory))
        found, others = (results[f"{name} {clients}"][0][index]["found"] for name in ("ours", "Pyserini"))
        same = sum(found.get(query) == ids for query, ids in others.items())
        agreement.append(f"{index}, {clients} at a time, same documents: {same:,} of {len(others):,}")
    header = ("index", "clients", "server", "requests/s", "p50, ms", "p99, ms", "errors", "memory, GB")
    title = f"Serving {Path(args.collection).name}, {len(found):,} queries, {HITS} hits, medians of {args.repeats}"
    harness.show(title, header, rows)
    print(*agreement, sep="\n")


if __name__ == "__main__":
    main()
