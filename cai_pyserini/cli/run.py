import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cai_pyserini.core import flags, terminal
from cai_pyserini.core.config import EncoderConfig, IndexConfig, load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse
from cai_pyserini.experiments.systems import NAMES, System, all_systems, default_systems, parse_system, with_parts
from cai_pyserini.runs.fusions import DEPTH

if TYPE_CHECKING:
    from cai_pyserini.experiments.run_folder import RunFolder


class BeirSettings(Settings):
    """From a collection to a table of scores: encode, weight with IDF, quantize, index, search, fuse, evaluate.

    Without qrels, nothing is evaluated; without queries, only indexes are built. docs/how-to/collections.md lists the
    file formats. If interrupted, run the same command again to continue. If you change a setting, only the affected
    steps run again.

    Several collections run one after the other with the same settings, each in its own run folder. The final table
    compares the systems on all of them and is also written to runs/summary-<encoder>.md, or with --output to
    <output>/summary-<encoder>.md. An error stops the command; collections that are finished keep their results.
    """

    example = "./run_beir.sh scifact --encoder splade-v3 --verify\n  ./run_beir.sh hpo scifact --dense minilm"
    collections: list[str] = flag(["hpo"], f"{flags.COLLECTION_TEXT}; one or more", positional=True)
    encoder: str = flag(
        "splade-tiny", "a name in encoders/, a YAML file, a checkpoint folder, or a Hugging Face model id"
    )
    output: AnyPath | None = flag(
        None,
        "run folder for all files; with several collections, their run folders are <output>/<collection> "
        "(default: runs/<collection>/<encoder>)",
    )
    split: str | None = flags.SPLIT
    strict: bool | None = flags.STRICT
    systems: list[str] = flag(
        [],
        f"{NAMES}; all: the usual ones of every kind (default: bm25, the SPLADE systems, those with IDF also joint and "
        "in hybrids; with --dense, also smooth, dense, and BM25 + SPLADE + dense; with --adapt, also adapted ones)",
    )
    passages: int | None = flag(
        None,
        "search passages of this many words, and rank a document by its best passage (default: no passages)",
        ge=1,
    )
    depth: int = flag(DEPTH, "fuse or rerank this many best documents per query of each run", ge=1)
    alpha: float | None = flag(
        None,
        "weight of BM25 in joint systems (default: estimated from the documents, so that BM25 and SPLADE have the same "
        "spread of scores)",
        gt=0,
    )
    weights: list[float] = flag(
        [],
        "weights of a hybrid's parts, bm25 first; used for hybrids with as many parts (default: equal, but chosen from "
        "the documents for z-scores of BM25, SPLADE and dense)",
    )
    dense: str | None = flag(None, "for dense and smooth systems: an encoder, such as minilm")
    dense_index: flags.DenseMethod = flags.DENSE_METHOD
    cross_encoder: str | None = flag(
        None, "for the system cross-encoder: a checkpoint folder or a Hugging Face model id"
    )
    rerank_minutes: float | None = flag(
        None, "time limit for the system cross-encoder: measures its speed, then lowers the depth to fit", gt=0
    )
    generated: str | None = flag(None, "for the system doct5query: folder written by `trainer generate`")
    adapt: bool = flag(
        False,
        "for adapted systems: first adapt SPLADE to the collection, with the encoder of --dense as a teacher, which is "
        "adapted too",
    )
    seed: int = flag(42, "random seed of the adaptation", ge=0)
    remove_query: Literal["auto", "always", "never"] | None = flags.REMOVE_QUERY
    device: str = flags.DEVICE
    precision: Literal["auto", "float32", "bfloat16", "int8"] = flags.DOCUMENT_PRECISION
    batch_size: int | None = flags.BATCH_SIZE
    threads: int = flags.THREADS
    no_raw: bool = flags.NO_RAW
    dry_run: bool = flag(False, "only print each step and whether it is up to date, or why it must run")
    verify: bool = flag(False, "fail if nDCG@10 differs from what the YAML file in index_configs/ expects")


