"""What every analysis leaves: a table in the terminal, <name>.json and <name>.png in a folder."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cai_pyserini import artifact
from cai_pyserini.figure import save
from cai_pyserini.report import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(output: Path, name: str, rows: list[list[str]], data: dict[str, Any], plot: "Figure", also: str = "") -> None:
    """Print `rows`, the first of which is the header, and write <name>.json and <name>.png into `output`; `also` is a
    file that is there already."""
    artifact.write_text(output / f"{name}.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    save(plot, output / f"{name}.png")
    print("\n".join(aligned(rows)))
    print(f"\n{output / name}.json, {name}.png" + (f", {also}" if also else ""))


def labels(paths: Sequence[Path]) -> list[str]:
    """Names for paths: what is left of them in the deepest folder that holds all."""
    root = os.path.commonpath([path.resolve().parent for path in paths])
    return [str(path.resolve().relative_to(root)) for path in paths]
