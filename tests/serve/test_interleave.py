"""Interleaving: a fair draft that nobody sees, and a log of what people open."""

import asyncio
import fcntl
import html
import json
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

import pytest
from fastapi.testclient import TestClient

from cai_pyserini.core.errors import CaiError
from cai_pyserini.judge.judgments import Judgments
from cai_pyserini.search.engine import Engine
from cai_pyserini.search.open import open_index
from cai_pyserini.serve.__main__ import main
from cai_pyserini.serve.app import create_app
from cai_pyserini.serve.interleave import Interleaving, _connect, impressions, team_draft
from cai_pyserini.serve.service import Service
from tests.serve.conftest import engines
from tests.serve.test_service import run

QUERY = "phytate and cancer"


class Drawn(Random):
    """The order of the teams in each round, given."""

    def __init__(self, *orders: str):
        super().__init__()
        self._orders = iter(orders)

    def sample(self, population: Sequence[str], k: int) -> list[str]:  # type: ignore[override]
        return list(next(self._orders))


@pytest.mark.parametrize(
    ("a", "b", "orders", "expected"),
    [
        ("uvwx", "vyuz", ["ab", "ba", "ab", "ab"], {"u": "a", "v": "b", "y": "b", "w": "a", "x": "a", "z": "b"}),
        ("uv", "uv", ["ba", "ab"], {"u": "b", "v": "a"}),
        ("u", "vwx", ["ab", "ba"], {"u": "a", "v": "b", "w": None, "x": None}),  # w has no counterpart
        ("u", "vwx", ["ab", "ab"], {"u": "a", "v": "b", "w": None, "x": None}),
        ("uv", "", ["ab"], {"u": None, "v": None}),
    ],
)
def test_drafts_worked_out_by_hand(a: str, b: str, orders: list[str], expected: dict[str, str | None]) -> None:
    assert list(team_draft(a, b, Drawn(*orders)).items()) == list(expected.items())


def test_who_opens_at_random_prefers_nobody() -> None:
    """The fault: a system gains by its rank in the draft, by agreeing with the other, or by finding more."""
    draw, teams = Random(0), Counter[tuple[int, str | None]]()
    for _ in range(2000):
        a, b = (draw.sample("abcdefghij", draw.randint(5, 10)) for _ in range(2))
        found = team_draft(a, b, draw)
        assert found.keys() == {*a, *b} and [*found.values()].count("a") == [*found.values()].count("b")
        teams.update((rank, team) for rank, team in enumerate(found.values()))
    for rank in range(10):
        assert 0.85 < teams[rank, "a"] / teams[rank, "b"] < 1.18


@pytest.mark.slow
def test_people_open_hits_and_do_not_see_whose_they_are(run_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "clicks.sqlite"
    service = Service(lambda: engines(run_folder))
    interleaving = Interleaving(service, "joint-splade-idf", "bm25", path, texts=True)
    with TestClient(create_app(service, interleaving=interleaving)) as client:
        found = client.get("/v1/interleaved/search", params={"query": QUERY, "hits": 5}).json()
        ids = [candidate["docid"] for candidate in found["candidates"]]
        assert [candidate["score"] for candidate in found["candidates"]] == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
        assert found["index"] == "interleaved" and not re.search("bm25|joint|team", json.dumps(found))
        click = {"impression": found["impression"], "docid": ids[1]}
        assert [client.post("/click", params=click).status_code for _ in range(2)] == [200, 200]
        for wrong in ({"docid": "d0"}, {"impression": "x"}):
            assert client.post("/click", params=click | wrong).status_code == 404
        assert client.get("/v1/interleaved/search?query=x&filter=pages>1").status_code == 400
        assert client.get("/v1/interleaved/doc/d0").status_code == 404

        page = client.get("/", params={"q": QUERY, "b": "bm25"}).text
        assert re.findall("<h1[^>]*>(.*?)</h1>", page) == ["interleaved"]
        assert '<mark class="m4">cancer</mark>' in page and "Why it is here" not in page and ", score" not in page
        link = html.unescape(re.findall(r'<a href="(/v1/[^"]*)"', page)[2])
        third = client.get(link).json()["docid"]
    interleaving.close()
    first, second = impressions(path)
    assert (first.a, first.b, first.query) == ("joint-splade-idf", "bm25", QUERY) and list(first.teams) == ids
    assert first.opened == {ids[1]} and second.opened == {third} == {list(second.teams)[2]}
    assert set(first.teams.values()) >= {"a", "b"} and path.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_log_is_shared_and_forgets(opened: dict[str, Engine], tmp_path: Path) -> None:
    """The faults: two services lose impressions of each other; what is old stays, or its hits do; texts are kept that
    nobody asked for."""
    path = tmp_path / "clicks.sqlite"
    service = Service(lambda: opened)
    both = [Interleaving(service, "bm25", "joint-splade-idf", path, days=2) for _ in range(2)]
    database = sqlite3.connect(path, autocommit=True)
    count = "SELECT count(*), count(query) FROM impressions"

    async def searches() -> None:
        await asyncio.gather(*(both[number % 2].search(f"cancer {number}", 3) for number in range(20)))
        while database.execute(count).fetchone() != (20, 0):
            await asyncio.sleep(0.01)
        database.execute("UPDATE impressions SET time = '2020-01-01T00:00:00+00:00'")
        await both[0].search("cancer", 3)

    run(service, searches)
    for each in (*both, database):
        each.close()
    (left,) = impressions(path)
    assert len(left.teams) == 3
    with pytest.raises(CaiError, match="dense is not served, so it cannot be interleaved"):
        Interleaving(service, "bm25", "dense", path)


@pytest.mark.slow
def test_a_reload_keeps_what_is_interleaved(run_folder: Path, tmp_path: Path) -> None:
    """The faults: no page any more after a reload that drops a system; an index that nobody can reach."""
    served = ["a", "b"]
    service = Service(lambda: {name: open_index(run_folder / "indexes" / "bm25") for name in served})
    interleaving = Interleaving(service, "a", "b", tmp_path / "clicks.sqlite")
    with TestClient(create_app(service, interleaving=interleaving)) as client:
        for now, reason in (["a"], "b is not served"), (["a", "b", "interleaved"], "an index has the name"):
            served[:] = now
            answer = client.post("/reload")
            assert answer.status_code == 503 and reason in answer.json()["error"]
            assert client.get("/", params={"q": "cancer"}).text.count("<h2") > 1
    interleaving.close()


@pytest.mark.parametrize("opened_by", [partial(_connect, new=True), partial(Judgments, new=True)])
def test_several_make_one_file_at_once(opened_by: Callable[[Path], object], tmp_path: Path) -> None:
    """The fault: SQLite refuses who opens the file while another process makes it."""
    path = tmp_path / "new.sqlite"
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    other = sqlite3.connect(path, isolation_level=None)
    other.executescript("BEGIN IMMEDIATE; CREATE TABLE other (x);")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(opened_by, path)
        time.sleep(0.1)
        other.execute("COMMIT")
        os.close(folder)
        assert made.result()
    other.close()


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--interleave", "bm25"],
        ["--interleave", "a", "b"],
        ["--interleave", "a", "a", "--clicks", "x"],
    ):
        with pytest.raises(SystemExit):
            main([str(tmp_path), *arguments])
        assert "--interleave needs two systems, and --clicks with them" in capsys.readouterr().err
    (tmp_path / "text").write_text("this is no database, " * 100)
    for name, reason in (("none", "no file .*none"), ("text", "not a database")):
        with pytest.raises(CaiError, match=reason):
            list(impressions(tmp_path / name))
