import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cai_pyserini.beir.systems import NAMES, System, all_systems, default_systems, parse_system, with_parts
from cai_pyserini.core import flags, terminal
from cai_pyserini.core.config import EncoderConfig, IndexConfig, load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse
from cai_pyserini.fusion.fusions import DEPTH

if TYPE_CHECKING:
    from cai_pyserini.beir.run_folder import RunFolder


class BeirSettings(Settings):
    """From a collection to a table of scores: encode, weight with IDF, quantize, index, search, fuse, evaluate.

    Without qrels, nothing is evaluated; without queries, indexes are built. docs/how-to/collections.md says which files
    are read. If interrupted, run the same command again to continue. Change a setting, and only the affected steps run
    again.

    Several collections are run one after the other, with the same settings, each in a run folder of its own. A table
    of the systems over all of them comes at the end, and is written to runs/summary-<encoder>.md, or with --output to
    <output>/summary-<encoder>.md. An error in one collection ends the run; those before it are done.
    """

    example = "./run_beir.sh scifact --encoder splade-v3 --verify\n  ./run_beir.sh hpo scifact --dense minilm"
    collections: list[str] = flag(["hpo"], f"{flags.COLLECTION_TEXT}; one or more", positional=True)
    encoder: str = flag(
        "splade-tiny", "a name in encoders/, a YAML file, a checkpoint folder, or a Hugging Face model id"
    )
    output: AnyPath | None = flag(
        None,
        "run folder, which gets all files; of several collections, the folder of their run folders, "
        "<output>/<collection> (default: runs/<collection>/<encoder>)",
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
        "weights of a hybrid's parts, bm25 first; used for hybrids with as many parts (default: equal, except that the "
        "documents decide for z-scores of BM25, SPLADE and dense)",
    )
    dense: str | None = flag(None, "for dense and smooth systems: an encoder, such as minilm")
    dense_index: flags.DenseMethod = flags.DENSE_METHOD
    cross_encoder: str | None = flag(
        None, "for the system cross-encoder: a checkpoint folder or a Hugging Face model id"
    )
    rerank_minutes: float | None = flag(
        None, "lower the depth of the system cross-encoder to what takes no longer than this, as measured first", gt=0
    )
    generated: str | None = flag(None, "for the system doct5query: folder written by `trainer generate`")
    adapt: bool = flag(
        False,
        "for adapted systems: first adapt SPLADE to the collection; the encoder of --dense is its teacher, and is "
        "adapted too",
    )
    seed: int = flag(42, "random seed of the adaptation", ge=0)
    remove_query: Literal["auto", "always", "never"] | None = flags.REMOVE_QUERY
    device: str = flags.DEVICE
    precision: Literal["auto", "float32", "bfloat16", "int8"] = flags.DOCUMENT_PRECISION
    batch_size: int | None = flags.BATCH_SIZE
    threads: int = flags.THREADS
    no_raw: bool = flags.NO_RAW
    dry_run: bool = flag(False, "only print the steps, and of each whether it is up to date, or why it must run")
    verify: bool = flag(False, "fail if nDCG@10 differs from what the YAML file in index_configs/ expects")


def main(argv: Argv = None) -> None:
    settings = parse(BeirSettings, argv, "run_beir.sh")

    from cai_pyserini.adapt.settings import AdaptSettings
    from cai_pyserini.beir import report, summary
    from cai_pyserini.beir.execute import execute
    from cai_pyserini.beir.experiment import Experiment
    from cai_pyserini.beir.plan import plan, require
    from cai_pyserini.beir.run_folder import Results, RunFolder
    from cai_pyserini.core import files, steps
    from cai_pyserini.models.folder import described

    configs, encoder = _configs(settings), load_encoder(settings.encoder)
    given = [parse_system(name) for name in settings.systems if name != "all"]
    if not given or "all" in settings.systems or any(system.kind == "splade" for system in with_parts(given)):
        encoder = described(encoder)  # others need no checkpoint
    dense = described(load_encoder(settings.dense).replace(kind="dense")) if settings.dense else None
    systems = _systems(settings, encoder, dense)
    several = len(configs) > 1
    shared = Experiment.model_fields.keys() & BeirSettings.model_fields.keys() - {"encoder", "dense"}

    def prepared(argument: str, config: IndexConfig) -> tuple[RunFolder, AdaptSettings | None]:
        """The run folder of a collection, and how its encoders are adapted."""
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
        fusion: dict[str, Any] = {"weights": experiment.given_weights, "depth": settings.depth} if dense else {}
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
            run, adaptation = prepared(argument, config)
            with _naming(config, several):
                require(run, systems, adaptation)
    found: dict[Path, Results] = {}
    for argument, config in configs.items():
        run, adaptation = prepared(argument, config)  # again, so that no encoder of an earlier collection is kept
        if several:
            print(f"{config.name}:", flush=True)
        with _naming(config, several):
            if settings.dry_run:
                steps.print_plan(plan(run, systems, adaptation))
                continue
            found[run.root / run.report.name] = results = execute(run, systems, adaptation)
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
        path = (settings.output or Path("runs")) / f"summary-{encoder.name}.md"
        files.write_text(path, summary.markdown(systems, found, path.parent))
        print(f"{summary.table(systems, all_results)}\n\n{path}")
    if settings.verify:
        pairs = zip(all_results, configs.values(), strict=True)
        print(summary.verify(pairs) if several else report.verify(*next(pairs)))


def _require_same_encoder(run: "RunFolder", encoder: EncoderConfig) -> None:
    """Raise CaiError if the default folder has the run of another checkpoint, whose folder only has the same name."""
    try:
        before = Path(run.experiment.encoder.checkpoint)
    except CaiError:  # no run, or one of another version
        return
    own = Path(encoder.checkpoint)
    if before.exists() and own.exists() and not before.samefile(own):
        raise CaiError(f"{run.root} has the run of {before}: choose an --output for {own}, or delete that run")


def _configs(settings: BeirSettings) -> dict[str, IndexConfig]:
    """The collections by their arguments. Raises CaiError for two of the same name, which would share a run folder."""
    changes = settings.model_dump(include={"split", "strict", "remove_query", "passages"}, exclude_none=True)
    found: dict[str, tuple[str, IndexConfig]] = {}
    for argument in settings.collections:
        config = load_index_config(argument).replace(**changes)
        if config.name in found:
            raise CaiError(
                f"{found[config.name][0]} and {argument} are both named {config.name}: leave one out, or write a YAML "
                "file of it with another `name`"
            )
        found[config.name] = argument, config
    if settings.generated and len(found) > 1:
        raise CaiError("--generated has the queries of one collection: run each collection by itself")
    return dict(found.values())


def _systems(settings: BeirSettings, encoder: EncoderConfig, dense: EncoderConfig | None) -> list[System]:
    """The systems of --systems, or the default ones."""
    from cai_pyserini.beir.experiment import REQUIRES
    from cai_pyserini.encode.encoder import Encoder

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
def _naming(config: IndexConfig, several: bool) -> Iterator[None]:
    """Let errors begin with the name of the collection, if there are several."""
    try:
        yield
    except CaiError as error:
        if not several:
            raise
        raise CaiError(f"{config.name}: {error}") from error


if __name__ == "__main__":
    terminal.run(main)
