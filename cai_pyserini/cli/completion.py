"""What shells complete command lines with, without starting Python for it, and the man page: both from the parsers."""

import os
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Literal

from cai_pyserini.cli import COMMANDS, USAGE
from cai_pyserini.core.config import names
from cai_pyserini.core.settings import Command, Group, Main, Parser, Settings, flag
from cai_pyserini.core.version import VERSION
from cai_pyserini.experiments.names import RECOMMENDED
from cai_pyserini.experiments.systems import SINGLE

# By names of arguments: folders that commands write, values beside other values, and names beside paths.
FOLDERS = ("run", "runs", "index", "folder")
VALUES = {
    **dict.fromkeys(("system", "systems", "a", "b"), (*dict.fromkeys([*RECOMMENDED, *SINGLE]),)),
    "device": ("auto", "cpu", "cuda"),
}
NAMES: dict[str, Literal["index_configs", "encoders"]] = {
    **dict.fromkeys(("collection", "collections", "corpus"), "index_configs"),
    **dict.fromkeys(("encoder", "dense", "base"), "encoders"),
}
NAMES_OR_FILES = {  # functions of shells
    "bash": '{name}() {{ compgen -W "{words}" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": "{name}() {{ _alternative 'name:name:({words})' 'file:file:_files'; }}",
    "fish": "function {name}; string split ' ' '{words}'; __fish_complete_path (commandline -ct); end",
}
NAME = ".SH NAME\ncai-pyserini \\- learned sparse retrieval and search"


class Help(Settings):
    """Describe a command."""

    example = "cai-pyserini help search"
    name: str = flag(help="a command", positional=True, choices=(*COMMANDS,))


class Completion(Command):
    """Print a script that completes commands, flags, names and files in a shell, or the man page."""

    example = (
        "cai-pyserini completion bash > ~/.local/share/bash-completion/completions/cai-pyserini\n"
        "  cai-pyserini completion man > ~/.local/share/man/man1/cai-pyserini.1"
    )
    shell: Literal["bash", "zsh", "fish", "man"] = flag(help="what it is for", positional=True)

    def execute(self) -> None:
        commands = all_commands()
        parser = Parser("cai-pyserini", commands)
        if self.shell == "man":
            os.environ["COLUMNS"] = "72"  # of 80, beside an indentation
            print(f'.TH CAI-PYSERINI 1 "" "cai-pyserini {VERSION}"', NAME, _section("SYNOPSIS", USAGE), sep="\n")
            print("\n".join(_sections(parser)))
            return

        import shtab

        _declare(parser, commands, self.shell)
        print(shtab.complete(parser, self.shell))


def all_commands() -> Group:
    return Group("", {name: import_module(f"cai_pyserini.cli.{name}").main.kinds for name in COMMANDS} | {"help": Help})


def _declare(parser: Any, kind: Any, shell: str) -> None:
    """Declare what the arguments of a parser, and of its commands' parsers, are completed with."""
    import shtab

    for name, command in parser.commands.items():
        _declare(command, kind.commands[name], shell)
    for action in () if parser.commands else parser._actions:
        if action.nargs == "+" and action.option_strings and shell == "zsh":
            action.metavar = f"*-*:{action.dest}"  # all values up to the next flag
        if folder := NAMES.get(action.dest):
            name = f"_cai_{folder}_or_files"
            function = NAMES_OR_FILES[shell].format(name=name, words=" ".join(names(folder)))
            action.complete = {shell: f"({name})" if shell == "fish" else name, "preamble": {shell: function}}
        elif action.dest in VALUES:
            action.choices = VALUES[action.dest]
        elif action.dest in kind.model_fields and "Path" in str(kind.model_fields[action.dest].annotation):
            action.complete = shtab.DIRECTORY if action.dest in FOLDERS else shtab.FILE


def _sections(parser: Parser) -> Iterator[str]:
    """Yield the sections of a man page: the help of each command, and of its commands."""
    for command in parser.commands.values():
        yield _section(command.prog, command.format_help())
        yield from _sections(command)


def _section(title: str, text: str) -> str:
    escaped = re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", r"\e").replace("-", r"\-"), flags=re.MULTILINE)
    return f'.SH "{title}"\n.nf\n{escaped}\n.fi'


main = Main(Completion, "completion")
