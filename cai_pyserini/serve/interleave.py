"""Team-draft interleaving of two systems (Radlinski et al. 2008), and the hits that people open.

A search of the index INTERLEAVED is an impression: the hits of both systems in one ranking, which does not say whose
they are. The log, in SQLite, has the team of every hit and when it was first opened. Only its owner can read it, and
several processes of a machine can share it. A thread of its own writes it, so that no search waits for the disk.
"""

import asyncio
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from random import Random, SystemRandom
from typing import NamedTuple
from uuid import uuid4

from starlette.exceptions import HTTPException

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import execute_alone
from cai_pyserini.search.engine import Engine, Filters, Stored
from cai_pyserini.serve.access_log import Writer, note
from cai_pyserini.serve.service import Searched, Service

INTERLEAVED = "interleaved"
WAIT_SECONDS = 30.0  # for another process that writes
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA secure_delete = ON;
PRAGMA foreign_keys = ON;
CREATE TABLE IF NOT EXISTS impressions (
    id TEXT PRIMARY KEY, time TEXT NOT NULL, a TEXT NOT NULL, b TEXT NOT NULL, query TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS times ON impressions (time);
CREATE TABLE IF NOT EXISTS shown (
    impression TEXT NOT NULL REFERENCES impressions ON DELETE CASCADE,
    rank INTEGER NOT NULL,
    document TEXT NOT NULL,
    team TEXT CHECK (team IN ('a', 'b')),
    opened TEXT,
    PRIMARY KEY (impression, document)
) STRICT, WITHOUT ROWID;
"""
READ = """
SELECT id, a, b, query, document, team, opened IS NOT NULL FROM impressions JOIN shown ON impression = id
ORDER BY time, id, rank
"""

Teams = dict[str, str | None]  # document -> "a", "b" or None, in the order of ranks


class Impression(NamedTuple):
    """What a search has shown of two systems, and the documents that were opened."""

    a: str
    b: str
    query: str | None  # None: the log has no texts
    teams: Teams
    opened: set[str]


def team_draft(a: Sequence[str], b: Sequence[str], draw: Random) -> Teams:
    """Interleave two rankings: in each round, in an order that is drawn, both pick their best document that is left.

    So teams are equal in size at the end of every round. What only one ranking has left is in no team.
    """
    teams: Teams = {}
    left = {team: (id for id in ranking if id not in teams) for team, ranking in (("a", a), ("b", b))}
    while True:
        first, second = draw.sample("ab", 2)
        if (pick := next(left[first], None)) is None:
            break
        teams[pick] = first
        if (other := next(left[second], None)) is None:
            teams[pick] = None
            break
        teams[other] = second
    return teams | dict.fromkeys(chain(*left.values()))


class Interleaving:
    """The systems `a` and `b` of a service, interleaved, and the log of their impressions, kept for `days`.

    With `texts`, the log has those of the queries. Raises CaiError for a system that is not served and for an index
    named INTERLEAVED, as does a reload of the service, and for a file that is no such log.
    """

    def __init__(self, service: Service, a: str, b: str, path: Path, days: int = 30, texts: bool = False):
        self._service, self.systems = service, (a, b)
        self._require(service.engines)
        service.require = self._require
        self._days, self._texts, self._draw = timedelta(days=days), texts, SystemRandom()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)  # also if it was there
        self._db = _connect(path, new=True)
        self._writer = Writer("log of clicks")

    def _require(self, engines: Mapping[str, Engine]) -> None:
        if missing := [name for name in self.systems if name not in engines]:
            raise CaiError(f"{missing[0]} is not served, so it cannot be interleaved: take {', '.join(engines)}")
        if INTERLEAVED in engines:
            raise CaiError(f"an index has the name of the interleaved ranking, {INTERLEAVED}: rename its folder")

    async def search(self, text: str, hits: int, filter: Filters = None) -> tuple[Searched, str | None]:
        """The hits of both systems, with 1 / rank as score, and the id of the impression; None without hits."""
        both = await asyncio.gather(*(self._service.search_all(name, [text], hits, 0, filter) for name in self.systems))
        a, b = (searched.found[0] for searched in both)
        drafted = team_draft([hit.id for hit, _ in a], [hit.id for hit, _ in b], self._draw)
        teams, found = dict([*drafted.items()][:hits]), {hit.id: (hit, stored) for hit, stored in [*b, *a]}
        best = [(rank, *found[id]) for rank, id in enumerate(teams, 1)]
        shown = [(hit._replace(rank=rank, score=1 / rank), stored) for rank, hit, stored in best]
        note(index=INTERLEAVED, returned=len(shown))
        id = uuid4().hex if shown else None
        if id:
            self._writer.submit(partial(self._add, id, text if self._texts else None, teams))
        return Searched([shown], list(dict.fromkeys(chain(*(searched.late for searched in both))))), id

    async def document(self, id: str) -> Stored:
        """A document, as either system has it. Raises HTTPException if neither does."""
        try:
            return await self._service.document(self.systems[0], id)
        except HTTPException:
            return await self._service.document(self.systems[1], id)

    def opened(self, impression: str, document: str) -> "Future[bool]":
        """Log that a hit is opened; the result says whether it is one of this impression."""
        return self._writer.submit(partial(self._open, impression, document))

    def _add(self, id: str, query: str | None, teams: Teams) -> None:
        now = datetime.now(UTC)
        rows = [(id, rank, document, team) for rank, (document, team) in enumerate(teams.items(), 1)]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM impressions WHERE time < ?", [(now - self._days).isoformat()])
            row = id, now.isoformat(), *self.systems, query
            self._db.execute("INSERT INTO impressions VALUES (?, ?, ?, ?, ?)", row)
            self._db.executemany("INSERT INTO shown (impression, rank, document, team) VALUES (?, ?, ?, ?)", rows)

    def _open(self, impression: str, document: str) -> bool:
        update = "UPDATE shown SET opened = coalesce(opened, ?) WHERE impression = ? AND document = ?"
        return self._db.execute(update, [datetime.now(UTC).isoformat(), impression, document]).rowcount == 1

    def close(self) -> None:
        self._writer.submit(self._db.close)
        self._writer.close()


def impressions(path: Path) -> Iterator[Impression]:
    """The impressions of a log, in the order of time. Raises CaiError for a file that is no such log."""
    if not path.is_file():
        raise CaiError(f"no file {path}: `python -m cai_pyserini.serve --interleave A B --clicks {path}` makes it")
    for (_, a, b, query), rows in groupby(_connect(path).execute(READ), key=lambda row: row[:4]):
        shown = [row[4:] for row in rows]
        teams = {document: team for document, team, _ in shown}
        yield Impression(a, b, query, teams, {document for document, _, opened in shown if opened})


def _connect(path: Path, new: bool = False) -> sqlite3.Connection:
    database = sqlite3.connect(path, WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        if new:
            execute_alone(database, path, SCHEMA)
        database.execute(f"{READ} LIMIT 1")
    except sqlite3.Error as error:
        database.close()
        raise CaiError(f"{path} cannot be used as a log of clicks: {error}") from None
    return database
