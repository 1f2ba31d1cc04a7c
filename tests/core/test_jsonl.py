"""Lines and JSON objects: what is read, and the line that an error names."""

import gzip
import pickle
import re
from pathlib import Path

import pytest

from cai_pyserini.core import jsonl
from cai_pyserini.core.errors import CaiError


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_lines_come_with_their_place(tmp_path: Path, name: str) -> None:
    data = "\ufeffone\n\n  \nβ four\r\n\ufefffive".encode()  # only the first is a byte order mark
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert list(jsonl.read_lines(path)) == [
        (f"{path}:1", "one\n"),
        (f"{path}:4", "β four\r\n"),
        (f"{path}:5", "\ufefffive"),
    ]


def test_records_round_trip(tmp_path: Path) -> None:
    records = [{"_id": "1", "text": 'Größe\n\u2028 "x"'}, {"n": 1.5, "list": [None, True]}]
    path = tmp_path / "a.jsonl"
    assert jsonl.write(path, iter(records)) == 2
    assert [data for _, data in jsonl.read(path)] == records
    assert [where for where, _ in jsonl.read(path)] == [f"{path}:1", f"{path}:2"]
    assert "Größe" in path.read_text(encoding="utf-8")
    assert jsonl.parse('{"a": "\\ud83e\\uddec"}', "f:2") == {"a": "🧬"}  # a character in two escapes
    with pytest.raises(CaiError, match=r"no file .*absent\.jsonl$"):
        next(jsonl.read(tmp_path / "absent.jsonl"))


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"a": "x"', "not JSON (Expecting ',' delimiter at column 10); correct or remove it"),
        ("nothing", "not JSON (Expecting value at column 1); correct or remove it"),
        ("[1]", "expected a JSON object, {…}"),
        ('"a"', "expected a JSON object, {…}"),
        ("{}", "expected an object with a, b as strings; a is not one"),
        ('{"a": "x", "b": 1}', "expected an object with a, b as strings; b is not one"),
        ('{"a": null, "b": "y"}', "expected an object with a, b as strings; a is not one"),
        ('{"a": "\\ud83d"}', "\\ud83d is an unpaired surrogate; correct or remove it"),
        ('{"\\uDC00": ""}', "\\udc00 is an unpaired surrogate; correct or remove it"),
        ('{"a": ' + "1" * 5000 + "}", "JSON too large to read (Exceeds the limit (4300 digits) for integer string"),
        ("[" * 100_000, "JSON too large to read ("),
        ('{"_id": "1", "more": [{"text": "a", "text": "b"}]}', "the key 'text' occurs twice in an object"),
    ],
)
def test_a_broken_object_is_named(text: str, message: str) -> None:
    with pytest.raises(CaiError) as error:
        jsonl.parse(text, "f:2", ("a", "b"))
    assert str(error.value).startswith(f"f:2: {message}")


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\n" + "é".encode("latin-1"))
    lines = jsonl.read_lines(tmp_path / "a")
    assert next(lines)[1] == "one\n"
    with pytest.raises(CaiError, match=r"a:2: not UTF-8 \(unexpected end of data at byte 0\)"):
        next(lines)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "plain"])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: str) -> None:
    data = gzip.compress("".join(f"line {i * i}\n" for i in range(1000)).encode())
    middle = len(data) // 2
    flipped = data[:middle] + bytes(255 - byte for byte in data[middle : middle + 8]) + data[middle + 8 :]
    path = tmp_path / "a.gz"
    path.write_bytes({"truncated": data[:middle], "flipped": flipped, "plain": b"line 0\n"}[damage])
    with pytest.raises(CaiError, match=rf"^{re.escape(str(path))}: not a gzip file, or truncated \(.+\)$"):
        list(jsonl.read_lines(path))
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 17\n")
    with pytest.raises(CaiError, match=rf"^{re.escape(str(path))} is a pointer of Git LFS, .*: run `git lfs pull`"):
        list(jsonl.read_lines(path))


def test_lines_equal_the_file(tmp_path: Path) -> None:
    written = ["one", "", "zwölf", "血圧", "a\u2028b\x85c", "last"]
    path = tmp_path / "lines"
    path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8", newline="\n")
    lines = jsonl.Lines(path)
    assert list(lines) == [lines[number] for number in range(len(lines))] == written
    assert lines.index("血圧") == 3 and lines[-1] == "last" and "two" not in lines
    assert list(pickle.loads(pickle.dumps(lines))) == written
    with pytest.raises(IndexError):
        lines[len(written)]
    path.write_text("")
    assert len(jsonl.Lines(path)) == 0 and list(jsonl.Lines(path)) == []
