"""Scores of an index or an encoder, from the run folder that it lies in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cai_pyserini.beir.layout import Layout
from cai_pyserini.beir.systems import System, parse_system
from cai_pyserini.core import artifact, tables
from cai_pyserini.core.errors import CaiError
from cai_pyserini.evaluate.measures import MEASURES


class Scores(NamedTuple):
    """What a run says about some of its systems."""

    collection: str
    split: str
    encoder: str  # the name
    checkpoint: str  # of that encoder
    table: str  # in Markdown
    date: str  # of the last run among these systems
    versions: dict[str, str]


def of_index(index: Path) -> Scores | None:
    """The scores of the systems that search this index alone; None outside a run folder."""
    index = index.resolve()
    if index.parent.name != "indexes":
        return None
    return _scores(index.parents[1], lambda system: system.index == index.name)


def of_encoder(folder: Path) -> Scores | None:
    """The scores of systems with an adapted encoder, a run folder's `adapted` or `adapted/dense`; None elsewhere."""
    folder = folder.resolve()
    splade, dense = Layout(folder.parent), Layout(folder.parent.parent)
    if folder == splade.adapted:
        return _scores(splade.folder, lambda system: system.adapted and system.kind == "splade")
    if folder == dense.adapted_dense:
        return _scores(dense.folder, lambda system: system.adapted and system.kind == "dense")
    return None


def _scores(run: Path, wanted: Callable[[System], bool]) -> Scores | None:
    layout = Layout(run)
    if not layout.results.is_file():
        return None
    try:
        results: dict[str, Any] = json.loads(layout.results.read_text(encoding="utf-8"))
        systems = [system for system in map(parse_system, results["systems"]) if wanted(system)]
        rows = [["system", *MEASURES]]
        rows += [[s.name, *(f"{results['systems'][s.name][measure]:.4f}" for measure in MEASURES)] for s in systems]
        manifests = [artifact.require(layout.run(system), "search") for system in systems]
        return Scores(
            results["collection"],
            results["split"],
            results["encoder"],
            results["settings"]["encoder"]["checkpoint"],
            tables.markdown(rows) if systems else "",
            max((manifest.created[:10] for manifest in manifests), default=""),
            results["versions"],
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CaiError(f"{layout.results} is not what `python -m cai_pyserini.beir` writes: run it again") from None
