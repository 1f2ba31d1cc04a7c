"""Settings: typed, validated values from a YAML file or the command line.

A settings class declares each value once, with its type, default, limits and help text. YAML files are read strictly
(`bits: "8"` is an error, as is an unknown key); on the command line, each value is a flag, of argparse: with cyclopts,
`--help` takes 0.3 s of CPU time more, with pydantic-settings 0.2 s, and errors have several lines, without the remedy.
"""

import argparse
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import methodcaller
from pathlib import Path
from textwrap import fill, wrap
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, Self, Union, get_args, get_origin, overload

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from cai_pyserini.core.errors import CaiError, did_you_mean, require_utf8


def _on_this_machine(value: object) -> object:
    if value == "-":
        raise ValueError("is standard input or output: give a path")
    if isinstance(value, str) and URL.match(value):
        raise ValueError("is a URL: give a path on this machine, such as of a copy or a mounted bucket")
    return value


def _spooled(value: object) -> object:
    return _standard_input().name if value == "-" else _on_this_machine(value)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str | int) else value


@cache  # read once, and kept until the process ends
def _standard_input() -> Any:
    from shutil import copyfileobj
    from tempfile import NamedTemporaryFile

    file = NamedTemporaryFile(prefix="stdin-")  # noqa: SIM115
    copyfileobj(sys.stdin.buffer, file)
    file.flush()
    return file


URL = re.compile(r"[a-z][a-z0-9+.]*://")
SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z")
CHOICE = re.compile(r"(.*invalid choice: '(.*?)') \(choose from (.*)\)", re.DOTALL)
AnyPath = Annotated[Path, BeforeValidator(_on_this_machine), Field(strict=False)]  # a string in YAML
InputFile = Annotated[Path, BeforeValidator(_spooled), Field(strict=False)]  # a file to read, or - for standard input
Names = Annotated[list[str], BeforeValidator(_listed)]  # or a single one
Numbers = Annotated[list[int], BeforeValidator(_listed)]
Argv = Sequence[str] | None  # the arguments of a command; None: those of this process


class Settings(BaseModel):
    """A set of validated values. In --help, the docstring is the description, and `example` comes last."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    example: ClassVar[str] = ""

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some values changed. Raises CaiError for a value that is not allowed."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return build(type(self), values | changes, "")


def build[S: Settings](kind: type[S], values: Mapping[str, Any], where: str | Path, *keys: str | int) -> S:
    """Settings with these values. Raises CaiError for a missing or invalid one; the message begins with `where`, and
    with the line if that is a YAML file, in which they have these keys."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise _error(kind, error.errors(), where, *keys) from None


def _error(kind: type[Settings], details: Sequence[ErrorDetails], where: str | Path, *keys: str | int) -> CaiError:
    def line(detail: ErrorDetails) -> str:
        start = place_in(where, *keys, *detail["loc"]) if isinstance(where, Path) else where
        return f"{start and f'{start}: '}{_message(kind, detail)}"

    return CaiError("\n".join(map(line, details)))


def _reason(error: ErrorDetails) -> str:
    message = re.sub("^(Value error, |Input |String |List )", "", error["msg"]).replace(" after validation", "")
    if error["type"] in ("too_short", "too_long"):
        return message
    return f"{error['input']!r} {message}" if error["loc"] else message  # no location: a check across values


def _message(kind: type[Settings], error: ErrorDetails) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if not key:
        return _reason(error)
    if error["type"] == "extra_forbidden":
        known = kind.model_fields if len(error["loc"]) == 1 else []
        hint = did_you_mean(key, known) or (f"; known keys: {', '.join(sorted(known))}" if known else "")
        return f"unknown key {key}{hint}"
    if error["type"] == "missing":
        return f"{key} is missing"
    return f"{key}: {_reason(error)}"


