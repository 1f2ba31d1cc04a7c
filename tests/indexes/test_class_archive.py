"""The archive of classes: that a JVM uses a whole one, and starts without it in all other cases."""

import os
import subprocess
from pathlib import Path

import pytest

from cai_pyserini.indexes import class_archive, jvm
from cai_pyserini.indexes.class_archive import archive_options, archive_path, make


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of an archive that has not been made."""
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path / "cache"))
    return archive_path(jvm.find_java().home, jvm.anserini_jar())


def started_with_archive(options: list[str]) -> bool:
    """Start a JVM, which must print nothing to standard output, and say whether it uses an archive."""
    java, jar = jvm.find_java().home / "bin" / "java", jvm.anserini_jar()
    command = [java, *jvm.options(jvm.find_java()), *options, "-cp", jar, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stdout
    return "sharing" in done.stderr


@pytest.mark.slow
def test_a_jvm_uses_a_whole_archive_of_ours(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java, jar = jvm.find_java(), jvm.anserini_jar()
    archive.parent.mkdir(parents=True)
    make(archive, [str(java.home / "bin" / "java"), "-Xshare:dump", *jvm.options(java), "-cp", str(jar)])
    assert [*archive.parent.iterdir()] == [archive]
    options = archive_options(java.home, jar, [], "-Dname=value")
    assert started_with_archive(options)
    whole = archive.read_bytes()
    assert b"org/apache/lucene/search/IndexSearcher" in whole
    middle = len(whole) // 2
    for damaged in (b"", whole[:middle], whole[:middle] + bytes(1 << 20) + whole[middle + (1 << 20) :]):
        archive.write_bytes(damaged)
        assert not started_with_archive(options)
    monkeypatch.setattr(os, "getuid", lambda: archive.stat().st_uid + 1)
    assert not archive_options(java.home, jar, [], "")  # another user's


@pytest.mark.parametrize("obstacle", ["a file", "a user's option"])
def test_nothing_is_made_where_it_cannot_be(archive: Path, obstacle: str) -> None:
    if obstacle == "a file":
        archive.parent.parent.write_text("")
    made, options = len(class_archive._makers), "" if obstacle == "a file" else "-Xshare:off"
    assert not archive_options(jvm.find_java().home, jvm.anserini_jar(), [], options)
    assert len(class_archive._makers) == made
