"""The evaluations of a finished run, by query, and comparisons of its systems."""

import json
from collections.abc import Sequence

from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.experiment import BASELINE
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import Evaluation, ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.runs.compared import Compared
from cai_pyserini.runs.measures import PerQuery, measure_runs
from cai_pyserini.runs.significance import Values


def values_by_query(run: RunFolder) -> Values:
    """The measure that systems are compared by, by system and query: of the evaluations that are up to date."""
    return {name: by_measure[run.results.measure] for name, by_measure in _evaluations(run).items()}


def _evaluations(run: RunFolder) -> dict[str, PerQuery]:
    """The evaluations of a run that are up to date, by system, in the order of its results."""
    paths = {name: Evaluation(parse_system(name), run).output for name in run.results.systems}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if run.has(path)}


def compared(run: RunFolder, systems: Sequence[str] = (), measures: Sequence[str] = ()) -> Compared:
    """Compare systems of a finished run, by default all, with each other and with the baseline. Other `measures` than
    the run's are measured now. Raises CaiError if a system is not evaluated."""
    evaluated = _evaluations(run)
    names = [parse_system(name).name for name in systems] or [*evaluated]
    if not evaluated:
        raise CaiError(
            f"{run.root} has no evaluations: `cai-pyserini run` makes them where there are queries with qrels"
        )
    if missing := next((name for name in names if name not in evaluated), None):
        raise CaiError(f"{run.root} has no evaluation of {missing} that is up to date; it has {', '.join(evaluated)}")
    per_query = {name: evaluated[name] for name in names}
    if measures and [*measures] != run.results.measures:
        paths = {name: ranking_of(parse_system(name), run).output for name in names}
        measured = measure_runs(run.collection, run.split, [*paths.values()], measures)
        per_query = {name: measured[path] for name, path in paths.items()}
    return Compared.of(per_query, BASELINE if BASELINE in names else names[0])
