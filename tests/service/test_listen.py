"""Clients that send half a request, do not read the response, or leave: what each can cost, and for how long."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import httpx2
import pytest

from cai_pyserini.engine.open import open_systems
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.service import guard, listen
from cai_pyserini.service import queue as service_module
from cai_pyserini.service.queue import Service
from tests.service.conftest import served, wait_until

pytestmark = pytest.mark.slow

HALF_HEAD = "GET /v1/bm25/search?query=zinc HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SEARCH = f"{HALF_HEAD}\r\n"
HALF_BODY = 'POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{{"queries"'
SECONDS = 0.5


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((listen, "REQUEST_SECONDS"), (listen, "CHUNK_SECONDS"), (guard, "BODY_SECONDS")):
        monkeypatch.setattr(module, name, SECONDS)


@pytest.fixture(scope="module")
def address(run_folder: Path) -> Iterator[str]:
    with served(run_folder, "bm25") as address:
        yield address


def sent(address: str, text: str) -> socket.socket:
    """A connection on which a client has sent `text`."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(text.encode())
    return connection


def answer(connection: socket.socket) -> bytes:
    """Everything received until the server closes the connection."""
    found = b""
    with suppress(ConnectionError):
        while received := connection.recv(1 << 16):
            found += received
    return found


def requests(address: str, status: int) -> int:
    """The number of responses with this status so far."""
    metrics = urlopen(f"{address}metrics").read().decode()
    return sum(map(int, re.findall(rf'cai_requests_total{{.*status="{status}"}} (\d+)', metrics)))


@pytest.mark.parametrize("path", ["/v1/bm25/search", "/mcp"])
def test_a_body_has_a_deadline(address: str, path: str) -> None:
    before = requests(address, 408)
    with sent(address, HALF_BODY.format(path)) as half:
        assert b" 408 " in answer(half)
    assert requests(address, 408) == before + 1


@pytest.mark.parametrize("text", [HALF_HEAD, "G", f"{SEARCH}{HALF_HEAD}"])
def test_headers_have_a_deadline_even_on_a_reused_connection(address: str, text: str) -> None:
    before, found = requests(address, 408), requests(address, 200)
    with sent(address, text) as half:
        if SEARCH in text:
            wait_until(lambda: requests(address, 200) >= found + 2)
        for _ in range(3):  # occasional bytes do not extend the deadline
            time.sleep(SECONDS / 4)
            with suppress(BrokenPipeError):  # on a slow machine, the deadline has passed
                half.sendall(b"x")
        assert answer(half).count(b" 408 ") == 1
    assert requests(address, 408) == before + 1


def test_a_connection_without_a_request_is_closed_silently(address: str) -> None:
    with sent(address, "") as idle:
        assert answer(idle) == b""


@pytest.mark.parametrize("path", ["/v1/bm25/search", "/mcp"])
def test_a_client_that_leaves_is_no_failure(address: str, path: str, caplog: pytest.LogCaptureFixture) -> None:
    before, failures = requests(address, guard.CLIENT_CLOSED), requests(address, 500)
    with sent(address, HALF_BODY.format(path)):
        pass
    wait_until(lambda: requests(address, guard.CLIENT_CLOSED) != before)
    assert requests(address, guard.CLIENT_CLOSED) == before + 1 and requests(address, 500) == failures
    assert not caplog.records


MESSAGE = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "zinc"}}}
)
TOOL = (
    "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json, text/event-stream\r\n"
    f"Content-Type: application/json\r\nContent-Length: {len(MESSAGE)}\r\n\r\n{MESSAGE}"
)


