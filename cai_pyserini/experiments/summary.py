"""One table for several runs: a row for each system and encoder, a column for each collection, and their mean.

With several seeds, a score is the mean over seeds of the first measure, with its standard deviation.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from cai_pyserini.core import files, tables
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import Cell
from cai_pyserini.experiments import report
from cai_pyserini.experiments.evaluations import values_by_query
from cai_pyserini.experiments.experiment import BASELINE, Results
from cai_pyserini.experiments.names import parse_system, with_parts
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import System
from cai_pyserini.runs.compared import corrected
from cai_pyserini.runs.seeds import MIN_SEEDS, over_seeds
from cai_pyserini.runs.significance import ALPHA, NO_P, NO_P_MEANS, Comparison, Values, holm_corrected

VERIFIED = "nDCG@10"  # the measure of the expected scores
FORMATS: dict[str, tables.Format] = {".tex": "latex", ".csv": "csv"}


@dataclass(frozen=True, eq=False)
class Run:
    """A run of an experiment. `values` reads the first measure, by system and query; `seed` is None if nothing is
    trained."""

    encoder: str
    seed: int | None
    results: Results
    report: Path
    values: Callable[[], Values]

    @classmethod
    def of(cls, root: Path, results: Results, encoder: str, seed: int | None) -> "Run":
        """The finished run in a run folder."""
        return cls(encoder, seed, results, root / "report.md", lambda: values_by_query(RunFolder(root)))


class Row(NamedTuple):
    """A system with an encoder, which is empty if scores do not depend on it."""

    system: System
    encoder: str

    def of(self, runs: Iterable[Run]) -> list[Run]:
        """The row's runs, by seed."""
        own = [run for run in runs if self.system.name in run.results.systems]
        return [run for run in own if run.encoder == (self.encoder or own[0].encoder)]


class Score(NamedTuple):
    """A row's score on a collection, by seed, and its comparisons with the baseline and with the first encoder."""

    by_seed: list[float]
    baseline: Comparison | None = None
    first: Comparison | None = None

    @property
    def mark(self) -> str:
        compared = [(mark, found) for mark, found in (("†", self.baseline), ("‡", self.first)) if found]
        marks = "".join(mark for mark, found in compared if found.significant)
        return marks or NO_P * any(found.p is None for _, found in compared)


