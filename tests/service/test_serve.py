"""The command: who may connect, where it listens, and when it stops."""

import json
import signal
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

from cai_pyserini.cli.serve import main
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import API_KEY as KEY
from cai_pyserini.service.queue import MAX_QUERY_LENGTH
from cai_pyserini.service.settings import web_address
from tests.conftest import json_lines
from tests.service.conftest import serve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_other_machines_need_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(CaiError, match="everybody who reaches this machine"):
        main([str(tmp_path), "--host", host])
    (tmp_path / "key").write_text("sesame\n")
    for arguments, key in (
        (["--proxy-authenticates"], None), (["--key-file", str(tmp_path / "key")], None), ([], "sesame")
    ):  # fmt: skip
        if key:
            monkeypatch.setenv(KEY, key)
        with pytest.raises(CaiError, match=str(tmp_path)):
            main([str(tmp_path), "--host", host, *arguments])


@pytest.mark.parametrize("key", ["", " ", "sésame", "a b"])
def test_a_key_that_cannot_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(KEY, key)
    with pytest.raises(CaiError, match=f"{KEY} is empty or has other characters"):
        main([str(tmp_path), "--proxy-authenticates"])
    (tmp_path / "key").write_text(key, encoding="utf-8")
    monkeypatch.setenv(KEY, "sesame")
    with pytest.raises(CaiError, match="key is empty or has other characters"):
        main([str(tmp_path), "--key-file", str(tmp_path / "key")])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--public-url", "search.example.org"], "'search.example.org' should be like https://search.example.org/"),
        (["--public-url", "https://example.org/?a=1"], "should be like"),
        (["--public-url", "https://example.org/v1/search"], "its path may not begin with /v1"),
        (["--stdio", "--host", "0.0.0.0"], "--stdio serves no other machine: leave out --host"),
    ],
)
def test_addresses_that_no_browser_sends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), *arguments])
    assert reason in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://Search.Example.org", "https://search.example.org/"),
        ("https://example.org:443/a/b//", "https://example.org/a/b/"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a/"),
    ],
)
def test_addresses_match_those_that_browsers_send(url: str, address: str) -> None:
    assert web_address(url) == address


def test_a_server_answers_the_longest_queries_over_ipv6_and_finishes_started_requests(
    run_folder: Path, tmp_path: Path
) -> None:
    log = "--access-log", str(tmp_path / "log")
    with serve(run_folder, "bm25", "joint", "--host", "::1", *log) as (process, address):
        assert address.startswith("http://[::1]:")
        connections = [HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=120) for _ in range(9)]
        for connection in connections:
            assert ask(connection, "/health")["status"] == "ok"
        for query in (" ".join(f"w{number}" for number in range(1, 1_850)), "🧬" * MAX_QUERY_LENGTH):
            assert MAX_QUERY_LENGTH - 1_000 < len(query) <= MAX_QUERY_LENGTH
            assert ask(connections[0], f"/v1/bm25/search?query={quote(query)}")["candidates"] == []

        for number, connection in enumerate(connections[:8]):
            words = "+".join(f"cancer{number}x{word}" for word in range(300))
            connection.request("GET", f"/v1/joint/search?query={words}")
        ask(connections[8], "/health")  # after its response, the other requests have been read
        process.send_signal(signal.SIGTERM)
        for connection in connections[:8]:
            assert json.load(connection.getresponse())["candidates"]
        assert process.wait(60) == 0
    assert [line["status"] for line in json_lines(tmp_path / "log")] == [200] * 10


def ask(connection: HTTPConnection, path: str) -> dict:
    connection.request("GET", path)
    return json.load(connection.getresponse())
