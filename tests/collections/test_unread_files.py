"""Files that are not read, or only in part: what is said of them, and what is kept."""

import hashlib
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from cai_pyserini.collections import text_cache
from cai_pyserini.collections.contract import Record
from cai_pyserini.collections.file_folder import FileFolder
from cai_pyserini.collections.formats import Text, reader_of
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.database import connect


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text cache for this test alone."""
    monkeypatch.setenv(text_cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one good file."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "good.txt").write_text("good")
    return tmp_path / "files"


def opened(folder: Path, **settings: object) -> FileFolder:
    collection = open_collection(IndexConfig(name="made", source=str(folder), **settings))
    assert isinstance(collection, FileFolder)
    return collection


def records(folder: Path, **settings: object) -> dict[str, Record]:
    return {record.id: record for record in opened(folder, **settings).records()}


def listed(cache: Path) -> dict[str, str]:
    """The lines of the only listing: id and reason."""
    (listing,) = cache.glob("unread-*.tsv")
    return dict(line.split("\t") for line in listing.read_text(encoding="utf-8").splitlines())


def test_what_a_text_lacks_is_said(folder: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The faults: what a reader leaves out is lost on its way through the text cache; `strict` refuses the file."""
    (folder / "empty.txt").touch()
    text = Text("", "kept", left_out=("2 cells without a saved value", "a chart"))
    with text_cache.text_cache() as texts:
        texts.put((hashlib.sha256(b"good").hexdigest(), reader_of("txt")), text)
    for _ in range(2):
        assert [record.text for record in records(folder).values()] == ["kept"]
        said = "good.txt", "is read without 2 cells without a saved value, a chart"
        assert [*listed(cache).items()] == [("empty.txt", "is empty"), said]
    assert "of 2 files, 1 is left out and 1 is read only in part: empty.txt is empty; good.txt is read" in caplog.text
    (folder / "empty.txt").unlink()
    assert [*records(folder, strict=True)] == ["good.txt"] and [*listed(cache).items()] == [said]
    assert "of 1 files, 1 is read only in part" in caplog.text


def test_a_text_cache_of_another_version_ends_no_run(folder: Path, cache: Path) -> None:
    """The faults: one more column, and every update on the machine fails; or the old version does, which still runs."""
    cache.mkdir()
    old = cache / "texts.sqlite"
    with closing(connect(old, "CREATE TABLE IF NOT EXISTS texts (sha256 TEXT, reader TEXT, pages INTEGER)")) as running:
        assert [*records(folder)] == ["good.txt"]
        running.execute("INSERT INTO texts VALUES ('a', 'b', 1)")
        assert running.execute("SELECT * FROM texts").fetchall() == [("a", "b", 1)]
        yesterday = time.time() - text_cache.KEPT_SECONDS - 1
        os.utime(old, (yesterday, yesterday))
        assert [*records(folder)] == ["good.txt"] and old.is_file()  # the log beside it is new
    os.utime(old, (yesterday, yesterday))
    assert [*records(folder)] == ["good.txt"]
    (left,) = cache.iterdir()
    assert left.name.startswith("texts-")


def test_a_database_with_other_tables_is_made_anew(tmp_path: Path) -> None:
    """The fault: CREATE TABLE IF NOT EXISTS leaves the tables of another version, so that every statement fails."""
    path = tmp_path / "x.sqlite"
    for schema, row in (("CREATE TABLE IF NOT EXISTS a (b)", (1,)), ("CREATE TABLE IF NOT EXISTS a (b, c)", (1, 2))):
        for expected in ([], [row]):
            with closing(connect(path, schema)) as database:
                assert database.execute("SELECT * FROM a").fetchall() == expected
                if not expected:
                    database.execute(f"INSERT INTO a VALUES ({', '.join('?' * len(row))})", row)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
