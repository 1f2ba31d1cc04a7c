"""Files that are not read, or only in part: what is said of them, and what is kept."""

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cai_pyserini.collections import file_folder as module
from cai_pyserini.collections import text_cache
from cai_pyserini.collections.formats import Text, reader_of
from cai_pyserini.core.database import connect
from tests.collections.test_file_folder import opened, records


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


# A reader that does something to itself, or to its file, as often as a file says.
TROUBLED = """
import os, signal
from pathlib import Path
from cai_pyserini.collections.file_text import read_file
from cai_pyserini.collections import isolated

plan = Path(__file__).with_suffix(".txt")

def trouble(what, path):
    if what == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang": os.kill(os.getpid(), signal.SIGPROF)
    if what == "memory": raise MemoryError
    if what == "vanish": path.unlink()
    if what == "pipe": path.unlink(), os.mkfifo(path)
    if what == "link": path.unlink(), path.symlink_to("/etc/hostname")
    if what == "replace":
        time = path.stat().st_mtime_ns
        path.write_text("dab")
        os.utime(path, ns=(time, time))

def act(call):
    path = Path(os.fsdecode(call[0]))
    what, count = plan.read_text().split()
    if path.name == "bad.txt" and int(count):
        plan.write_text(f"{what} {int(count) - 1}")
        trouble(what, path)
    return read_file(call)

what, count = plan.read_text().split()
if what == "start" and int(count):
    plan.write_text(f"{what} {int(count) - 1}")
    os.kill(os.getpid(), signal.SIGKILL)
isolated.serve(act)
"""


@pytest.fixture
def trouble(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Set what happens to the reader of `bad.txt`, and how often."""
    (tmp_path / "troubled.py").write_text(TROUBLED)
    (folder / "bad.txt").write_text("bad")
    os.utime(folder / "bad.txt", ns=(10**18, 10**18))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "READER", "troubled")
    return (tmp_path / "troubled.txt").write_text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "reason", "after"),
    [
        ("kill 3", "crashed its reader (SIGKILL)", "bad"),
        ("hang 1", "takes more than 60 seconds of processor time", None),
        ("memory 1", "needs more than 1.5 GiB of memory", "bad"),
        ("vanish 1", "cannot be read (No such file or directory)", None),
        ("pipe 1", "changed while it was read", None),
        ("link 1", "cannot be read (Too many levels of symbolic links)", None),
        ("replace 1", "changed while it was read", "dab"),
        ("start 2", None, "bad"),
    ],
)
def test_a_failure_that_passes_is_not_kept(
    what: str, reason: str | None, after: str | None, trouble, folder: Path, cache: Path, tmp_path: Path
) -> None:
    """The faults: a reader that was killed once leaves the contents out for ever, in every folder; a process that dies
    as it starts ends the run; a file that was replaced, with its time and size, is taken for the one before; a file
    that no reader can finish costs a minute in every command."""
    (folder / "empty.html").write_text("<p>")
    (copy := tmp_path / "copy").mkdir()
    (copy / "copy.txt").write_text("bad")
    (copy / "good.txt").write_text("good")
    trouble(what)
    found = opened(folder)
    assert ("bad.txt" in {record.id for record in found.records()}) == (reason is None)
    assert listed(cache)["empty.html"] == "has no text"
    if reason:
        assert listed(cache)["bad.txt"] == reason
    texts = {record.id: record.text for record in opened(folder).records()}
    assert texts == {"good.txt": "good"} | ({"bad.txt": after} if after else {})
    if what in ("kill 3", "hang 1"):
        assert [record.text for record in records(copy).values()] == ["bad"] * (what == "kill 3") + ["good"]


def test_a_walk_meets_anything(folder: Path, cache: Path) -> None:
    """The faults: one link to itself, one path that is too long, or one name that is not UTF-8 ends the run."""
    links = {"loop.txt": "loop.txt", "a": "b", "b": "a", "gone.pdf": "nowhere", "gone.png": "nowhere"}
    links |= {"up": "..", "here": ".", "same.txt": "good.txt", "blob.txt": "data", "hidden.txt": ".hidden.txt"}
    links |= {"photo.png": "good.txt", ".hidden.md": "nowhere"}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    (folder / "data").write_text("data")
    (folder / ".hidden.txt").write_text("hidden")
    os.mkfifo(folder / "pipe.txt")
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("bytes")
    descriptor, deep = os.open(folder, os.O_RDONLY), "d" * 250
    for _ in range(20):  # a path of 5,000 characters
        os.mkdir(deep, dir_fd=descriptor)
        descriptor, above = os.open(deep, os.O_RDONLY, dir_fd=descriptor), descriptor
        os.close(above)
    os.close(descriptor)
    found = records(folder)
    assert {record.id: record.text for record in found.values()} == {"good.txt": "good", "caf%E9.txt": "bytes"}
    said = listed(cache)
    (long,) = (id for id in said if id.startswith(deep))
    links = ("a", "b", "loop.txt", "gone.pdf", "up", "blob.txt", "hidden.txt")
    assert said == {
        **dict.fromkeys(links, "is a link to what is not read in this folder"),
        "pipe.txt": "is not a regular file",
        long: "cannot be opened (File name too long)",
    }
