"""`python -m cai_pyserini`, and what all commands have in common."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cai_pyserini
from cai_pyserini.__main__ import USAGE, main
from cai_pyserini.core.errors import CaiError

ROOT = Path(cai_pyserini.__file__).parent
COMMANDS = sorted(
    ".".join(("cai_pyserini", *path.relative_to(ROOT).with_suffix("").parts)) for path in ROOT.rglob("__main__.py")
)
COMMANDS = [name.removesuffix(".__main__") for name in COMMANDS if name != "cai_pyserini.__main__"]
COMMANDS.append("cai_pyserini.doctor")
HEAVY = {"torch", "transformers", "pandas", "scipy", "pyserini", "jnius", "faiss", "matplotlib", "datasets"}


@pytest.fixture
def argv(monkeypatch: pytest.MonkeyPatch):
    """Call main as with these arguments."""

    def call(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["cai_pyserini", *arguments])
        main()

    return call


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)])
def test_usage(argv, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    argv(*arguments)
    assert capsys.readouterr().out == USAGE + "\n"


@pytest.mark.parametrize("arguments", [("something",), ("-m",), ("--module", "pyserini.search")])
def test_arguments_that_are_refused(argv, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        argv(*arguments)
    printed = capsys.readouterr()
    assert printed.err == USAGE + "\n" and not printed.out


def test_the_usage_names_every_command() -> None:
    names = {name.removeprefix("cai_pyserini.") for name in COMMANDS}
    assert len(names) > 12
    last = USAGE[USAGE.index("The stages") :]
    assert {name for name in names if name in last.replace(",", " ").replace("(", " ").split()} == names


@pytest.mark.slow
def test_unknown_modules_are_named(java: None, argv) -> None:
    for module in ("pyserini.nothing", "nowhere.at.all", "no_such_module"):
        with pytest.raises(CaiError, match=f"no module named {module}$"):
            argv("-m", module)


def test_commands_import_nothing_heavy_before_they_parse() -> None:
    code = f"import sys, importlib\nfor name in {COMMANDS!r}:\n    importlib.import_module(name + ('.__main__' "
    code += "if name != 'cai_pyserini.doctor' else ''))\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(name if name.endswith("doctor") else f"{name}.__main__")
    with pytest.raises(SystemExit, match="0"):
        module.main(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: ") and ("COMMAND" in text) != ("example:\n  " in text)
    for subcommand in _subcommands(text):
        with pytest.raises(SystemExit, match="0"):
            module.main([subcommand, "--help"])
        assert "example:\n  " in capsys.readouterr().out, subcommand


def _subcommands(text: str) -> list[str]:
    """The names below COMMAND in a help text."""
    return re.findall(r"^    ([a-z][\w-]*)", text.partition("  COMMAND\n")[2], re.MULTILINE)
