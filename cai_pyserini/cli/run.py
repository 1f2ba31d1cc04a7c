"""`cai-pyserini run`, which ./run_beir.sh calls."""

from typing import TYPE_CHECKING

from cai_pyserini.core.settings import Main
from cai_pyserini.experiments.settings import RunSettings

if TYPE_CHECKING:
    from cai_pyserini.experiments.grid import Grid


def _run(settings: RunSettings) -> None:
    from cai_pyserini.experiments import report
    from cai_pyserini.experiments.grid import Grid
    from cai_pyserini.experiments.summary import Run, Summary, verify

    grid = Grid(settings)
    several = len(grid.cells) > 1
    if several or grid.trainings or settings.dry_run:
        grid.require()
    if settings.dry_run:
        _print_plan(grid)
        return
    grid.train()
    runs = []
    for cell in grid.cells:
        with cell.named():
            prepared = cell.prepare()  # again, so that no encoder of an earlier run is kept
            if cell.name:
                print(f"{cell.name}:", flush=True)
            results, run = prepared.execute(), prepared.run
        runs.append(Run.of(run.root, results, cell.variant.encoder, cell.variant.seed))
        print(report.table(results))
        print(f"\n{run.root / run.report.name}")
        if not results.scored:
            print(f"\n{report.searches(results, run.root)}")
        if several:
            print(flush=True)
    if several:
        summary = Summary(runs)
        print(f"{summary.text}\n\n{summary.write(grid.root)}")
    if settings.verify:
        print(verify([(run.results, cell.config) for run, cell in zip(runs, grid.cells, strict=True)]))


def _print_plan(grid: "Grid") -> None:
    from cai_pyserini.core import steps
    from cai_pyserini.experiments.estimate import describe, estimate
    from cai_pyserini.experiments.plan import plan

    changed = {step.output: step.name for step in steps.print_plan(grid.trainings)}
    for cell in grid.cells:
        if cell.name:
            print(f"{cell.name}:", flush=True)
        if first := next((changed[each.output] for each in cell.variant.trained if each.output in changed), None):
            print(f"{'all steps':<52} must run: after {first}")
            continue
        must_run = steps.print_plan(plan(*cell.prepare()))
        for line in describe(must_run, estimate(must_run)):
            print(line)


main = Main(RunSettings, "run", _run)