class Summary:
    """The table of runs."""

    def __init__(self, runs: Sequence[Run]):
        self.by_collection: dict[str, list[Run]] = {}
        for run in runs:
            self.by_collection.setdefault(run.results.collection, []).append(run)
        self.runs, self.encoders = runs, [*dict.fromkeys(run.encoder for run in runs)]
        systems = {run.encoder: run.results.systems for run in runs}
        names = dict.fromkeys(chain(*systems.values()))
        rows = (
            Row(system, encoder if system.adapted or "splade" in system.evidence else "")
            for system in map(parse_system, names)
            for encoder in self.encoders
            if system.name in systems[encoder]
        )
        self.rows = [*dict.fromkeys(rows)]
        self.measure = runs[0].results.measure

    @cached_property
    def columns(self) -> dict[str, dict[Row, Score]]:
        """The scores of each collection that has any."""
        scored = {name: runs for name, runs in self.by_collection.items() if runs[0].results.scored}
        return {name: self._scores(runs) for name, runs in scored.items()}

    @cached_property
    def means(self) -> dict[Row, Score]:
        """The means over the collections, by seed."""
        by_seed = {
            row: zip(*(scores[row].by_seed for scores in self.columns.values()), strict=True) for row in self.rows
        }
        return {row: Score([*map(fmean, scores)]) for row, scores in by_seed.items()}

    def _scores(self, runs: Sequence[Run]) -> dict[Row, Score]:
        """The scores of a collection; the values of all queries are in memory for this one alone."""
        read = [(run, run.values()) for run in runs]
        values = {row: [of_run[row.system.name] for run, of_run in read if run in row.of(runs)] for row in self.rows}
        first = {row: row._replace(encoder=self.encoders[0] * bool(row.encoder)) for row in self.rows}
        base = next((row for row in self.rows if row.system.name == BASELINE), None)
        with_base = {row: over_seeds(values[base], of_row) for row, of_row in values.items() if base and row != base}
        others = {row: other for row, other in first.items() if other != row and other in values}
        with_first = {row: over_seeds(values[other], values[row]) for row, other in others.items()}
        baseline, encoder = holm_corrected(with_base), holm_corrected(with_first)
        return {
            row: Score([fmean(of_seed.values()) for of_seed in of_row], baseline.get(row), encoder.get(row))
            for row, of_row in values.items()
        }

    @property
    def table(self) -> list[list[str | Cell]]:
        several = len(self.encoders) > 1
        columns: list[list[str | Cell]] = [["system", *(row.system.name for row in self.rows)]]
        if several:
            columns.append(["encoder", *(row.encoder for row in self.rows)])
        means = {"mean": self.means} if len(self.columns) > 1 else {}
        columns += [[name, *_cells(scores)] for name, scores in (self.columns | means).items()]
        columns.append(["ms/query", *map(self._time, self.rows)])
        columns.append(["index MB", *(f"{self._bytes(row) / 1e6:.1f}" for row in self.rows)])
        return [[*cells] for cells in zip(*columns, strict=True)]

    def _time(self, row: Row) -> str:
        means = (run.results.systems[row.system.name] for run in row.of(self.runs))
        times = [each["ms_per_query"] for each in means if "ms_per_query" in each]
        return f"{fmean(times):.2f}" if times else NO_P

    def _bytes(self, row: Row) -> float:
        """The size of all indexes that a system searches, including its parts', on all collections."""
        indexes = {part.index_name for part in with_parts([row.system])}
        sizes = [
            [sum(size for name, size in run.results.index_bytes.items() if name in indexes) for run in row.of(runs)]
            for runs in self.by_collection.values()
        ]
        return sum(map(fmean, sizes))

    def legend(self, best: str) -> list[str]:
        """What the marks and columns mean; `best` marks the best of a column."""
        lines = []
        if self.columns:
            runs = {name: self.by_collection[name][0].results for name in self.columns}
            sets = [f"{name} ({each.split}, {each.evaluated_queries:,} queries)" for name, each in runs.items()]
            mean = ", and the mean of these" * (len(sets) > 1)
            lines = [f"{self.measure} on {', '.join(sets)}{mean}", f"{best}: best of its column"]
        seeds = [*dict.fromkeys(run.seed for run in self.runs if run.seed is not None)]
        test = "two-sided paired t-test"
        if len(seeds) > 1:
            lines.append(f"±: standard deviation over {len(seeds)} seeds, of what is trained")
        if len(seeds) >= MIN_SEEDS:
            test = "two-sided t-test with crossed random effects of queries and of seeds, where these matter,"
        for mark, what, name in (
            ("†", BASELINE, "baseline"),
            ("‡", f"the same system with {self.encoders[0]}", "first"),
        ):
            found = ([getattr(score, name) for score in scores.values()] for scores in self.columns.values())
            tested = [sum(each is not None and each.p is not None for each in column) for column in found]
            for count in dict.fromkeys(filter(None, tested)):
                how = f"{test} on {self.measure}, p < {ALPHA}{corrected(count, 'rows of a column')}"
                lines.append(f"{mark}: differs from {what} ({how})")
        if any(NO_P in score.mark for scores in self.columns.values() for score in scores.values()):
            lines.append(f"{NO_P_MEANS}, nor for two seeds" if len(seeds) == 2 else NO_P_MEANS)
        if len(seeds) == 1:
            lines.append("one seed: p is about other queries, not about other seeds")
        lines += dict.fromkeys(line for run in self.runs for line in report.notes(run.results))
        over = "over the collections, ms/query is the mean, and index MB the sum, " * (len(self.by_collection) > 1)
        lines.append(f"{over or 'index MB: '}of all indexes that a system searches")
        unscored = {name: runs[0].results for name, runs in self.by_collection.items() if not runs[0].results.scored}
        return lines + [f"{name} is not scored: {report.unscored(results)}" for name, results in unscored.items()]

    @property
    def text(self) -> str:
        """For a terminal."""
        return "\n".join([tables.render(self.table, "text"), *self.legend("*")])

    def markdown(self, folder: Path) -> str:
        """For a file in `folder`, with links to the reports."""
        links = [
            f"- [{self._name(run)}]({os.path.relpath(run.report, folder)}), split {run.results.split}: "
            + report.collection_size(run.results)
            for run in self.runs
        ]
        sections = [
            f"# {', '.join(self.by_collection)}, encoder {', '.join(self.encoders)}",
            tables.render(self.table, "markdown"),
            "; ".join(self.legend("bold")) + ".",
            "\n".join(links),
        ]
        return "\n\n".join(sections) + "\n"

    def _name(self, run: Run) -> str:
        encoder = f", {run.encoder}" * (len(self.encoders) > 1)
        return f"{run.results.collection}{encoder}" + ("" if run.seed is None else f", seed {run.seed}")

    def record(self, folder: Path) -> dict[str, Any]:
        """All values, for summary.json."""
        rows = [
            {
                "system": row.system.name,
                "encoder": row.encoder or None,
                "collections": {name: self._entry(name, row, folder) for name in self.by_collection},
                "mean": _statistics(self.means[row]) if self.columns else None,
            }
            for row in self.rows
        ]
        return {"measure": self.measure, "baseline": BASELINE, "first_encoder": self.encoders[0], "rows": rows}

    def _entry(self, collection: str, row: Row, folder: Path) -> dict[str, Any]:
        runs = row.of(self.by_collection[collection])
        by_seed = [
            {"seed": run.seed, "run": os.path.relpath(run.report.parent, folder)} | run.results.systems[row.system.name]
            for run in runs
        ]
        statistics = _statistics(self.columns[collection][row]) if collection in self.columns else {}
        return statistics | {"runs": by_seed}

    def write(self, folder: Path) -> Path:
        """Write summary.md, summary.tex, summary.csv and summary.json, and return the first."""
        path = folder / "summary.md"
        files.write_text(path, self.markdown(folder))
        caption = f"{'; '.join(self.legend('bold'))}."
        for suffix, format in FORMATS.items():
            files.write_text(path.with_suffix(suffix), tables.render(self.table, format, caption) + "\n")
        files.write_text(path.with_suffix(".json"), files.json_text(self.record(folder)))
        return path