def main(argv: Argv = None) -> None:
    settings = parse(BeirSettings, argv, "run_beir.sh")

    from cai_pyserini.core import files, steps
    from cai_pyserini.experiments import report, summary
    from cai_pyserini.experiments.execute import execute
    from cai_pyserini.experiments.experiment import Experiment
    from cai_pyserini.experiments.plan import plan, require
    from cai_pyserini.experiments.run_folder import Results, RunFolder
    from cai_pyserini.models.folder import with_folder_settings
    from cai_pyserini.trainer.adapt_settings import AdaptSettings

    configs, encoder = _configs(settings), load_encoder(settings.encoder)
    named = [parse_system(name) for name in settings.systems if name != "all"]
    if not named or "all" in settings.systems or any(system.kind == "splade" for system in with_parts(named)):
        encoder = with_folder_settings(encoder)  # other systems need no checkpoint
    dense = with_folder_settings(load_encoder(settings.dense).replace(kind="dense")) if settings.dense else None
    systems = _systems(settings, encoder, dense)
    several = len(configs) > 1
    shared = Experiment.model_fields.keys() & BeirSettings.model_fields.keys() - {"encoder", "dense"}

    def prepare(argument: str, config: IndexConfig) -> tuple[RunFolder, AdaptSettings | None]:
        """The run folder of a collection, and its adaptation settings, if any."""
        experiment = Experiment(
            collection=config,
            encoder=encoder,
            dense=dense,
            raw=not settings.no_raw,
            **settings.model_dump(include={*shared}),
        )
        folder = settings.output or Path("runs") / config.name / encoder.name
        run = RunFolder(folder / config.name if settings.output and several else folder, experiment)
        if settings.output is None:
            _require_same_encoder(RunFolder(run.root), encoder)
        if not settings.adapt:
            return run, None
        fusion: dict[str, Any] = {"weights": experiment.three_way_weights, "depth": settings.depth} if dense else {}
        return run, AdaptSettings(
            collection=argument,
            base=settings.encoder,
            dense=settings.dense,
            output=run.adapted,
            vectors=run.vectors,
            **settings.model_dump(include={"alpha", "seed", "device", "precision"}),
            **fusion,
        )

    if several or settings.dry_run:
        for argument, config in configs.items():
            run, adaptation = prepare(argument, config)
            with _name_in_errors(config, several):
                require(run, systems, adaptation)
    by_report: dict[Path, Results] = {}
    for argument, config in configs.items():
        run, adaptation = prepare(argument, config)  # again, to free the encoders of earlier collections
        if several:
            print(f"{config.name}:", flush=True)
        with _name_in_errors(config, several):
            if settings.dry_run:
                steps.print_plan(plan(run, systems, adaptation))
                continue
            by_report[run.root / run.report.name] = results = execute(run, systems, adaptation)
        print(report.table(results))
        print(f"\n{run.root / run.report.name}")
        if not results.scored:
            print(f"\n{report.searches(results, run.root)}")
        if several:
            print(flush=True)
    if settings.dry_run:
        return
    all_results = [*by_report.values()]
    if several:
        path = (settings.output or Path("runs")) / f"summary-{encoder.name}.md"
        files.write_text(path, summary.markdown(systems, by_report, path.parent))
        print(f"{summary.table(systems, all_results)}\n\n{path}")
    if settings.verify:
        pairs = zip(all_results, configs.values(), strict=True)
        print(summary.verify(pairs) if several else report.verify(*next(pairs)))


def _require_same_encoder(run: "RunFolder", encoder: EncoderConfig) -> None:
    """Raise CaiError if the default run folder was made with another checkpoint folder of the same name."""
    try:
        previous = Path(run.experiment.encoder.checkpoint)
    except CaiError:  # no run, or one of another version
        return
    current = Path(encoder.checkpoint)
    if previous.exists() and current.exists() and not previous.samefile(current):
        raise CaiError(f"{run.root} has the run of {previous}: choose an --output for {current}, or delete that run")


def _configs(settings: BeirSettings) -> dict[str, IndexConfig]:
    """Index configs by argument. Raises CaiError for two of the same name, which would share a run folder."""
    changes = settings.model_dump(include={"split", "strict", "remove_query", "passages"}, exclude_none=True)
    by_name: dict[str, tuple[str, IndexConfig]] = {}
    for argument in settings.collections:
        config = load_index_config(argument).replace(**changes)
        if config.name in by_name:
            raise CaiError(
                f"{by_name[config.name][0]} and {argument} are both named {config.name}: leave one out, or give it "
                "another `name` in a YAML file"
            )
        by_name[config.name] = argument, config
    if settings.generated and len(by_name) > 1:
        raise CaiError("--generated has the queries of one collection: run each collection separately")
    return dict(by_name.values())


def _systems(settings: BeirSettings, encoder: EncoderConfig, dense: EncoderConfig | None) -> list[System]:
    """The systems that --systems names, or the default ones."""
    from cai_pyserini.experiments.experiment import REQUIRES
    from cai_pyserini.models.encoder import Encoder

    missing = {kind: setting for kind, setting in REQUIRES.items() if getattr(settings, setting) is None}
    kinds = REQUIRES.keys() - missing
    names = settings.systems or default_systems(encoder, kinds, settings.adapt)
    if "all" in names:
        if dense and Encoder(dense).is_mean:
            kinds |= {"dense-idf"}
        every = all_systems(encoder, kinds, settings.adapt)
        names = [*every, *(name for name in names if name not in {"all", *every})]
        for kind, setting in missing.items():
            print(f"without {kind}: it needs --{setting.replace('_', '-')}", file=sys.stderr)
    return [parse_system(name) for name in dict.fromkeys(names)]


@contextmanager
def _name_in_errors(config: IndexConfig, several: bool) -> Iterator[None]:
    """Prefix errors with the collection's name if there are several collections."""
    try:
        yield
    except CaiError as error:
        if not several:
            raise
        raise CaiError(f"{config.name}: {error}") from error


if __name__ == "__main__":
    terminal.run(main)
