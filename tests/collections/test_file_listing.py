"""The listing of files: what may be opened, and what are copies."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cai_pyserini.collections.file_listing import Changed, FileListing, Missing, list_files
from cai_pyserini.collections.readers import load_collection
from tests.collections.test_file_folder import opened

TEXT = b"Zinc for colds."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "a b").mkdir(parents=True)
    (folder / "a.md").write_bytes(TEXT)
    (folder / "a b" / "50% ä.md").write_bytes(TEXT)
    (folder / "dos.txt").write_bytes(b"Fever\r\nand gout.")
    (folder / "unix.txt").write_bytes(b"Fever\nand gout.")
    (tmp_path / "secret").write_bytes(TEXT)
    return folder


@pytest.fixture
def listing(folder: Path, tmp_path: Path) -> FileListing:
    list_files(opened(folder), tmp_path / "files.json")
    listing = FileListing.load(tmp_path / "files.json")
    assert listing
    return listing


def read(listing: FileListing, id: str) -> bytes:
    file, _ = listing.open(id)
    with file:
        return file.read()


def test_files_are_opened_by_id_and_copies_are_known(listing: FileListing) -> None:
    """Copies have the same bytes, or the same text."""
    assert read(listing, "a%20b/50%25%20ä.md") == read(listing, "a.md") == TEXT
    assert listing.copies_of("a.md") == ["a%20b/50%25%20ä.md"] and listing.copies_of("dos.txt") == ["unix.txt"]
    assert listing.original_of("unix.txt") == listing.original_of("dos.txt") and listing.folded == 2


def rewrite(path: Path) -> None:
    """With the same size and time."""
    status = path.stat()
    path.write_bytes(TEXT[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def link(path: Path) -> None:
    """To the same contents elsewhere."""
    path.unlink()
    path.symlink_to("../secret")


def link_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.symlink_to("moved")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (rewrite, Changed),
        (lambda path: path.write_bytes(TEXT * 2), Changed),
        (Path.unlink, Missing),
        (link, Missing),
        (link_folder, Missing),
        (pipe, Changed),
    ],
)
def test_nothing_else_is_opened(
    listing: FileListing, folder: Path, change: Callable[[Path], object], error: type[Exception]
) -> None:
    """Also after the file has been opened, and before."""
    assert read(listing, "a.md") == TEXT
    paths = {"a.md": folder / "a.md", "a%20b/50%25%20ä.md": folder / "a b" / "50% ä.md"}
    for id, path in paths.items():
        if change is link_folder and path.parent == folder:
            continue
        change(path)
        with pytest.raises(error):
            listing.open(id)
    for id in ("../secret", "%2e%2e/secret", "/etc/passwd", str(folder / "dos.txt"), "./dos.txt", "a b/50% ä.md", ""):
        assert not listing.has(id)
        with pytest.raises(Missing):
            listing.open(id)


def test_only_folders_of_files_have_a_listing(listing: FileListing, folder: Path, tmp_path: Path, tiny: Path) -> None:
    """The fault: after a run of another collection, files are opened that it has not read."""
    place = tmp_path / "files.json"
    before = place.stat().st_mtime_ns
    list_files(opened(folder), place)
    assert place.stat().st_mtime_ns == before  # unchanged
    (folder / "dos.txt").unlink()
    list_files(opened(folder), place)
    changed = FileListing.load(place)
    assert changed and not changed.has("dos.txt") and changed.folded == 1
    folder.rename(tmp_path / "elsewhere")
    assert not changed.has("a.md")
    list_files(load_collection(str(tiny)), place)
    assert not place.exists()
