"""Text files are UTF-8, whatever the locale."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cai_pyserini
from tests.conftest import Command


def calls_without_encoding(path: Path) -> Iterator[str]:
    """Where a module reads or writes text in the encoding of the locale."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or "encoding" in {keyword.arg for keyword in node.keywords}:
            continue
        match node.func:
            case ast.Attribute(attr="read_text" | "write_text", value=value) if ast.unparse(value) != "files":
                yield f"{path}:{node.lineno}"
            case ast.Attribute(attr="open", value=value) if ast.unparse(value) != "tarfile":
                if {ast.unparse(mode) for mode in node.args} <= {"'r'", "'w'", "'a'", "'x'"}:
                    yield f"{path}:{node.lineno}"
            case ast.Attribute(attr="run" | "Popen") if any(keyword.arg == "text" for keyword in node.keywords):
                yield f"{path}:{node.lineno}"


def test_nothing_is_read_or_written_in_the_encoding_of_the_locale() -> None:
    modules = list(Path(cai_pyserini.__file__).parent.rglob("*.py"))
    assert len(modules) > 100 and not [place for path in modules for place in calls_without_encoding(path)]


@pytest.mark.slow
def test_words_are_written_in_a_locale_that_cannot_hold_them(command: Command, tiny: Path, tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = command("cai_pyserini", "stage", "words", "--collection", tiny, "--output", tmp_path / "words", **locale)
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "words" / "words.txt").read_text(encoding="utf-8").splitlines()
    assert [word for word in words if not word.isascii()]
