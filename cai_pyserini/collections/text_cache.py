"""The text cache: a file is read once on this machine, wherever it is.

`texts.sqlite`, in the folder `files` of Pyserini's cache or in $CAI_PYSERINI_FILES, has the text of each file, or why
it has none, by the file's SHA-256 and its reader; and for each folder of documents the files that it had, with time and
size, by which a changed file is noticed. Texts of files that no folder has any more are deleted after a day, so that
they outlive a run that reads them.
"""

import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.collections.formats import Text
from cai_pyserini.core.cache import cache_home
from cai_pyserini.core.database import connect
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.isolated import Failed

VARIABLE = "CAI_PYSERINI_FILES"
KEPT_SECONDS = 86400
SCHEMA = """
    CREATE TABLE IF NOT EXISTS texts (
        sha256 TEXT NOT NULL,
        reader TEXT NOT NULL,
        pages INTEGER,
        modified TEXT,
        language TEXT,
        reason TEXT,
        title TEXT NOT NULL,
        text BLOB NOT NULL,
        PRIMARY KEY (sha256, reader)
    );
    CREATE TABLE IF NOT EXISTS files (
        folder BLOB NOT NULL,
        path BLOB NOT NULL,
        size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        sha256 TEXT NOT NULL,
        gone INTEGER,
        PRIMARY KEY (folder, path, sha256)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS by_sha256 ON files (sha256);
"""
Key = tuple[str, str]  # SHA-256 and reader


class State(NamedTuple):
    """A file as it was when it was hashed; a size of -1 never matches."""

    size: int
    mtime_ns: int
    sha256: str


class Known(NamedTuple):
    """What is known of a text without the text itself."""

    pages: int | None
    modified: str | None
    language: str | None
    reason: str | None  # why there is no text


def cache_folder() -> Path:
    return Path(os.environ.get(VARIABLE) or cache_home() / "files")


@contextmanager
def text_cache() -> Iterator["TextCache"]:
    """Open the cache. Raises CaiError if that is impossible, or if it fails."""
    path = cache_folder() / "texts.sqlite"
    remedy = f"set {VARIABLE} to another folder"
    try:
        database = connect(path, SCHEMA)
    except (sqlite3.Error, OSError) as error:
        raise CaiError(f"{path}: {error}; {remedy}") from None
    with closing(database):
        try:
            yield TextCache(database)
        except sqlite3.Error as error:
            raise CaiError(f"{path}: {error}; delete it, or {remedy}") from None


class TextCache:
    """An open cache."""

    def __init__(self, database: sqlite3.Connection):
        self._database = database

    def states(self, folder: bytes) -> dict[bytes, State]:
        """The files of a folder, by path."""
        query = "SELECT path, size, mtime_ns, sha256 FROM files WHERE folder = ? AND gone IS NULL"
        return {path: State(*state) for path, *state in self._database.execute(query, (folder,))}

    def set_states(self, folder: bytes, states: Iterable[tuple[bytes, State]]) -> None:
        """Replace the files of a folder, and delete the texts that no folder has had for a day."""
        now, database = int(time.time()), self._database
        with database:
            database.execute("BEGIN IMMEDIATE")
            known = database.execute("SELECT DISTINCT folder FROM files WHERE gone IS NULL").fetchall()
            gone = [(now, each) for (each,) in known if each == folder or not Path(os.fsdecode(each)).is_dir()]
            database.executemany("UPDATE files SET gone = ? WHERE folder = ? AND gone IS NULL", gone)
            rows = ((folder, path, *state) for path, state in states)
            database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, NULL)", rows)
            if database.execute("DELETE FROM files WHERE gone < ?", (now - KEPT_SECONDS,)).rowcount:
                database.execute("DELETE FROM texts WHERE sha256 NOT IN (SELECT sha256 FROM files)")
        database.execute("PRAGMA incremental_vacuum").fetchall()

    def known(self, keys: Iterable[Key]) -> dict[Key, Known]:
        """The texts among these, or those of which it is known why there is none."""
        database = self._database
        database.execute("CREATE TEMP TABLE requested (sha256 TEXT, reader TEXT, PRIMARY KEY (sha256, reader))")
        with database:
            database.execute("BEGIN")
            database.executemany("INSERT INTO requested VALUES (?, ?)", keys)
        query = (
            "SELECT sha256, reader, pages, modified, language, reason FROM requested JOIN texts USING (sha256, reader)"
        )
        found = {(sha256, reader): Known(*row) for sha256, reader, *row in database.execute(query)}
        database.execute("DROP TABLE requested")
        return found

    def put(self, key: Key, result: Text | Failed) -> Known:
        """Add a text, or why there is none."""
        if isinstance(result, Failed):
            known, title, text = Known(None, None, None, result.reason), "", ""
        else:
            known, title, text = Known(result.pages, result.modified, result.language, None), result.title, result.text
        row = (*key, *known, title, zlib.compress(text.encode(), 1))
        self._database.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return known

    def text(self, key: Key) -> tuple[str, str] | None:
        """Title and text; None if they are not there."""
        row = self._database.execute("SELECT title, text FROM texts WHERE sha256 = ? AND reader = ?", key).fetchone()
        return row and (row[0], zlib.decompress(row[1]).decode())
