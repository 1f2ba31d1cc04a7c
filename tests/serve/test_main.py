"""The command: who is served, where, and until when."""

import json
import signal
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import API_KEY as KEY
from cai_pyserini.serve.__main__ import main
from cai_pyserini.serve.service import LONGEST_QUERY
from tests.conftest import json_lines
from tests.serve.conftest import serve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
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


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("key", ["", " ", "sésame", "a b"])
def test_a_key_that_cannot_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, key: str) -> None:
    monkeypatch.setenv(KEY, key)
    with pytest.raises(CaiError, match=f"{KEY} is empty or has other characters"):
        main([str(tmp_path), "--host", host, "--proxy-authenticates"])
    (tmp_path / "key").write_text(key, encoding="utf-8")
    monkeypatch.setenv(KEY, "sesame")
    with pytest.raises(CaiError, match="key is empty or has other characters"):
        main([str(tmp_path), "--host", host, "--key-file", str(tmp_path / "key")])


def test_a_server_answers_the_longest_queries_over_ipv6_and_finishes_what_it_began(
    run_folder: Path, tmp_path: Path
) -> None:
    log = "--access-log", str(tmp_path / "log")
    with serve(run_folder, "bm25", "joint-splade-idf", "--host", "::1", *log) as (process, address):
        assert address.startswith("http://[::1]:")
        connections = [HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=120) for _ in range(9)]
        for connection in connections:
            assert ask(connection, "/health")["status"] == "ok"
        for query in (" ".join(f"w{number}" for number in range(1, 1_850)), "🧬" * LONGEST_QUERY):
            assert LONGEST_QUERY - 1_000 < len(query) <= LONGEST_QUERY
            assert ask(connections[0], f"/v1/bm25/search?query={quote(query)}")["candidates"] == []

        for number, connection in enumerate(connections[:8]):
            words = "+".join(f"cancer{number}x{word}" for word in range(300))
            connection.request("GET", f"/v1/joint-splade-idf/search?query={words}")
        ask(connections[8], "/health")  # when it is answered, the other requests have been read
        process.send_signal(signal.SIGTERM)
        for connection in connections[:8]:
            assert json.load(connection.getresponse())["candidates"]
        assert process.wait(60) == 0
    assert [line["status"] for line in json_lines(tmp_path / "log")] == [200] * 10


def ask(connection: HTTPConnection, path: str) -> dict:
    connection.request("GET", path)
    return json.load(connection.getresponse())
