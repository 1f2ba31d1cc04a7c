"""Several collections in one table: a row for each system, a column for each collection."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from cai_pyserini.beir import report
from cai_pyserini.beir.run_folder import Results
from cai_pyserini.beir.systems import System, with_parts
from cai_pyserini.core import tables
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.evaluate.measures import MEASURES
from cai_pyserini.evaluate.significance import NO_P


def table(systems: Sequence[System], found: Sequence[Results]) -> str:
    """The table for a terminal; * marks the best of each column, † a significant difference."""
    return "\n".join([tables.aligned(_rows(systems, found, "*{}", " {}")), *_legend(found, "*")])


def markdown(systems: Sequence[System], found: Mapping[Path, Results], folder: Path) -> str:
    """The table as a file in `folder`; `found` has the results by the path of their report."""
    every = [*found.values()]
    sections = [
        f"# {', '.join(results.collection for results in every)}, encoder {every[0].encoder}",
        tables.markdown(_rows(systems, every, "**{}**", "{}")),
        "; ".join(_legend(every, "bold")) + ".",
        "\n".join(
            f"- [{results.collection}]({os.path.relpath(path, folder)}), split {results.split}: {report.size(results)}"
            for path, results in found.items()
        ),
    ]
    return "\n\n".join(sections) + "\n"


def verify(found: Iterable[tuple[Results, IndexConfig]]) -> str:
    """As report.verify, for every collection, whose name begins each line."""
    lines, wrong = [], False
    for results, config in found:
        try:
            text = report.verify(results, config)
        except CaiError as error:
            text, wrong = str(error), True
        lines += [f"{config.name}: {line}" for line in text.splitlines()]
    if wrong:
        raise CaiError("\n".join(lines))
    return "\n".join(lines)


def _rows(systems: Sequence[System], found: Sequence[Results], best: str, other: str) -> list[list[str]]:
    names = [system.name for system in systems]
    header, columns = ["system"], [names]
    if scored := [results for results in found if results.scored]:
        scores = [[results.systems[name][MEASURES[0]] for name in names] for results in scored]
        for results, column in zip(scored, scores, strict=True):
            marks = [_significance(results, name) for name in names]
            cells = report.marked(column, best, other)
            header.append(results.collection)
            columns.append([f"{cell}{mark}" for cell, mark in zip(cells, marks, strict=True)])
        header.append("mean")
        columns.append(report.marked([fmean(row) for row in zip(*scores, strict=True)], best, other))
    searched = [results for results in found if results.searched]
    times = [[results.systems[name]["ms_per_query"] for results in searched] for name in names]
    header += ["ms/query", "index MB"]
    columns.append([f"{fmean(each):.2f}" if each else "–" for each in times])
    columns.append([f"{sum(_index_bytes(system, results) for results in found) / 1e6:.1f}" for system in systems])
    return [header, *map(list, zip(*columns, strict=True))]


def _significance(results: Results, name: str) -> str:
    if not (compared := results.comparisons.get(name)):
        return " "
    return NO_P if compared["p"] is None else report.dagger(compared["p"])


def _index_bytes(system: System, results: Results) -> int:
    """The size of the indexes that a system searches, those of its parts included."""
    indexes = {part.index for part in with_parts([system])}
    return sum(size for name, size in results.index_bytes.items() if name in indexes)


def _legend(found: Sequence[Results], mark: str) -> list[str]:
    lines = [f"{MEASURES[0]} on each collection, and the mean"] * any(results.scored for results in found)
    lines += dict.fromkeys(line for results in found for line in report.legend(results, mark))
    lines.append(
        "over the collections, ms/query is the mean, and index MB the sum, of all indexes that a system searches"
    )
    return lines + [
        f"{results.collection} is not scored: {report.unscored(results)}" for results in found if not results.scored
    ]
