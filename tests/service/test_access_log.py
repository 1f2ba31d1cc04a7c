"""The access log: what it records, for how long, and that no request waits for it."""

import json
import logging
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cai_pyserini.service import access_log
from cai_pyserini.service.access_log import AccessLog
from cai_pyserini.service.app import create_app
from cai_pyserini.service.queue import Service
from tests.conftest import json_lines
from tests.service.conftest import engines, wait_until

POST = {"queries": [{"qid": "a", "text": "zinc"}, {"qid": "b", "text": "bladder"}], "hits": 1}

SEARCH = {"name": "search", "arguments": {"query": "bladder", "index": "bm25", "hits": 2}}
TOOL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": SEARCH}


def logged(log: AccessLog, count: int = 1) -> None:
    for _ in range(count):
        log.end(log.begin(), "/", 200, 0.1, "x" * 32)


@pytest.mark.slow
@pytest.mark.parametrize("queries", [False, True])
def test_a_line_per_request(run_folder: Path, tmp_path: Path, queries: bool) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(path, queries)
    with TestClient(create_app(Service(lambda: engines(run_folder, "bm25")), log=log)) as client:
        first = client.get("/v1/bm25/search?query=bladder%20-zinc&hits=3&syntax=true")
        client.post("/v1/bm25/search", json=POST)
        client.get("/?q=bladder&a=bm25")
        client.get("/v1/bm25/explain?query=zinc&docid=d4")
        client.get("/v1/bm26/search?query=bladder")
        client.get("/bladder")
        client.post("/mcp", json=TOOL, headers={"Accept": "application/json, text/event-stream"})
        client.get("/ready")
    log.close()
    lines = json_lines(path)
    assert [(line["route"], line["status"], line.get("index")) for line in lines] == [
        ("/v1/{index}/search", 200, "bm25"),
        ("/v1/{index}/search", 200, "bm25"),
        ("/", 200, "bm25"),
        ("/v1/{index}/explain", 200, "bm25"),
        ("/v1/{index}/search", 404, None),
        ("other", 404, None),
        ("/mcp", 200, "bm25"),
    ]
    assert [(line.get("hits"), line.get("returned")) for line in lines[:3]] == [(3, 1), (1, 2), (10, 1)]
    assert (lines[-1].get("hits"), lines[-1].get("returned")) == (2, 1)
    assert lines[0]["id"] == first.headers["x-request-id"] and lines[0]["ms"] > 0
    assert datetime.fromisoformat(lines[0]["time"]) > datetime.now(UTC) - timedelta(minutes=5)
    assert path.stat().st_mode & 0o777 == 0o600
    if queries:
        assert [line.get("texts") for line in lines[:2]] == [["bladder -zinc"], ["zinc", "bladder"]]
        assert lines[-1]["texts"] == ["bladder"]
    else:
        assert "bladder" not in path.read_text()


def test_no_line_is_lost_when_a_log_of_two_services_is_rotated(tmp_path: Path) -> None:
    """The fault: at midnight, two services that share a file both rotate it, and the second deletes the day's log."""
    path, moved = tmp_path / "access.log", tmp_path / "access.log.1"
    path.write_text("{}\n")
    os.utime(path, (time.time() - 86_400,) * 2)
    logs = [AccessLog(path) for _ in range(2)]
    for log in logs:
        logged(log, 3)
    wait_until(lambda: all(log._pending.empty() for log in logs) and len(json_lines(path)) == 7)
    assert [file.name for file in tmp_path.iterdir()] == ["access.log"]
    path.rename(moved)
    for log in logs:
        logged(log, 2)
        log.close()
    assert (len(json_lines(moved)), len(json_lines(path))) == (7, 4)
    assert path.stat().st_mode & 0o777 == 0o600


def test_requests_do_not_wait_for_a_disk_that_hangs_or_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody reads, and then one without a reader, where writes fail as on a full disk."""
    monkeypatch.setattr(access_log, "FLUSH_SECONDS", 0.1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(path)
    logged(log, access_log.MAX_PENDING + 5_000)
    with caplog.at_level(logging.WARNING):
        os.close(reader)
        wait_until(log._pending.empty)
    said = [record.getMessage() for record in caplog.records if record.name == access_log.__name__]
    assert said == ["the access log could not be written: [Errno 32] Broken pipe"]
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    logged(log)
    log.close()
    assert json.loads(os.read(reader, 1 << 20).splitlines()[-1])["status"] == 200
    os.close(reader)
