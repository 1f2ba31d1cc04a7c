"""`cai-pyserini run`, which ./run_beir.sh calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import Main
from cai_pyserini.experiments.settings import RunSettings


def _run(settings: RunSettings) -> None:
    from cai_pyserini.core import files, steps
    from cai_pyserini.experiments import report, summary
    from cai_pyserini.experiments.estimate import describe, estimate
    from cai_pyserini.experiments.experiment import Results
    from cai_pyserini.experiments.plan import plan, require
    from cai_pyserini.experiments.prepare import Preparation

    preparation = Preparation(settings)
    configs = preparation.configs
    several = len(configs) > 1
    if several or settings.dry_run:
        for argument in configs:
            prepared = preparation.prepare(argument)
            with _naming(configs[argument].name, several):
                require(*prepared)
    found: dict[Path, Results] = {}
    for argument, config in configs.items():
        prepared = preparation.prepare(argument)  # again, so that no encoder of an earlier collection is kept
        run = prepared.run
        if several:
            print(f"{config.name}:", flush=True)
        with _naming(config.name, several):
            if settings.dry_run:
                must_run = steps.print_plan(plan(*prepared))
                for line in describe(must_run, estimate(must_run)):
                    print(line)
                continue
            found[run.root / run.report.name] = results = prepared.execute()
        print(report.table(results))
        print(f"\n{run.root / run.report.name}")
        if not results.scored:
            print(f"\n{report.searches(results, run.root)}")
        if several:
            print(flush=True)
    if settings.dry_run:
        return
    all_results = [*found.values()]
    if several:
        path = (settings.output or Path("runs")) / f"summary-{preparation.encoder.name}.md"
        files.write_text(path, summary.markdown(preparation.systems, found, path.parent))
        print(f"{summary.table(preparation.systems, all_results)}\n\n{path}")
    if settings.verify:
        print(summary.verify([*zip(all_results, configs.values(), strict=True)]))


@contextmanager
def _naming(collection: str, several: bool) -> Iterator[None]:
    """Let errors begin with the name of the collection, if there are several."""
    try:
        yield
    except CaiError as error:
        if not several:
            raise
        raise CaiError(f"{collection}: {error}") from error


main = Main(RunSettings, "run", _run)
