"""One table for several collections: a row per system, a column per collection."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from cai_pyserini.core import tables
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments import report
from cai_pyserini.experiments.names import canonical_name, with_parts
from cai_pyserini.experiments.results import Results
from cai_pyserini.experiments.systems import System
from cai_pyserini.runs.measures import MEASURES
from cai_pyserini.runs.significance import NO_P


def table(systems: Sequence[System], all_results: Sequence[Results]) -> str:
    """The table for a terminal; * marks the best of each column, † a significant difference."""
    return "\n".join([tables.aligned(_rows(systems, all_results, "*{}", " {}")), *_legend(all_results, "*")])


def markdown(systems: Sequence[System], by_report: Mapping[Path, Results], folder: Path) -> str:
    """The table for a file in `folder`; `by_report` maps the paths of reports to their results."""
    all_results = [*by_report.values()]
    links = [
        f"- [{results.collection}]({os.path.relpath(path, folder)}), split {results.split}: "
        + report.collection_size(results)
        for path, results in by_report.items()
    ]
    sections = [
        f"# {', '.join(results.collection for results in all_results)}, encoder {all_results[0].encoder}",
        tables.markdown(_rows(systems, all_results, "**{}**", "{}")),
        "; ".join(_legend(all_results, "bold")) + ".",
        "\n".join(links),
    ]
    return "\n\n".join(sections) + "\n"


def verify(results: Results, config: IndexConfig) -> str:
    """Compare results with the expected scores of the index config, and return the lines to print.

    Raises CaiError with these lines if a score differs by more than the tolerance, and if no scores are expected.
    """
    expected = config.expected.get("any", {}) | config.expected.get(results.encoder, {})
    expected = {canonical_name(name): score for name, score in expected.items() if results.scored}
    expected = {name: score for name, score in expected.items() if name in results.systems}
    if not expected:
        raise CaiError(
            f"index config {config.name} expects no scores of these systems with {results.encoder}: nothing to verify"
        )
    lines, wrong = [], []
    for name, score in expected.items():
        measured = results.systems[name]["nDCG@10"]
        agrees = round(abs(measured - score), 9) <= config.tolerance
        if not agrees:
            wrong.append(name)
        verdict = "ok  " if agrees else "FAIL"
        lines.append(f"{verdict} {name}: nDCG@10 {measured:.4f}, expected {score:.4f} ± {config.tolerance}")
    if wrong:
        lines.append(
            f"{len(wrong)} of {len(expected)} scores differ by more than {config.tolerance}: {', '.join(wrong)}"
        )
        raise CaiError("\n".join(lines))
    return "\n".join(lines)


def verify_all(pairs: Iterable[tuple[Results, IndexConfig]]) -> str:
    """Like `verify`, for several collections; each line begins with the collection's name."""
    lines, wrong = [], False
    for results, config in pairs:
        try:
            text = verify(results, config)
        except CaiError as error:
            text, wrong = str(error), True
        lines += [f"{config.name}: {line}" for line in text.splitlines()]
    if wrong:
        raise CaiError("\n".join(lines))
    return "\n".join(lines)


def _rows(systems: Sequence[System], all_results: Sequence[Results], best: str, other: str) -> list[list[str]]:
    names = [system.name for system in systems]
    header, columns = ["system"], [names]
    if scored := [results for results in all_results if results.scored]:
        scores = [[results.systems[name][MEASURES[0]] for name in names] for results in scored]
        for results, column in zip(scored, scores, strict=True):
            marks = [_significance(results, name) for name in names]
            cells = report.marked(column, best, other)
            header.append(results.collection)
            columns.append([f"{cell}{mark}" for cell, mark in zip(cells, marks, strict=True)])
        header.append("mean")
        columns.append(report.marked([fmean(row) for row in zip(*scores, strict=True)], best, other))
    searched = [results for results in all_results if results.searched]
    times = [[results.systems[name]["ms_per_query"] for results in searched] for name in names]
    sizes = [sum(_index_bytes(system, results) for results in all_results) for system in systems]
    header += ["ms/query", "index MB"]
    columns.append([f"{fmean(row):.2f}" if row else "–" for row in times])
    columns.append([f"{size / 1e6:.1f}" for size in sizes])
    return [header, *map(list, zip(*columns, strict=True))]


def _significance(results: Results, name: str) -> str:
    if not (compared := results.comparisons.get(name)):
        return " "
    return NO_P if compared["p"] is None else report.dagger(compared["p"])


def _index_bytes(system: System, results: Results) -> int:
    """The size of all indexes that a system searches, including its parts'."""
    indexes = {part.index_name for part in with_parts([system])}
    return sum(size for name, size in results.index_bytes.items() if name in indexes)


def _legend(all_results: Sequence[Results], mark: str) -> list[str]:
    lines = []
    if any(results.scored for results in all_results):
        lines.append(f"{MEASURES[0]} on each collection, and the mean")
    lines += dict.fromkeys(line for results in all_results for line in report.legend(results, mark))
    lines.append(
        "over the collections, ms/query is the mean, and index MB the sum, of all indexes that a system searches"
    )
    return lines + [
        f"{results.collection} is not scored: {report.unscored(results)}"
        for results in all_results
        if not results.scored
    ]
