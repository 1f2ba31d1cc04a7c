"""Slices: together they are the collection, wherever and in whatever order they are read."""

import gzip
import json
import random
import shutil
from pathlib import Path

import pytest

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.collection.hpo import Hpo
from cai_pyserini.collection.slices import SliceReader, cut
from cai_pyserini.core.errors import CaiError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two files of 25 documents each, with blank lines, a byte order mark and characters of several bytes."""
    for name in "ab":
        records = [{"id": f"{name}{i}", "title": "β血圧" * i, "text": " ".join(map(str, range(i)))} for i in range(25)]
        lines = [json.dumps(record, ensure_ascii=False) + "\n" * (1 + (i % 4 == 0)) for i, record in enumerate(records)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8-sig")
    return tmp_path


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("size", [1, 4, 25, 60])
@pytest.mark.parametrize("words", [None, 3])
def test_slices_of_files(words: int | None, size: int, shuffled: bool, files: Path) -> None:
    folder = BeirFolder(files, "files")
    collection = folder.in_passages(words, 1) if words else folder
    documents = list(collection.documents())
    parts = cut(collection, size)
    if shuffled:
        random.Random(1).shuffle(parts)
    reader = SliceReader(collection)
    for part in parts:
        assert part.start and part.skip < 25  # nothing but earlier passages of the same document
        assert reader.read(part) == documents[part.first : part.first + size]
    assert sorted(part.first for part in parts) == list(range(0, len(documents), size))


def test_a_slice_of_jsonl_is_read_without_what_comes_before(files: Path) -> None:
    collection = BeirFolder(files, "files")
    part = cut(collection, 20)[2]  # of the second file
    expected = list(collection.documents())[40:]
    broken = (files / "b.jsonl").read_bytes()
    (files / "a.jsonl").write_text("not JSON")
    (files / "b.jsonl").write_bytes(b"#" * broken.index(b'{"id": "b15"') + broken[broken.index(b'{"id": "b15"') :])
    assert SliceReader(collection).read(part) == expected
    (files / "b.jsonl").write_bytes(broken.replace(b'"b20"', b'"b20'))
    number = broken[: broken.index(b'"b20"')].count(b"\n") + 1
    with pytest.raises(CaiError, match=rf"b\.jsonl:{number}: not JSON"):
        SliceReader(collection).read(part)


def test_other_formats_are_read_once_in_order(tiny: Path, tmp_path: Path) -> None:
    with (tiny / "corpus.jsonl").open("rb") as plain, gzip.open(tmp_path / "corpus.jsonl.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    for collection in (BeirFolder(tmp_path, "packed"), Hpo()):
        documents = list(collection.documents())
        parts = cut(collection, 5)
        reader = SliceReader(collection)
        begun = []
        for part in (parts[0], parts[2], parts[1]):
            assert reader.read(part) == documents[part.first : part.first + 5]
            begun.append(reader._records)
        assert begun[0] is begun[1] and begun[1] is not begun[2]  # again for the one that comes late


def test_another_collection_is_refused(files: Path, tiny: Path) -> None:
    parts = cut(BeirFolder(files, "files"), 10)
    for part in (parts[0], parts[4]):
        with pytest.raises(CaiError, match="tiny has changed, or is not the same on all machines"):
            SliceReader(BeirFolder(tiny, "tiny")).read(part._replace(start=None, skip=part.first))
