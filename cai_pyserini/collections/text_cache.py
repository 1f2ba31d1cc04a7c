"""The text cache: a file is read once on this machine, wherever it is.

`texts-SCHEMA.sqlite`, in the folder `files` of Pyserini's cache or in $CAI_PYSERINI_FILES, has the text of each file,
or why it has none, by the file's SHA-256 and its reader; and for each folder of documents the files that it had, with
time and size, by which a changed file is noticed. Texts of files that no folder has any more are deleted after a day,
so that they outlive a run that reads them. So are files with the schemas of other versions, which may be in use.
"""

import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.collections.formats import Text
from cai_pyserini.collections.isolated import Failed
from cai_pyserini.core.database import connect
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import cache_home

VARIABLE = "CAI_PYSERINI_FILES"
KEPT_SECONDS = 86400
SCHEMA = """
    CREATE TABLE IF NOT EXISTS texts (
        sha256 TEXT NOT NULL,
        reader TEXT NOT NULL,
        fields TEXT NOT NULL,
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


def cache_folder() -> Path:
    return Path(os.environ.get(VARIABLE) or cache_home() / "files")


@contextmanager
def text_cache() -> Iterator["TextCache"]:
    """Open the cache. Raises CaiError if that is impossible, or if it fails."""
    path = cache_folder() / f"texts-{zlib.crc32(SCHEMA.encode()):08x}.sqlite"
    remedy = f"set {VARIABLE} to another folder"
    try:
        database = connect(path, SCHEMA)
    except (sqlite3.Error, OSError) as error:
        delete = "delete it, or " if path.is_file() else ""
        raise CaiError(f"{path}: {error}; {delete}{remedy}") from None
    with closing(database):
        with suppress(OSError):  # for example, another process deletes them
            _delete_others(path)
        try:
            yield TextCache(database)
        except sqlite3.Error as error:
            raise CaiError(f"{path}: {error}; delete it, or {remedy}") from None


def _delete_others(current: Path) -> None:
    """Delete the files of other versions that have not been written for a day, each with those that SQLite adds."""
    for path in current.parent.glob("texts*.sqlite"):
        parts = [*current.parent.glob(f"{path.name}*")]
        if path != current and max(part.stat().st_mtime for part in parts) < time.time() - KEPT_SECONDS:
            for part in parts:
                part.unlink()


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
            is_there = os.path.isdir  # which, unlike Path.is_dir, raises nothing
            gone = [(now, each) for (each,) in known if each == folder or not is_there(each)]
            database.executemany("UPDATE files SET gone = ? WHERE folder = ? AND gone IS NULL", gone)
            rows = ((folder, path, *state) for path, state in states)
            database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, NULL)", rows)
            if database.execute("DELETE FROM files WHERE gone < ?", (now - KEPT_SECONDS,)).rowcount:
                database.execute("DELETE FROM texts WHERE sha256 NOT IN (SELECT sha256 FROM files)")
        database.execute("PRAGMA incremental_vacuum").fetchall()

    def known(self, keys: Iterable[Key]) -> dict[Key, Text | Failed]:
        """Those among these texts that are there, without the text itself, or why a file has none."""
        query = "SELECT fields FROM texts WHERE sha256 = ? AND reader = ?"
        found = ((key, self._database.execute(query, key).fetchone()) for key in keys)
        return {key: text_of(json.loads(row[0])) for key, row in found if row}

    def put(self, key: Key, result: Text | Failed) -> Text | Failed:
        """Add a text, or why there is none; the result is without the text itself."""
        text, rest = (result.text, result._replace(text="")) if isinstance(result, Text) else ("", result)
        row = (*key, json.dumps(rest._asdict()), zlib.compress(text.encode(), 1))
        self._database.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)", row)
        return rest

    def text(self, key: Key) -> tuple[str, str] | None:
        """Title and text; None if they are not there."""
        query = "SELECT fields, text FROM texts WHERE sha256 = ? AND reader = ?"
        row = self._database.execute(query, key).fetchone()
        return row and (json.loads(row[0])["title"], zlib.decompress(row[1]).decode())

    def digest(self, key: Key) -> str | None:
        """A digest of a text, without the title; None if it is not there."""
        row = self._database.execute("SELECT text FROM texts WHERE sha256 = ? AND reader = ?", key).fetchone()
        return row and hashlib.sha256(row[0]).hexdigest()


def text_of(values: Mapping[str, Any]) -> Text | Failed:
    """A text, or why there is none, from its fields in JSON."""
    if "reason" in values:
        return Failed(**values)
    return Text(**{**values, "left_out": tuple(values["left_out"])})
