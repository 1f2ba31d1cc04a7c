"""Systems compared with each other: tables for terminals and papers, and everything they are made from as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from string import ascii_letters
from textwrap import shorten
from typing import Any

from cai_pyserini.collections.contract import Collection
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.tables import Cell, Columns, Format, Rows, in_rows, marked, render
from cai_pyserini.runs.measures import PerQuery, mean, measure_runs
from cai_pyserini.runs.significance import (
    ALPHA,
    NO_P,
    NO_P_MEANS,
    RESAMPLES,
    TIE,
    Comparison,
    Interval,
    Significance,
    p_text,
    permutations,
    wins_and_losses,
)

INTERVAL = "95% interval"
TEXT_WIDTH = 80  # of a query
INTERVALS = f"intervals: 95% confidence, uncorrected, percentile bootstrap with {RESAMPLES:,} samples of the queries"
DIFFERENCE = (INTERVAL, "d_z", "p", "p (rand.)")


@dataclass(frozen=True)
class Compared:
    """Systems compared by the first of their measures, with each other and with a baseline; as a text, two tables."""

    measures: list[str]
    queries: int
    systems: dict[str, dict[str, float]]  # the means of the measures
    intervals: dict[str, Interval | None] = field(default_factory=dict)  # 95%, of the means of the first measure
    baseline: str = ""
    comparisons: dict[str, Comparison] = field(default_factory=dict)  # with the baseline
    pairs: dict[str, dict[str, Comparison]] = field(default_factory=dict)  # of all systems: the second minus the first
    per_query: Mapping[str, PerQuery] = field(default_factory=dict)

    @classmethod
    def of(cls, per_query: Mapping[str, PerQuery], baseline: str = "") -> "Compared":
        """Compare systems by their measures of each query; the baseline is by default the first. Raises CaiError if
        they were not measured on the same."""
        baseline = baseline or next(iter(per_query))
        measures = [*next(iter(per_query.values()))]
        values = {name: by_measure[measures[0]] for name, by_measure in per_query.items()}
        significance = Significance(values)
        pairs: dict[str, dict[str, Comparison]] = {}
        for (first, second), found in significance.all_pairs().items():
            pairs.setdefault(first, {})[second] = found
        others = [(baseline, name) for name in values if name != baseline] if baseline in values else []
        return cls(
            measures=measures,
            queries=len(next(iter(values.values()))),
            systems={name: {each: mean(found[each]) for each in measures} for name, found in per_query.items()},
            intervals=significance.intervals(),
            baseline=baseline,
            comparisons={name: found for (_, name), found in significance.compare(others).items()},
            pairs=pairs,
            per_query=per_query,
        )

    @classmethod
    def of_runs(cls, collection: Collection, split: str, runs: Sequence[Path], measures: Sequence[str]) -> "Compared":
        """Compare TREC runs of a collection; the first is the baseline. Raises CaiError as `measure_runs` does."""
        names = run_names(runs)
        measured = measure_runs(collection, split, runs, measures)
        return cls.of({names[path]: values for path, values in measured.items()})

    @cached_property
    def letters(self) -> dict[str, str]:
        """A letter for each system; none without any p, and for more systems than letters."""
        is_lettered = self._tested and len(self.systems) <= len(ascii_letters)
        return dict(zip(self.systems, ascii_letters, strict=False)) if is_lettered else {}

    @cached_property
    def better(self) -> dict[str, str]:
        """The letters of the systems that each system is significantly better than."""
        better = dict.fromkeys(self.systems, "")
        for first, others in self.pairs.items():
            for second, found in others.items():
                if found.significant:
                    winner, loser = (second, first) if found.difference > 0 else (first, second)
                    better[winner] += self.letters.get(loser, "")
        return {name: "".join(sorted(found, key=ascii_letters.index)) for name, found in better.items()}

    @property
    def _tested(self) -> int:
        """The number of pairs with a p."""
        return sum(found.p is not None for others in self.pairs.values() for found in others.values())

    def score_columns(self, intervals: bool = True) -> Columns:
        """The columns of the table of scores by their headers: names, measures, and the interval of the first one."""
        marks = [self.better[name] for name in self.systems]
        columns: Columns = {"system": [Cell(name, mark=self.letters.get(name, "")) for name in self.systems]}
        for measure in self.measures:
            scores = [means[measure] for means in self.systems.values()]
            columns[measure] = marked(scores, marks if measure == self.measures[0] else ())
            if intervals and measure == self.measures[0] and any(self.intervals.values()):
                columns[INTERVAL] = [interval_text(self.intervals[name]) for name in self.systems]
        return columns

    def differences(self, wins: bool = False) -> Rows:
        """A row per system other than the baseline: the difference, its interval, effect size and both p, and with
        `wins` the numbers of queries that gain, lose and tie."""
        rows: list[list[str | Cell]] = [["system", f"{self.measures[0]} − {self.baseline}", *DIFFERENCE]]
        if wins:
            rows[0].append("wins, losses, ties")
        for name, found in self.comparisons.items():
            effect = NO_P if found.effect is None else f"{found.effect:+.2f}"
            interval, p_values = interval_text(found.interval, "+"), (p_text(found.p), p_text(found.p_randomization))
            rows.append([name, difference_cell(found), interval, effect, *p_values])
            if wins:
                won, lost = wins_and_losses([*self.changes(name).values()])
                rows[-1].append(f"{won:,}, {lost:,}, {self.queries - won - lost:,}")
        return rows

    def changes(self, name: str) -> dict[str, float]:
        """The difference of a system from the baseline for each query, the largest gain first."""
        before, after = (self.per_query[each][self.measures[0]] for each in (self.baseline, name))
        changes = {query: after[query] - value for query, value in before.items()}
        return dict(sorted(changes.items(), key=lambda change: -change[1]))

    def changed_queries(self, topics: Mapping[str, str], most: int) -> Rows:
        """Of two systems: a row for each of the `most` queries with the largest gain, and with the largest loss."""
        (name,) = self.comparisons
        before, after = (self.per_query[each][self.measures[0]] for each in (self.baseline, name))
        changes = [(query, change) for query, change in self.changes(name).items() if abs(change) > TIE]
        gains = [change for change in changes if change[1] > 0][:most]
        losses = [change for change in reversed(changes) if change[1] < 0][:most]
        return [["queries that changed most", self.baseline, name, "difference"]] + [
            [
                f"{query}: {shorten(topics.get(query, ''), TEXT_WIDTH, placeholder='…')}",
                *(f"{values[query]:.4f}" for values in (before, after)),
                f"{change:+.4f}",
            ]
            for query, change in gains + losses
        ]

    def score_notes(self, intervals: bool = True) -> list[str]:
        """What the table of scores shows, besides the best of each column."""
        notes = []
        if self.letters:
            notes.append(
                f"letters: significantly better in {self.measures[0]} than the systems with these letters (two-sided "
                f"paired t-test, p < {ALPHA}{corrected(self._tested, 'pairs')})"
            )
        return [*notes, INTERVALS] if intervals and any(self.intervals.values()) else notes

    def difference_notes(self) -> list[str]:
        """What the table of differences shows."""
        tested = sum(found.p is not None for found in self.comparisons.values())
        notes = [NO_P_MEANS] if tested < len(self.comparisons) else []
        if tested:
            drawn = permutations(self.queries, len(self.systems))
            notes = [
                f"†: significantly different from {self.baseline} (p < {ALPHA})",
                f"p: two-sided paired t-test, and randomization test with {drawn:,} permutations "
                f"(rand.){corrected(tested, 'systems')}",
                "d_z: Cohen's, the mean of the differences divided by their standard deviation",
                INTERVALS,
                *notes,
            ]
        return notes

    def render(self, format: Format = "text", title: str = "") -> str:
        """The table of scores, and that of differences from the baseline; in CSV, all numbers in one table."""
        if format in ("csv", "tsv"):
            return render(self._numbers(), format)
        best = [f"{'*' if format == 'text' else 'bold'}: best of its column"] if len(self.systems) > 1 else []
        tables = [(in_rows(self.score_columns()), [*best, *self.score_notes()])]
        if self.comparisons:
            tables.append((self.differences(wins=format == "text" and bool(self.per_query)), self.difference_notes()))
        beginning = f"{title and f'{title}, '}{self.queries:,} queries"
        texts = ["\n".join(notes) if format == "text" else f"{'; '.join([beginning, *notes])}." for _, notes in tables]
        texts[0] = f"{beginning}\n{texts[0]}".strip() if format == "text" else texts[0]
        return "\n\n".join(render(rows, format, text) for (rows, _), text in zip(tables, texts, strict=True))

    def _numbers(self) -> Rows:
        """A row per system, with the numbers as they are."""
        names = ["difference", "p", "p_randomization", "effect"]
        header = ["system", "queries", *self.measures, "low", "high", "better than", "baseline", *names]
        rows = [[*header, "difference low", "difference high"]]
        for name, means in self.systems.items():
            found = self.comparisons.get(name)
            values: list[object] = [self.queries, *means.values(), *(self.intervals.get(name) or ("", ""))]
            values.append(" ".join(other for other, letter in self.letters.items() if letter in self.better[name]))
            if found:
                values += [self.baseline, *(getattr(found, each) for each in names), *(found.interval or ("", ""))]
            rows.append([name, *("" if value is None else str(value) for value in values)])
            rows[-1] += [""] * (len(rows[0]) - len(rows[-1]))
        return rows

    def to_latex(self, title: str = "") -> str:
        """The tables in LaTeX, for the package booktabs; `title` begins their captions."""
        return self.render("latex", title)

    def __str__(self) -> str:
        return self.render()

    def data(self) -> dict[str, Any]:
        """Everything, for JSON, with the names of results.json."""
        return asdict(self)

    def by_query(self) -> str:
        """The value of each query, as tab-separated lines: query, run, measure, value."""
        rows = [
            [query, name, measure, str(value)]
            for name, by_measure in self.per_query.items()
            for measure, values in by_measure.items()
            for query, value in values.items()
        ]
        return render([["query", "run", "measure", "value"], *rows], "tsv")


def corrected(count: int, what: str) -> str:
    """That p-values are corrected, if there are several, as the end of a sentence."""
    return f", Holm-corrected over {count:,} {what}" if count > 1 else ""


def run_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Names of run files: without folder and extension, where these are not needed to tell them apart. Raises CaiError
    for a file that is given twice."""
    names: dict[Path, str] = {}
    for path in paths:
        if path in names:
            raise CaiError(f"{path} is given twice")
        names[path] = path.stem
    return names if len({*names.values()}) == len(names) else {path: str(path) for path in names}


def interval_text(interval: Interval | None, sign: str = "") -> str:
    return NO_P if interval is None else f"[{interval[0]:{sign}.4f}, {interval[1]:{sign}.4f}]"


def difference_cell(found: Comparison) -> Cell:
    return Cell(f"{found.difference:+.4f}", mark="†" if found.significant else "")