@pytest.mark.parametrize("text", [SEARCH, TOOL])
def test_a_client_that_leaves_before_the_answer_is_no_failure(
    run_folder: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    service, release = Service(lambda: open_systems([run_folder], ["bm25"])), threading.Event()
    with served(service) as address:
        service._worker.submit(release.wait, 20)
        with sent(address, text):
            wait_until(lambda: service.unanswered)
        release.set()
        wait_until(lambda: not service.unanswered and len(service._sending) <= 1)
        assert requests(address, 200) + requests(address, guard.CLIENT_CLOSED) >= 1 and requests(address, 500) == 0
    assert not caplog.records


def test_half_requests_do_not_shut_out_others(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: 290 clients send half of their headers, and nobody else gets a response; a traceback for each."""
    monkeypatch.setattr(listen, "REQUEST_SECONDS", 60)
    monkeypatch.setattr(guard, "BODY_SECONDS", 60)
    monkeypatch.setattr(listen, "MAX_CONNECTIONS", 20)
    with served(run_folder, "bm25") as address:
        kinds = [HALF_HEAD, HALF_BODY.format("/v1/bm25/search"), HALF_BODY.format("/mcp"), ""]
        half = [sent(address, kinds[number % 4]) for number in range(100)]
        assert all(requests(address, 200) >= number for number in range(3))
        start = time.monotonic()
    assert time.monotonic() - start < 60  # shutdown does not wait for them
    for connection in half:
        connection.close()


def test_with_all_connections_busy_a_new_one_is_refused(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "MAX_CONNECTIONS", 2)
    release = threading.Event()
    service = Service(lambda: open_systems([run_folder], ["bm25"]))
    with served(service) as address:
        working = threading.Thread(target=lambda: service._worker.submit(release.wait, 20).result())
        working.start()
        busy = [sent(address, SEARCH) for _ in range(2)]
        wait_until(lambda: service.unanswered == 2)
        with sent(address, SEARCH) as third:
            assert answer(third).startswith(b"HTTP/1.1 503 ")
        time.sleep(2 * SECONDS)  # the deadline of a request is not that of its answer
        release.set()
        for connection in busy:
            assert b" 200 " in connection.recv(100)
            connection.close()
        working.join()


def test_an_answer_that_nobody_reads_is_dropped(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: the response stays in memory until the client leaves, and the service does not stop."""
    service = Service(lambda: open_systems([run_folder], ["bm25"]))
    long = "x" * 10_000_000
    monkeypatch.setattr(service.engines["bm25"], "_read", lambda ids: {id: Stored(id, "", long) for id in ids})
    with served(service) as address:
        with sent(address, SEARCH.replace("zinc", "zinc&max_doc_length=9000000")) as unread:
            wait_until(lambda: service._sending)
            wait_until(lambda: not service._sending)
            assert not service._sending
            assert len(answer(unread)) < 8_000_000
        slow = sent(address, SEARCH)  # 5 times the required pace
        slow.settimeout(20)
        found = 0
        while found < len(long):
            received = slow.recv(1 << 19)
            assert received, f"closed after {found:,} bytes"
            found += len(received)
            time.sleep(SECONDS / 40)
        slow.close()


def test_the_documents_of_an_answer_are_limited(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MAX_ANSWER_LENGTH", 50)
    for path in ("v1/bm25/search?query=cancer&", "v1/bm25/doc/d1?"):
        refused = httpx2.get(f"{address}{path}")
        assert refused.status_code == 400 and "more than 50 characters" in refused.text
        found = httpx2.get(f"{address}{path}max_doc_length=3").json()
        contents = [hit["doc"] for hit in found.get("candidates", [found])]
        assert contents and all(len(one["contents"]) <= 3 for one in contents)
    monkeypatch.setattr(service_module, "MAX_PENDING_LENGTH", 5)
    assert httpx2.get(f"{address}v1/bm25/search?query=cancer&max_doc_length=4").status_code == 503
    assert httpx2.get(f"{address}v1/bm25/search?query=cancer&max_doc_length=2&hits=1").json()["candidates"]


def test_the_key_is_checked_before_the_body_is_read(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 60)
    with served(run_folder, "bm25", key="sesame") as address:
        for path in ("/v1/bm25/search", "/mcp", "/reload", "/nowhere"):
            with sent(address, HALF_BODY.format(path)) as half:
                assert b" 401 " in half.recv(100)


REFUSED = [
    ("/v1/bm25/search", "Transfer-Encoding: chunked", 411),
    ("/v1/bm25/search", "Content-Length: 1000000", 413),
    ("/mcp", "Content-Length: 300000\r\nContent-Encoding: gzip", 415),
    ("/mcp", "Content-Length: 300000\r\nContent-Type: application/json; charset=latin1", 415),
    ("/v1/bm25/search", "Content-Length: 300000\r\nOrigin: http://example.org", 403),
    ("/nowhere", "Content-Length: 300000\r\nExpect: 100-continue\r\nX-API-Key: wrong", 401),
]


def test_a_refusal_whose_body_is_unread_closes_the_connection(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults: the rest of a refused body occupies the connection; or the client that still sends it gets a reset
    instead of the reason."""
    monkeypatch.setattr(guard, "UNREAD_SECONDS", SECONDS)
    with served(run_folder, "bm25", key="sesame") as address:
        for path, headers, status in REFUSED:
            key = "" if status == 401 else "X-API-Key: sesame\r\n"
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{key}{headers}\r\n\r\n"
            size = int((re.search(r"Content-Length: (\d+)", headers) or ["", "300000"])[1])
            body = f"{size:x}\r\n{'x' * size}\r\n0\r\n\r\n" if "chunked" in headers else "x" * size
            for rest in (body + SEARCH, ""):
                with sent(address, head) as connection:
                    connection.sendall(rest.encode())
                    found = answer(connection)
                assert found.startswith(b"HTTP/1.1 %d " % status) and found.count(b"HTTP/1.1") == 1
                assert b"connection: close" in found.lower() and found.endswith(b"}")
