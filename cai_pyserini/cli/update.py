from typing import Self

from pydantic import model_validator

from cai_pyserini.core.flags import BATCH_SIZE, DEVICE, THREADS
from cai_pyserini.core.settings import AnyPath, Command, Main, flag


class Update(Command):
    """Update a run after its collection has changed.

    Only new texts are encoded. IDF, impacts and indexes are rebuilt as a new version of the run, which replaces the old
    one in a single step; until then, a search service continues to use the old one. Adapted encoders, the chosen
    weights of BM25 + SPLADE + dense, and your own files in the folder are kept.
    If interrupted, run the same command again to continue.
    """

    example = "cai-pyserini update runs/hpo/splade-tiny --reload http://127.0.0.1:8000"
    run: AnyPath = flag(help="run folder, written by `cai-pyserini run`", positional=True)
    evaluate: bool = flag(
        False, "finally, search for the collection's queries and evaluate (default: update indexes only)"
    )
    reload: str | None = flag(
        None,
        "address of a service that serves the run and is to reopen it; CAI_PYSERINI_API_KEY has its key, if any",
        pattern="https?://.",
    )
    keep: int = flag(1, "earlier runs to keep, in RUN/versions", ge=0)
    clean: bool = flag(False, "only remove earlier runs and leftovers of an interrupted update")
    dry_run: bool = flag(False, "only print what has changed, and whether each step must run")
    device: str = DEVICE
    batch_size: int | None = BATCH_SIZE
    threads: int = THREADS

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.clean and (others := self.model_fields_set - {"run", "clean"}):
            raise ValueError(f"--clean only removes: leave out --{min(others).replace('_', '-')}")
        return self

    def execute(self) -> None:
        from cai_pyserini.experiments.update import evaluate, reload, update
        from cai_pyserini.experiments.versions import clean

        if self.clean:
            for folder in clean(self.run):
                print(f"removed {folder}")
            return
        runtime = self.model_dump(include={"device", "batch_size", "threads"})
        for line in update(self.run, self.keep, self.dry_run, **runtime):
            print(line, flush=True)
        if self.dry_run:
            return
        if self.reload:
            print(reload(self.reload), flush=True)
        if self.evaluate:
            print(evaluate(self.run, **runtime))


main = Main(Update, "update")
