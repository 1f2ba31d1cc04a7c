"""Reproducible archives, and archives that are refused."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.plugin import registry
from cai_pyserini.plugin.index import pack
from cai_pyserini.plugin.registry import unpack

Write = Callable[[tarfile.TarFile], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files, one of them in a folder, and a lock."""
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "b").write_bytes(os.urandom(50_000))
    (tmp_path / "folder" / "sub" / "a").write_text("text\n")
    (tmp_path / "folder" / "write.lock").touch()
    return tmp_path / "folder"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_round_trip(folder: Path, tmp_path: Path) -> None:
    """A later folder replaces a file of an earlier one."""
    (tmp_path / "over" / "sub").mkdir(parents=True)
    (tmp_path / "over" / "sub" / "a").write_text("other")
    size = pack([folder, tmp_path / "over"], "name", tmp_path / "x.tar.gz")
    with gzip.open(tmp_path / "x.tar.gz") as file:
        assert len(file.read()) == size
    found = unpack(tmp_path / "x.tar.gz", "name", size, tmp_path / "out")
    assert found == tmp_path / "out" / "name"
    assert contents(found) == {"b": (folder / "b").read_bytes(), "sub/a": b"other"}


def test_equal_files_give_equal_archives(folder: Path, tmp_path: Path) -> None:
    pack([folder], "name", tmp_path / "first.tar.gz")
    copy = tmp_path / "elsewhere"
    for name, data in reversed(contents(folder).items()):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
        (copy / name).chmod(0o600)
        os.utime(copy / name, (0, 1e9))
    pack([copy], "name", tmp_path / "second.tar.gz")
    assert (tmp_path / "first.tar.gz").read_bytes() == (tmp_path / "second.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "first.tar.gz") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["name", "name/b", "name/sub", "name/sub/a"]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}


@pytest.mark.parametrize("cut", [0, 1000, 49_000, None])
def test_a_truncated_archive_is_refused(cut: int | None, folder: Path, tmp_path: Path) -> None:
    """Including a file that is no archive at all."""
    archive = tmp_path / "x.tar.gz"
    size = pack([folder], "name", archive)
    archive.write_bytes(gzip.compress(b"no tar at all" * 100) if cut is None else archive.read_bytes()[:cut])
    with pytest.raises(CaiError, match=r"x\.tar\.gz cannot be unpacked \(.+\); if it is broken or truncated"):
        unpack(archive, "name", size, tmp_path / "out")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> Write:
    """Write one member to a tar."""

    def write(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, size
        tar.addfile(info, io.BytesIO(bytes(size)))

    return write


def sparse(tar: tarfile.TarFile) -> None:
    """A file that claims to have 1 TB, and has no data."""
    info = tarfile.TarInfo("name/large")
    info.pax_headers = {"GNU.sparse.size": str(10**12), "GNU.sparse.map": "0,0", "GNU.sparse.name": "name/large"}
    tar.addfile(info)


def test_an_oversized_header_is_not_read_into_memory(tmp_path: Path) -> None:
    """The entry claims this size, but a name of 2 MB is refused."""
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        member("name/" + "x" * (2 << 20))(tar)
    with pytest.raises(CaiError, match=r"cannot be unpacked \(a header of 2,0\d\d,\d{3} bytes\)"):
        unpack(tmp_path / "x.tar.gz", "name", 10**9, tmp_path / "out")


def test_an_archive_of_very_many_files_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_MEMBERS", 3)
    size = pack([folder], "name", tmp_path / "x.tar.gz")  # name, name/b, name/sub, name/sub/a
    with pytest.raises(CaiError, match="refused, as it has more than 3 files and folders"):
        unpack(tmp_path / "x.tar.gz", "name", size, tmp_path / "out")


@pytest.mark.parametrize(
    "write, message",
    [
        (member("/tmp/evil"), "'/tmp/evil' is no regular file or folder in name"),
        (member("name/../../evil"), "is no regular"),
        (member("other/file"), "is no regular"),
        (member("name/link", tarfile.SYMTYPE, "/etc"), "'name/link' is no regular"),
        (member("name/link", tarfile.LNKTYPE, "/etc/passwd"), "is no regular"),
        (member("name", tarfile.SYMTYPE, "."), "is no regular"),
        (member("name/device", tarfile.CHRTYPE), "is no regular"),
        (sparse, "'name/large' is no regular"),
        (member("name/zeros", size=10**8), "has more than the 50,000 bytes of its entry"),
        (member("name"), "has no folder name"),
        (member("name/" + "x" * 300), r"cannot be unpacked \(.*File name too long"),
    ],
)
def test_a_hostile_archive_is_refused(write: Write, message: str, tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        write(tar)
    with pytest.raises(CaiError, match=message):
        unpack(archive, "name", 50_000, tmp_path / "out" / "deep")
    written = [path for path in tmp_path.rglob("*") if not path.is_dir() and path != archive]
    assert sum(path.stat().st_size for path in written) <= 50_000
    assert all(path.is_relative_to(tmp_path / "out" / "deep" / "name") for path in written)
