from typing import Self

from pydantic import model_validator

from cai_pyserini.core import terminal
from cai_pyserini.core.flags import BATCH_SIZE, DEVICE, THREADS
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse


class UpdateSettings(Settings):
    """Update a run to its collection as it is now.

    Only new texts are encoded. IDF, impacts and indexes are made again as a new version of the run, while a search
    service goes on using the old one, and take its place in one step. Your own files in the folder stay. Adapted
    encoders stay, and so do the chosen weights of BM25 + SPLADE + dense.
    If interrupted, run the same command again to continue.
    """

    example = "cai-pyserini update runs/hpo/splade-tiny --reload http://127.0.0.1:8000"
    run: AnyPath = flag(help="run folder, written by run_beir.sh", positional=True)
    evaluate: bool = flag(
        False, "search for the collection's queries and evaluate, when all else is done (default: indexes only)"
    )
    reload: str | None = flag(
        None,
        "address of a service that serves the run, and reopens it then; a key comes from CAI_PYSERINI_API_KEY",
        pattern="https?://.",
    )
    judgments: AnyPath | None = flag(
        None, "database of `judge serve`: say how many queries it has to train on, and propose it when they are enough"
    )
    keep: int = flag(1, "earlier runs to keep, in RUN/versions", ge=0)
    clean: bool = flag(False, "only remove earlier runs, and what an interrupted update has left")
    dry_run: bool = flag(False, "only print what has changed, and of each step whether it must run")
    device: str = DEVICE
    batch_size: int | None = BATCH_SIZE
    threads: int = THREADS

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.clean and (others := self.model_fields_set - {"run", "clean"}):
            raise ValueError(f"--clean only removes: leave out --{min(others).replace('_', '-')}")
        return self


def main(argv: Argv = None) -> None:
    settings = parse(UpdateSettings, argv, "python -m cai_pyserini.update")

    from cai_pyserini.beir.versions import clean
    from cai_pyserini.judge.judgments import Judgments
    from cai_pyserini.update.update import evaluate, proposal, reload, update

    if settings.clean:
        for folder in clean(settings.run):
            print(f"removed {folder}")
        return
    if settings.judgments:
        Judgments(settings.judgments)  # or an error before the work
    of_call = settings.model_dump(include={"device", "batch_size", "threads"})
    for line in update(settings.run, settings.keep, settings.dry_run, **of_call):
        print(line, flush=True)
    if settings.judgments:
        print(proposal(settings.run, settings.judgments), flush=True)
    if settings.dry_run:
        return
    if settings.reload:
        print(reload(settings.reload), flush=True)
    if settings.evaluate:
        print(evaluate(settings.run, **of_call))


if __name__ == "__main__":
    terminal.run(main)
