"""SQLite files that several processes of a machine share."""

import os
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from cai_pyserini.core.lock import alone_in

WAIT_SECONDS = 30.0  # longest wait for another process that writes
# File systems on which processes of several machines would corrupt a database.
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "afs", "fuse.sshfs", "fuse.glusterfs"}
WAL = """
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
"""


def connect(path: Path, schema: str) -> sqlite3.Connection:
    """Open a database, and create it if necessary. One with other tables is of another version of this package, and is
    made anew. Raises OSError on a network file system."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # its contents reveal words of texts
    if (kind := file_system(path.parent)) in NETWORK:
        raise OSError(f"SQLite needs a local disk, and this is {kind}")
    database = sqlite3.connect(path, WAIT_SECONDS, isolation_level=None)
    try:
        with alone_in(path.parent):
            outdated = _tables(database) - _expected_tables(schema)
            drop = "".join(f'DROP TABLE "{name}";' for name, _ in outdated)
            database.executescript(WAL + drop + schema)
    except BaseException:
        database.close()
        raise
    return database


@cache
def _expected_tables(schema: str) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(schema)
        return _tables(database)


def _tables(database: sqlite3.Connection) -> set[tuple[str, str]]:
    """The name and definition of each table."""
    return {*database.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")}


def file_system(folder: Path) -> str:
    """The type of a folder's file system in Linux's terms; empty on other systems."""
    device = folder.stat().st_dev
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return ""
    matching = [mount for mount in mounts if mount[2] == f"{os.major(device)}:{os.minor(device)}"]
    return matching[-1][matching[-1].index("-") + 1] if matching else ""
