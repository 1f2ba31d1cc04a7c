"""The output of an analysis: text for the terminal, <name>.json, and other files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import json_text, write_text

SEARCH_AGAIN = "search with `cai-pyserini run`, after an update with `cai-pyserini update --evaluate`"


@dataclass(frozen=True)
class Report:
    """The output of an analysis; `files` are texts by file name."""

    name: str
    text: str
    data: dict[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> list[str]:
        """Write <name>.json and the files, each atomically, and return their names."""
        files = {f"{self.name}.json": json_text(self.data, ensure_ascii=False), **self.files}
        for name, content in files.items():
            write_text(folder / name, content)
        return list(files)


def labels(paths: Sequence[Path]) -> list[str]:
    """Short distinct names of paths: base/splade for base/runs/splade.trec, if another is adapted/runs/splade.trec.

    Raises CaiError for two equal paths.
    """
    resolved = [path.resolve() for path in paths]
    root = os.path.commonpath([path.parent for path in resolved])
    names = [str(path.relative_to(root)).removesuffix(".trec").replace("/runs/", "/") for path in resolved]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise CaiError(f"{twice} is given twice")
    return names


def cut(text: str, width: int) -> str:
    """Shorten a text to one line of at most `width` characters, at a word boundary."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    end = line.rfind(" ", 1, width)
    return line[: end if end > 0 else width - 1] + "…"
