"""`cai-pyserini`, `python -m cai_pyserini`, and what all commands have in common."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cai_pyserini
from cai_pyserini import __version__
from cai_pyserini.__main__ import COMMANDS, USAGE, cli, main
from cai_pyserini.core.errors import CaiError

VERSION = f"cai-pyserini {__version__}"
HEAVY = {"torch", "transformers", "pandas", "scipy", "pyserini", "jnius", "faiss", "matplotlib", "datasets"}


def test_usage_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, printed in (
        ([], USAGE),
        (["-h"], USAGE),
        (["help"], USAGE),
        (["help", "-h"], USAGE),
        *(([flag, "x"], VERSION) for flag in ("-V", "--version")),
    ):
        main(arguments)
        assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["serach"], "no command 'serach'; did you mean search?"),
        (["encode", "--help"], "no command 'encode'; did you mean `stage encode`?"),
        (["something"], "no command 'something';"),
        (["help", "serach"], "no command 'serach'; did you mean search?"),
        (["hlep", "search"], "no command 'hlep'; did you mean help?"),
        (["-m"], "no command '-m';"),
        (["--module", "pyserini.search"], "no command '--module';"),
    ],
)
def test_a_command_that_does_not_exist_is_answered_in_a_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err == f"error: {message} `cai-pyserini --help` lists them\n" and not printed.out


@pytest.mark.parametrize(
    "arguments, command",
    [
        (["help", "run"], "run"),
        (["-h", "search"], "search"),  # the search of runs, not the stage
        (["help", "encode"], "stage encode"),
        (["help", "stage", "index", "bm25"], "stage index bm25"),
        (["search", "runs/x", "-h", "--hits"], "search"),
    ],
)
def test_the_help_of_a_command_or_stage(arguments: list[str], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    assert capsys.readouterr().out.startswith(f"usage: cai-pyserini {command} [-h]")


def test_the_usage_describes_every_command() -> None:
    modules = {path.stem for path in (Path(cai_pyserini.__file__).parent / "cli").glob("[a-z]*.py")}
    assert modules == {*COMMANDS}
    assert all(re.search(rf"^  {name} +{re.escape(text)}$", USAGE, re.MULTILINE) for name, text in COMMANDS.items())
    assert len(USAGE.splitlines()) <= 35


def test_the_list_of_stages_imports_nothing_heavy() -> None:
    code = "import sys\nimport cai_pyserini.__main__ as script\nscript.main(['--help'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not (HEAVY | {"pydantic", "yaml", "numpy"}) & set(done.stdout.splitlines()[-1].split())


def test_a_command_that_fails_exits_with_1_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--collection", str(tmp_path / "nowhere"), "--output", str(tmp_path / "words")]
    monkeypatch.setattr(sys, "argv", ["cai-pyserini", "stage", "words", *arguments])
    monkeypatch.setattr(logging.getLogger("cai_pyserini"), "setLevel", lambda level: None)  # which would last
    with pytest.raises(SystemExit, match="1"):
        cli()
    printed = capsys.readouterr()
    assert printed.err.startswith("error: no collection ") and not printed.out


@pytest.mark.slow
def test_unknown_modules_are_named(java: None) -> None:
    for module in ("pyserini.nothing", "nowhere.at.all", "no_such_module"):
        with pytest.raises(CaiError, match=f"no module named {module}$"):
            main(["-m", module])


def test_commands_import_nothing_heavy_before_they_parse() -> None:
    modules = [f"cai_pyserini.cli.{name}" for name in COMMANDS]
    code = f"import sys, importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_command_and_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def check(*names: str) -> None:
        with pytest.raises(SystemExit, match="0"):
            main([*names, "--help"])
        text, full = capsys.readouterr().out, " ".join(("cai-pyserini", *names))
        assert text.startswith(f"usage: {full} ") and ("COMMAND" in text) != (f"example:\n  {full}" in text)
        for each in re.findall(r"^    ([a-z][\w-]*)", text.partition("  COMMAND\n")[2], re.MULTILINE):
            check(*names, each)

    check(name)