class _Loader(yaml.SafeLoader):
    """A loader that rejects repeated keys, of which PyYAML would use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value} occurs twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, in which 5e-5 is text.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, [*"-+.0123456789"])


def read_yaml(path: Path) -> dict[str, Any]:
    """The `key: value` pairs of a YAML file. Raises CaiError for a missing or broken file, or a repeated key."""
    try:
        data = _Loader(path.read_text(encoding="utf-8-sig")).get_single_data()
    except FileNotFoundError:
        raise CaiError(f"no file {path}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise CaiError(f"{path}:{line}: not YAML ({error.problem})") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML does not wrap errors of its constructors, for example of the date 2020-13-45 or of tagged values
        raise CaiError(f"{path}: not YAML ({str(error).partition('\n')[0]})") from None
    if not isinstance(data, dict):
        raise CaiError(f"{path}: expected `key: value` lines")
    return {str(key): value for key, value in data.items()}


def place_in(path: Path, *keys: str | int) -> str:
    """`path:line` of what has these keys in a YAML file, as far as they lead, or only the path."""
    node, line = yaml.compose(path.read_text(encoding="utf-8-sig"), _Loader), ""
    for key in keys:
        if isinstance(node, yaml.MappingNode) and (found := [pair for pair in node.value if pair[0].value == key]):
            mark, node = found[0][0].start_mark, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node = node.value[key]
            mark = node.start_mark
        else:
            break
        line = f":{mark.line + 1}"
    return f"{path}{line}"


class _Formatter(argparse.HelpFormatter):
    """Help for any terminal: paragraphs are filled, unless they have indented lines, and no name ends at a hyphen."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if "\n " in part else fill(part, width, break_on_hyphens=False) for part in text.split("\n\n")
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the names that are most similar to a wrong one. Flags cannot be
    abbreviated: `--dens` would be another one as soon as there is a `--density`."""

    def __init__(self, prog: str, kind: "type[Settings] | Group", **options: Any):
        super().__init__(prog, formatter_class=_Formatter, description=_text(kind), allow_abbrev=False, **options)
        self.commands: Mapping[str, Parser] = {}
        if isinstance(kind, Group):
            added = self.add_subparsers(dest="command", required=True, metavar="COMMAND", prog=prog)
            for name, each in kind.commands.items():
                added.add_parser(name, help=_text(each).partition("\n")[0], kind=each)
            self.commands = added.choices
            return
        self.epilog = f"example:\n  {kind.example}"
        # Required ones come first.
        for name, field in sorted(kind.model_fields.items(), key=lambda item: not item[1].is_required()):
            if get_origin(field.annotation) is not dict:  # which only a file can have
                _add(self, name, field, required=field.is_required() and "config" not in kind.model_fields)

    def error(self, message: str, hint: str = "") -> NoReturn:
        if wrong := CHOICE.match(message):
            message, choices = wrong[1], re.findall(r"[\w@.-]+", wrong[3])
            hint = did_you_mean(wrong[2], choices) or f"; choose from {', '.join(choices)};"
        self.exit(2, f"{self.prog}: error: {message}{hint or ';'} `{self.prog} --help` says more\n")


def flag(
    default: Any = ..., help: str = "", *, positional: bool = False, choices: Sequence[str] = (), **limits: Any
) -> Any:
    """Declare a field with its help text. `positional` makes it a positional argument; `choices` are values computed at
    import (fixed ones are declared with Literal); `limits` are pydantic's: ge, gt, …"""
    extra: dict[str, Any] = {"positional": positional, "choices": [*choices]}
    return Field(default, description=help, json_schema_extra=extra, **limits)


class FileSettings(Settings):
    """Settings that can also come from a file."""

    config: AnyPath | None = flag(None, "YAML file with these settings, also required ones; flags override it")


class Group(NamedTuple):
    """Commands by name, each with its settings or a group of its own, and the description of all."""

    description: str
    commands: "Mapping[str, type[Settings] | Group]"


@overload
def parse[S: Settings](kind: type[S], argv: Argv, prog: str) -> S: ...
@overload
def parse(kind: type[Settings] | Group, argv: Argv, prog: str) -> Any: ...
def parse(kind: type[Settings] | Group, argv: Argv, prog: str) -> Settings:
    """Parse a command line into settings. Of a group, the first argument is the command.

    If the settings have a field `config`, values also come from that YAML file; flags override it. Like argparse, exits
    with 2 for a missing or invalid argument; raises CaiError for a missing or invalid YAML file, and for text that is
    not UTF-8.
    """
    parser, argv = Parser(prog, kind), sys.argv[1:] if argv is None else argv
    while isinstance(kind, Group):
        if not argv or re.match("-(?!h$|-help$)", argv[0]):
            parser.error("COMMAND is required first", f"; choose from {', '.join(kind.commands)};")
        if argv[0] not in kind.commands:
            parser.parse_args(argv)  # shows the help, or exits with an error
        kind, parser, argv = kind.commands[argv[0]], parser.commands[argv[0]], argv[1:]
    if not argv and any(field.is_required() for field in kind.model_fields.values()):
        print(f"{_text(kind).partition('\n\n')[0]}\n\n{parser.epilog}\n", file=sys.stderr)  # then an error
    parser.usage = parser.format_usage().removeprefix("usage: ")
    for action in parser._actions:
        action.required = False  # pydantic reports what is missing, after unknown flags
    found, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        wrong = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        parser.error(f"unrecognized arguments: {' '.join(unknown)}", did_you_mean(wrong, parser._option_string_actions))
    values = {name: value for name, value in vars(found).items() if value not in (None, [])}
    for value in values.values():
        for text in value if isinstance(value, list) else [value]:
            require_utf8(str(text), "the argument")
    if path := values.get("config"):
        values = _read_partial(kind, Path(path)) | values
    try:
        return kind(**values)
    except ValidationError as error:
        parser.error("; ".join(_flag_message(kind, detail) for detail in error.errors()))