def _cells(scores: Mapping[Row, Score]) -> list[Cell]:
    """A column: each mean over seeds, and the standard deviation where seeds change it."""
    cells = tables.marked([fmean(score.by_seed) for score in scores.values()], [each.mark for each in scores.values()])
    spreads = [f" ± {stdev(score.by_seed):.4f}" if len({*score.by_seed}) > 1 else "" for score in scores.values()]
    return [cell._replace(text=f"{cell.text}{spread}") for cell, spread in zip(cells, spreads, strict=True)]


def _statistics(score: Score) -> dict[str, Any]:
    compared = {"baseline": score.baseline, "first_encoder": score.first}
    return {
        "mean": fmean(score.by_seed),
        "deviation": stdev(score.by_seed) if len(score.by_seed) > 1 else None,
        **{
            name: {"difference": found.difference, "interval": found.interval, "p": found.p}
            for name, found in compared.items()
            if found
        },
    }


def verify(pairs: Sequence[tuple[Results, IndexConfig]]) -> str:
    """Compare results with the expected scores of their index configs, and return the lines to print.

    Raises CaiError with these lines if a score differs by more than the tolerance, or if no scores are expected.
    """
    lines, is_right, several = [], True, len({results.encoder for results, _ in pairs}) > 1
    for results, config in pairs:
        encoder = f", {results.encoder}" if several else ""
        name_of_several = f"{config.name}{encoder}: " if len(pairs) > 1 else ""
        expected = config.expected.get("any", {}) | config.expected.get(results.encoder, {})
        scores = {parse_system(name).name: score for name, score in expected.items() if results.scored}
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
