"""`cai-pyserini`, `python -m cai_pyserini`, and what all commands have in common."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cai_pyserini
from cai_pyserini import __version__
from cai_pyserini.__main__ import COMMANDS as DESCRIBED
from cai_pyserini.__main__ import USAGE, cli, main
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


def test_version(argv, capsys: pytest.CaptureFixture[str]) -> None:
    argv("--version")
    assert capsys.readouterr().out == f"cai-pyserini {__version__}\n"


@pytest.mark.parametrize("arguments", [("something",), ("-m",), ("--module", "pyserini.search")])
def test_arguments_that_are_refused(argv, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        argv(*arguments)
    printed = capsys.readouterr()
    assert printed.err == USAGE + "\n" and not printed.out


def test_the_usage_describes_every_command() -> None:
    assert {name.removeprefix("cai_pyserini.") for name in COMMANDS} == set(DESCRIBED)
    assert all(re.search(rf"^  {name} +{re.escape(text)}$", USAGE, re.MULTILINE) for name, text in DESCRIBED.items())


@pytest.mark.parametrize("stage", DESCRIBED)
def test_a_stage_is_run_as_its_module_is(
    stage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"cai_pyserini.{stage}" + ".__main__" * (stage != "doctor")
    monkeypatch.delitem(sys.modules, module, raising=False)  # runpy warns of a module that is imported already
    monkeypatch.setattr(sys, "argv", ["cai-pyserini", stage, "--help"])
    with pytest.raises(SystemExit, match="0"):
        cli()
    name = "run_beir.sh" if stage == "beir" else f"python -m cai_pyserini.{stage}"
    assert capsys.readouterr().out.startswith(f"usage: {name} ")


def test_the_list_of_stages_imports_nothing_heavy() -> None:
    code = "import sys\nsys.argv = ['cai-pyserini', '--help']\nimport cai_pyserini.__main__ as script\n"
    code += "script.main()\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not (HEAVY | {"pydantic", "yaml", "numpy"}) & set(done.stdout.splitlines()[-1].split())


def test_stages_fail_as_their_modules_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["words", "--collection", str(tmp_path / "nowhere"), "--output", str(tmp_path / "words")]
    monkeypatch.delitem(sys.modules, "cai_pyserini.cli.words", raising=False)
    monkeypatch.setattr(sys, "argv", ["cai-pyserini", *arguments])
    with pytest.raises(SystemExit, match="1"):
        cli()
    printed = capsys.readouterr()
    assert printed.err.startswith("error: no collection ") and not printed.out


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
