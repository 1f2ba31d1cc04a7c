"""The vector cache: it returns what was put there, and its failures never reach the caller."""

import logging
import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import database as database_module
from cai_pyserini.models.rows import Matrix
from cai_pyserini.vectors import cache as module
from cai_pyserini.vectors.cache import VARIABLE, VectorCache

SPARSE = csr_matrix(np.array([[0, 0.1, 0, 2], [0, 0, 0, 0], [1e-30, 0, 3.25, 0]], np.float32))
DENSE = np.array([[0.1, -1, 0], [0, 0, 0], [1e-30, 3, 1 / 3]], np.float32)
KEYS = [bytes([number]) * 16 for number in range(3)]
OTHER = b"x" * 16


@pytest.fixture(autouse=True)
def warnings_again() -> None:
    module._warn.cache_clear()  # warns once per process


def opened(folder: Path, width: int | None = None) -> VectorCache:
    return VectorCache(folder, "digest", "mine", width)


def filled(folder: Path) -> Path:
    opened(folder).put(KEYS, DENSE, 3.0)
    return folder / "digest.sqlite"


def execute(path: Path, *statement: object) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(*statement)


@pytest.mark.parametrize("matrix, width", [(SPARSE, 4), (DENSE, None)], ids=["sparse", "dense"])
def test_cached_vectors_round_trip(matrix: Matrix, width: int | None, tmp_path: Path) -> None:
    """A bit is flipped, rows are swapped, or a row has another text's vector."""
    assert opened(tmp_path, width).get(KEYS).vectors is None
    opened(tmp_path, width).put(KEYS, matrix, 6.0)
    found = opened(tmp_path, width).get([KEYS[2], OTHER, KEYS[1]])
    assert found.vectors is not None and sorted(found.keys) == KEYS[1:] and found.seconds == 4.0
    expected = matrix[[KEYS.index(key) for key in found.keys]]
    assert found.vectors.shape == expected.shape and found.vectors.dtype == np.float32
    assert abs(found.vectors - expected).max() == 0
    assert opened(tmp_path, width).get([OTHER]).vectors is None


def test_a_damaged_row_is_missing_until_it_is_replaced(tmp_path: Path) -> None:
    path = filled(tmp_path)
    execute(path, "UPDATE vectors SET vector = ? WHERE key = ?", (DENSE[2].tobytes(), KEYS[0]))
    execute(path, "UPDATE vectors SET key = ? WHERE key = ?", (OTHER, KEYS[2]))
    assert opened(tmp_path).get([*KEYS, OTHER]).keys == [KEYS[1]]
    filled(tmp_path)
    assert sorted(opened(tmp_path).get(KEYS).keys) == KEYS


def refused(folder: Path, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Assert that a cache finds and stores nothing, and warns once."""
    cache = opened(folder)
    for _ in range(2):
        cache.put(KEYS, DENSE, 1.0)
        assert cache.get(KEYS).vectors is None
    opened(folder).get(KEYS)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert reason in said and f"set {VARIABLE} to another folder, or to nothing" in said


@pytest.mark.parametrize("damage", ["text", "truncated", "garbled"])
def test_a_damaged_file_is_not_used(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path)
    data = path.read_bytes()
    assert len(data) > 8192
    garbled = data[:4096] + bytes(len(data) - 4096)
    path.write_bytes({"text": b"text" * 3000, "truncated": data[:5000], "garbled": garbled}[damage])
    refused(tmp_path, caplog, "malformed" if damage != "text" else "file is not a database")


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "vectors", caplog, "Not a directory")


def test_network_file_systems_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's write-ahead log needs shared memory, which two machines do not have."""
    assert database_module.file_system(Path("/proc/self")) == "proc"
    monkeypatch.setattr(database_module, "file_system", lambda folder: "nfs4")
    refused(tmp_path, caplog, "SQLite needs a local disk, and this is nfs4")
    assert not list(tmp_path.iterdir())


def test_waiting_for_a_locked_cache_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_module, "WAIT_SECONDS", 0.1)
    with closing(sqlite3.connect(filled(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        cache = opened(tmp_path)
        for _ in range(20):  # it waits once
            cache.put([OTHER], DENSE[:1], 1.0)
    assert caplog.text.count("database is locked") == 1
    assert sorted(opened(tmp_path).get([*KEYS, OTHER]).keys) == KEYS


def test_a_full_disk_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    connect = module.connect

    def full(path: Path, schema: str) -> sqlite3.Connection:
        database = connect(path, schema)
        database.execute("PRAGMA max_page_count = 1")  # SQLite rounds up to the current number, and refuses more
        return database

    monkeypatch.setattr(module, "connect", full)
    keys = [bytes([255, number]) * 8 for number in range(200)]
    cache = opened(tmp_path)
    cache.put(keys, np.ones((200, 500), np.float32), 1.0)
    assert "database or disk is full" in caplog.text
    monkeypatch.undo()
    assert sorted(opened(tmp_path).get([*KEYS, *keys]).keys) == KEYS


def _put_and_get(folder: Path, process: int) -> None:
    cache = opened(folder)
    for number in range(30):
        keys = [bytes([number, row]) * 8 for row in range(20)]
        cache.put(keys, np.full((20, 100), number, np.float32), 1.0)
        assert cache.get(keys).keys, process


@pytest.mark.slow
def test_several_processes_use_a_new_cache_at_once(tmp_path: Path) -> None:
    """SQLite may refuse processes that create the file, or that read and then write."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_put_and_get, args=(tmp_path / "new", number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    found = opened(tmp_path / "new").get([bytes([number, 7]) * 8 for number in range(30)])
    assert found.vectors is not None and sorted(found.vectors[:, 99]) == [*range(30)]
