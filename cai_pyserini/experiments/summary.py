"""One table for several collections: a row per system, a column per collection."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from cai_pyserini.core import tables
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments import report
from cai_pyserini.experiments.experiment import Results
from cai_pyserini.experiments.names import canonical_name, with_parts
from cai_pyserini.experiments.systems import System
from cai_pyserini.runs.compared import dagger
from cai_pyserini.runs.significance import NO_P

VERIFIED = "nDCG@10"  # the measure of the expected scores


def table(systems: Sequence[System], all_results: Sequence[Results]) -> str:
    """The table for a terminal; * marks the best of each column, † a significant difference."""
    return "\n".join([tables.aligned(_rows(systems, all_results)), *_legend(all_results, "*")])


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
        tables.markdown(_rows(systems, all_results)),
        "; ".join(_legend(all_results, "bold")) + ".",
        "\n".join(links),
    ]
    return "\n\n".join(sections) + "\n"


def verify(pairs: Sequence[tuple[Results, IndexConfig]]) -> str:
    """Compare results with the expected scores of their index configs, and return the lines to print.

    Raises CaiError with these lines if a score differs by more than the tolerance, or if no scores are expected.
    """
    lines, is_right = [], True
    for results, config in pairs:
        name_of_several = f"{config.name}: " if len(pairs) > 1 else ""
        expected = config.expected.get("any", {}) | config.expected.get(results.encoder, {})
        scores = {canonical_name(name): score for name, score in expected.items() if results.scored}
        scores = {name: score for name, score in scores.items() if name in results.systems}
        if not scores:
            is_right = False
            lines.append(
                f"{name_of_several}index config {config.name} expects no scores of these systems with "
                f"{results.encoder}: nothing to verify"
            )
        for name, score in scores.items():
            measured = results.systems[name][VERIFIED]
            agrees = round(abs(measured - score), 9) <= config.tolerance
            is_right &= agrees
            verdict = f"{'ok  ' if agrees else 'FAIL'} {name}: {VERIFIED} {measured:.4f}"
            lines.append(f"{name_of_several}{verdict}, expected {score:.4f} ± {config.tolerance}")
    if not is_right:
        raise CaiError("\n".join(lines))
    return "\n".join(lines)


def _rows(systems: Sequence[System], all_results: Sequence[Results]) -> tables.Rows:
    names = [system.name for system in systems]
    header = ["system"]
    columns: list[Sequence[str | tables.Cell]] = [names]
    if scored := [results for results in all_results if results.scored]:
        scores = [[results.systems[name][results.measure] for name in names] for results in scored]
        for results, column in zip(scored, scores, strict=True):
            header.append(results.collection)
            columns.append(tables.marked(column, [_significance(results, name) for name in names]))
        header.append("mean")
        columns.append(tables.marked([fmean(row) for row in zip(*scores, strict=True)]))
    searched = [results for results in all_results if results.searched]
    times = [[results.systems[name]["ms_per_query"] for results in searched] for name in names]
    sizes = [sum(_index_bytes(system, results) for results in all_results) for system in systems]
    header += ["ms/query", "index MB"]
    columns.append([f"{fmean(row):.2f}" if row else "–" for row in times])
    columns.append([f"{size / 1e6:.1f}" for size in sizes])
    return [header, *zip(*columns, strict=True)]


def _significance(results: Results, name: str) -> str:
    if not (compared := results.comparisons.get(name)):
        return ""
    return NO_P if compared.p is None else dagger(compared)


def _index_bytes(system: System, results: Results) -> int:
    """The size of all indexes that a system searches, including its parts'."""
    indexes = {part.index_name for part in with_parts([system])}
    return sum(size for name, size in results.index_bytes.items() if name in indexes)


def _legend(all_results: Sequence[Results], mark: str) -> list[str]:
    lines = []
    if any(results.scored for results in all_results):
        lines.append(f"{all_results[0].measure} on each collection, and the mean")
    lines += dict.fromkeys(line for results in all_results for line in report.legend(results, mark))
    lines.append(
        "over the collections, ms/query is the mean, and index MB the sum, of all indexes that a system searches"
    )
    return lines + [
        f"{results.collection} is not scored: {report.unscored(results)}"
        for results in all_results
        if not results.scored
    ]
