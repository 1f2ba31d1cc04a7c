"""Lines of a file that are not held in memory."""

import pickle
from pathlib import Path

import pytest

from cai_pyserini.core.lines import Lines


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    written = ["one", "", "zwölf", "血圧", "a\u2028b\x85c", "last"]
    path = tmp_path / "lines"
    path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8", newline="\n")
    lines = Lines(path)
    assert list(lines) == [lines[number] for number in range(len(lines))] == written
    assert lines.index("血圧") == 3 and lines[-1] == "last" and "two" not in lines
    assert list(pickle.loads(pickle.dumps(lines))) == written
    with pytest.raises(IndexError):
        lines[len(written)]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert len(Lines(tmp_path / "empty")) == 0 and list(Lines(tmp_path / "empty")) == []
