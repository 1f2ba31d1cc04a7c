"""Extensions of mkdocs: a page per command, a table of fusions, and links that leave docs/."""

import contextlib
import importlib
import io
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from cai_pyserini.__main__ import COMMANDS  # noqa: E402
from cai_pyserini.runs.fusions import DEFAULT, FUSIONS  # noqa: E402

COMMAND_PAGE = "reference/commands/cai-pyserini-{}.md"  # a page called index would be that of the folder
FUSION_TABLE = "<!-- table of fusions -->"
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(((?:\.\./)+[^()\s]*)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of commands before the experiments."""
    pages = [{name: COMMAND_PAGE.format(name)} for name in COMMANDS]
    at = next(i for i, entry in enumerate(config.nav or []) if "Experiments" in entry)
    config.nav = [*config.nav[:at], {"Commands": pages}, *config.nav[at:]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, description in COMMANDS.items():
        files.append(File.generated(config, COMMAND_PAGE.format(name), content=command_page(name, description)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the table of fusions. Turn links to files outside docs/ into links to the repository at `repo_url`, or
    into text without one."""

    def elsewhere(found: re.Match[str]) -> str:
        path = posixpath.normpath(
            posixpath.join("docs", posixpath.dirname(page.file.src_uri), found[2].partition("#")[0])
        )
        if path.startswith("docs/"):
            return found[0]
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {found[2]}")
        return f"{found[1]}({config.repo_url}/blob/main/{path})" if config.repo_url else found[1][1:-1]

    return LINK.sub(elsewhere, markdown.replace(FUSION_TABLE, fusion_table()))


def fusion_table() -> str:
    """A table of suffixes, fused scores, and the treatment of a document that is missing from a list."""
    missing = {"zero": "counts 0", "last": "counts as the last of the list"}
    lines = ["| suffix | fused score | a missing document |", "|---|---|---|"]
    for name, fusion in FUSIONS.items():
        suffix = "none" if name == DEFAULT else f"`-{name}`"
        lines.append(f"| {suffix} | {fusion.description} | {missing[fusion.missing]} |")
    return "\n".join(lines)


def command_page(name: str, description: str) -> str:
    """The output of `cai-pyserini NAME --help`, and of each subcommand's."""
    module = importlib.import_module(f"cai_pyserini.{name}" + ".__main__" * (name != "doctor"))
    text = printed_help(module)
    parts = [f"# {name}\n\n{description[0].upper()}{description[1:]}.\n", fenced(text)]
    parts += [f"## {command}\n\n{fenced(printed_help(module, command))}" for command in subcommands(text)]
    return "\n".join(parts)


def printed_help(module: Any, *arguments: str) -> str:
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        module.main([*arguments, "--help"])
    return out.getvalue()


def subcommands(text: str) -> Iterator[str]:
    """The names below COMMAND in a help text."""
    yield from re.findall(r"^    ([a-z][\w-]*)", text.partition("  COMMAND\n")[2], re.MULTILINE)


def fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"
