"""The command: who is served, and where."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.serve.__main__ import KEY, main
from cai_pyserini.serve.service import LONGEST_QUERY
from tests.serve.conftest import serve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_machines_need_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(CaiError, match="everybody who reaches this machine"):
        main([str(tmp_path), "--host", host])
    for arguments, key in ((["--proxy-authenticates"], None), ([], "sesame")):
        if key:
            monkeypatch.setenv(KEY, key)
        with pytest.raises(CaiError, match=str(tmp_path)):
            main([str(tmp_path), "--host", host, *arguments])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("key", ["", " ", "sésame", "a b"])
def test_a_key_that_cannot_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, key: str) -> None:
    monkeypatch.setenv(KEY, key)
    with pytest.raises(CaiError, match=f"{KEY} is empty or has other characters"):
        main([str(tmp_path), "--host", host, "--proxy-authenticates"])


@pytest.fixture(scope="module")
def address(run_folder: Path) -> Iterator[str]:
    """That of a server of BM25 alone: an index of impacts beside it would lift Lucene's limit of clauses."""
    with serve(run_folder, "bm25", "--host", "::1") as (_, address):
        yield address


def test_ipv6(address: str) -> None:
    assert address.startswith("http://[::1]:")
    with urlopen(f"{address}health") as answer:
        assert json.load(answer)["status"] == "ok"


def test_queries_up_to_the_limit_are_answered(address: str) -> None:
    for query in (" ".join(f"w{number}" for number in range(1, 1_850)), "🧬" * LONGEST_QUERY):
        assert LONGEST_QUERY - 1_000 < len(query) <= LONGEST_QUERY
        with urlopen(f"{address}v1/bm25/search?query={quote(query)}") as answer:
            assert json.load(answer)["candidates"] == []
