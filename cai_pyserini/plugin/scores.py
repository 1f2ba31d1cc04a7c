"""Scores of an index or an encoder, from the run folder that contains it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.core import tables
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import System


class Scores(NamedTuple):
    """The scores of some of a run's systems."""

    collection: str
    split: str
    encoder: str  # its name
    table: str  # in Markdown


def index_scores(index: Path) -> Scores | None:
    """The scores of the systems that search this index alone; None outside a run folder."""
    index = index.resolve()
    if index.parent.name != "indexes":
        return None
    return _scores(index.parents[1], lambda system: system.index_name == index.name)


def encoder_scores(folder: Path) -> Scores | None:
    """The scores of systems with an adapted encoder, `adapted` or `adapted/dense` in a run folder; None elsewhere."""
    folder = folder.resolve()
    splade, dense = RunFolder(folder.parent), RunFolder(folder.parent.parent)
    if folder == splade.adapted:
        return _scores(splade.folder, lambda system: system.adapted and system.role == "splade")
    if folder == dense.adapted / "dense":
        return _scores(dense.folder, lambda system: system.adapted and system.role == "dense")
    return None


def _scores(folder: Path, includes: Callable[[System], bool]) -> Scores | None:
    run = RunFolder(folder)
    if not run.is_finished:
        return None
    results = run.results
    systems = [system for system in map(parse_system, results.systems) if includes(system) and results.scored]
    rows = [["system", *results.measures]]
    rows += [[s.name, *(f"{results.systems[s.name][measure]:.4f}" for measure in results.measures)] for s in systems]
    return Scores(
        collection=results.collection,
        split=results.split,
        encoder=results.encoder,
        table=tables.markdown(rows) if systems else "",
    )
