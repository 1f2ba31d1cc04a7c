"""The outcome of an analysis: text for the terminal, <name>.json, and more files."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import write_text


@dataclass(frozen=True)
class Report:
    """The outcome of an analysis. `files` are further texts, by file name."""

    name: str
    text: str
    data: dict[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> list[str]:
        """Write <name>.json and the files, each atomically, and return their names."""
        files = {f"{self.name}.json": json.dumps(self.data, indent=1, ensure_ascii=False) + "\n", **self.files}
        for name, content in files.items():
            write_text(folder / name, content)
        return list(files)


def labels(paths: Sequence[Path]) -> list[str]:
    """Short distinct names of paths: base/splade for base/runs/splade.trec, if another is adapted/runs/splade.trec.

    Raises CaiError for a path that is given twice.
    """
    resolved = [path.resolve() for path in paths]
    root = os.path.commonpath([path.parent for path in resolved])
    names = [str(path.relative_to(root)).removesuffix(".trec").replace("/runs/", "/") for path in resolved]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise CaiError(f"{twice} is given twice")
    return names


def cut(text: str, width: int) -> str:
    """A text in one line of at most `width` characters, cut at a word boundary."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    end = next((place for place in range(width - 1, 0, -1) if line[place].isspace()), width - 1)
    return line[:end] + "…"