class Command(Settings):
    """The settings of a command, whose docstring is its help."""

    def execute(self) -> int | None:
        """Do the work, and print its result; returns the exit code, if it is not 0.

        Slow modules are imported here, so that --help responds at once.
        """
        raise NotImplementedError


class Main(NamedTuple):
    """The function `main` of the module of a command, which parses a command line and executes it."""

    kinds: type[Settings] | Group
    name: str
    execute: Callable[[Any], int | None] = methodcaller("execute")

    def __call__(self, argv: Argv = None) -> int | None:
        return self.execute(parse(self.kinds, argv, f"cai-pyserini {self.name}"))


def _read_partial(kind: type[Settings], path: Path) -> dict[str, Any]:
    """The validated values of a YAML file; required ones may be missing."""
    values = read_yaml(path)
    if "config" in values:
        raise CaiError(f"{place_in(path, 'config')}: config cannot be set in a file")
    try:
        kind(**values)
    except ValidationError as error:
        # An error without a location comes from a check across values, which flags can still change.
        if wrong := [detail for detail in error.errors() if detail["loc"] and detail["type"] != "missing"]:
            raise _error(kind, wrong, path) from None
    return values


def _flag_message(kind: type[Settings], error: ErrorDetails) -> str:
    if not error["loc"]:
        return _message(kind, error)
    name = str(error["loc"][0])
    field = kind.model_fields[name]
    shown = name if (is_positional := _extra(field, "positional")) else _option(name)
    if error["type"] != "missing":
        return f"{shown}: {_reason(error)}"
    before = ", before flags" if is_positional and get_origin(field.annotation) is list else ""  # which take all words
    return f"{shown} is required{before}"


def _text(kind: type[Settings] | Group) -> str:
    return kind.description if isinstance(kind, Group) else inspect.cleandoc(kind.__doc__ or "")


def _extra(field: FieldInfo, key: str) -> Any:
    return field.json_schema_extra.get(key) if isinstance(field.json_schema_extra, dict) else None


def _add(parser: argparse.ArgumentParser, name: str, field: FieldInfo, required: bool) -> None:
    """Add the argument of one field; it parses to None if absent."""
    text = field.description or ""
    if not field.is_required() and field.default not in (None, False, "", 0, []):
        shown = " ".join(map(str, field.default)) if isinstance(field.default, list) else field.default
        text += f" (default: {shown})"
    options: dict[str, Any] = {"help": text.replace("%", "%%"), "default": None}
    kind = _without_none(field.annotation)
    if kind is bool:
        parser.add_argument(_option(name), action="store_true", dest=name, **options)
        return
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
        options["nargs"] = "+" if required or not _extra(field, "positional") else "*"
    if choices := get_args(kind) if get_origin(kind) is Literal else _extra(field, "choices"):
        options["choices"] = choices
    else:
        options["type"] = kind if kind in (int, float) else str
    if _extra(field, "positional"):
        parser.add_argument(name, **({} if required else {"nargs": "?"}) | options)
    else:
        parser.add_argument(_option(name), required=required, **options)


def _option(name: str) -> str:
    return f"--{name.rstrip('_').replace('_', '-')}"  # json_ is --json, because pydantic's models have a method json


def _without_none(annotation: Any) -> Any:
    """X from the annotation X | None; any other annotation unchanged."""
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = [argument for argument in get_args(annotation) if argument is not type(None)]
    return annotation
