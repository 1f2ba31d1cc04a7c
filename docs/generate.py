"""Generate what the site has and the repository has not: pages of the commands, and links that leave docs/.

python docs/generate.py     build/docs, which mkdocs.yml reads; and docs/reference/python.md, from docstrings
"""

import contextlib
import inspect
import io
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import cai_pyserini  # noqa: E402
import setup  # noqa: E402
from cai_pyserini.__main__ import COMMANDS, main  # noqa: E402
from cai_pyserini.runs.fusions import DEFAULT, FUSIONS  # noqa: E402

PYTHON = ROOT / "docs" / "reference" / "python.md"
FUSION_TABLE = "<!-- table of fusions -->"
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(((?:\.\./)+[^()\s]*)\)")
MODULE = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])")  # of a type in a signature
INTRODUCTION = """# Python

`import cai_pyserini as cai` is all that programs need. Nothing slow is imported before a name is used. Paths are
strings or `Path`s; where one text is taken, so are several, of any iterable.

Documents, queries, qrels and rankings can be dicts, lists, generators, or tables of pandas, polars, Arrow and datasets,
whose columns have their usual names. Ids can be integers, also NumPy's, and floats that are integers, as pandas makes
of a column with a missing one. What has no clear meaning is refused with `CaiError`, which names the record: missing
ids, scores that are not finite, grades that are no integers. Keywords are typed, for editors and type checkers.

<!-- `python docs/generate.py` writes what follows. -->
"""


def site(output: Path) -> None:
    """Write the pages that mkdocs builds the site of. Links to files outside of docs/ lead to the repository."""
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(ROOT / "docs", output, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (output / "reference" / "commands.md").write_text(commands(), encoding="utf-8")
    for page in output.rglob("*.md"):
        folder = posixpath.join("docs", page.relative_to(output).parent.as_posix())
        text = page.read_text(encoding="utf-8").replace(FUSION_TABLE, fusion_table())
        page.write_text(LINK.sub(partial(linked, folder), text), encoding="utf-8")


def linked(folder: str, found: re.Match[str]) -> str:
    """A link of a page in `folder`, as it is on the site."""
    path = posixpath.normpath(posixpath.join(folder, found[2].partition("#")[0]))
    if path.startswith("docs/"):
        return found[0]
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"{folder}: {found[2]}")
    return f"{found[1]}({setup.place(path)})"


def fusion_table() -> str:
    """The suffix, the method, and what it does with a document that is missing from a list."""
    missing = {"zero": "counts 0", "last": "counts as the last of the list"}
    lines = ["| suffix | fused score | a missing document |", "|---|---|---|"]
    for name, fusion in FUSIONS.items():
        suffix = "none" if name == DEFAULT else f"`-{name}`"
        lines.append(f"| {suffix} | {fusion.description} | {missing[fusion.missing]} |")
    return "\n".join(lines)


def commands() -> str:
    """What `cai-pyserini NAME --help` prints of every command, of their subcommands too."""
    parts = [f"# Commands\n\n{fenced(printed_help())}"]
    for name, description in COMMANDS.items():
        parts.append(f"## {name}\n\n{description[0].upper()}{description[1:]}.\n\n{fenced(printed_help(name))}")
        parts += subcommands(name)
    return "\n".join(parts)


def printed_help(*arguments: str) -> str:
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main([*arguments, "--help"])
    return out.getvalue()


def subcommands(*names: str) -> Iterator[str]:
    """The help texts of the commands that a command has, and of those that these have."""
    _, _, listed = printed_help(*names).partition("  COMMAND\n")
    for each in re.findall(r"^    ([a-z][\w-]*)", listed, re.MULTILINE):
        yield f"### {' '.join(names)} {each}\n\n{fenced(printed_help(*names, each))}"
        yield from subcommands(*names, each)


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


def python() -> str:
    """The reference of the names in cai_pyserini.__all__, functions first, from their docstrings."""
    members = {name: getattr(cai_pyserini, name) for name in cai_pyserini.__all__}
    functions = {name: member for name, member in members.items() if inspect.isfunction(member)}
    parts = [INTRODUCTION, *(entry("##", f"cai.{name}", function) for name, function in functions.items())]
    for name, member in members.items():
        if name not in functions:
            parts.append(entry("##", f"cai.{name}", member))
            parts += [entry("###", f"{name}.{method}", function) for method, function in methods(member)]
    return "\n".join(parts)


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The documented public methods and properties of a class, in the order of its source."""
    for name, member in vars(kind).items():
        if not name.startswith("_") and inspect.getdoc(member) and (callable(member) or isinstance(member, property)):
            yield name, member


def entry(heading: str, name: str, member: Any) -> str:
    """A heading, a signature and a docstring, whose examples become code."""
    signature = f"{fenced(f'{name}{shown(member)}')}\n" if callable(member) else ""
    prose: list[str] = []
    for paragraph in (inspect.getdoc(member) or "").split("\n\n"):
        is_code = paragraph.startswith(">>>") or all(line.startswith("    ") for line in paragraph.splitlines())
        prose.append(fenced(inspect.cleandoc(paragraph), "python") if is_code else f"{paragraph}\n")
    return f"{heading} {name}\n\n{signature}" + "\n".join(prose)


def shown(member: Any) -> str:
    """A signature without `self`, a parameter a line where it is long."""
    if inspect.isclass(member) and issubclass(member, Exception):
        return "(message)"
    signature = inspect.signature(member)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    text = MODULE.sub("", str(signature.replace(parameters=parameters)))
    if len(text) < 90:
        return text
    lines, has_star = [], False
    for each in parameters:
        if each.kind == inspect.Parameter.KEYWORD_ONLY and not has_star:
            lines.append("    *,")
            has_star = True
        lines.append(f"    {MODULE.sub('', str(each))},")
    returns = "" if signature.return_annotation is inspect.Signature.empty else text.rpartition(" -> ")[2]
    return "(\n" + "\n".join(lines) + "\n)" + (f" -> {returns}" if returns else "")


if __name__ == "__main__":
    PYTHON.write_text(python(), encoding="utf-8")
    site(ROOT / "build" / "docs")
