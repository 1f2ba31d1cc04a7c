from cai_pyserini.core import terminal
from cai_pyserini.core.flags import COLLECTION, DEVICE, OUTPUT_RUN, SPLIT
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse
from cai_pyserini.runs.fusions import DEFAULT, DEPTH, FUSIONS


class Fuse(Settings):
    """Fuse TREC runs from this package or any other tool."""

    example = "cai-pyserini fuse --runs bm25.trec splade-idf.trec --method minmax --output hybrid.trec"
    runs: list[AnyPath] = flag(help="two or more TREC runs", min_length=2)
    output: AnyPath = OUTPUT_RUN
    method: str = flag(DEFAULT, "; ".join(f"{n}: {f.description}" for n, f in FUSIONS.items()), choices=tuple(FUSIONS))
    depth: int = flag(DEPTH, "fuse this many best documents per query of each run", ge=1)
    hits: int = flag(1000, "documents per query in the output", ge=1)
    weights: list[float] | None = flag(
        None, "one positive weight per run, in the order of --runs (default: all 1); not with product"
    )


class Rerank(Settings):
    """Rerank the best documents of a run with a cross-encoder."""

    example = (
        "cai-pyserini rerank --collection scifact --run bm25.trec "
        "--cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --output reranked.trec"
    )
    collection: str = COLLECTION
    run: AnyPath = flag(help="TREC run to rerank")
    cross_encoder: str = flag(
        help="a checkpoint folder or a Hugging Face model id, such as cross-encoder/ms-marco-MiniLM-L-6-v2"
    )
    output: AnyPath = OUTPUT_RUN
    split: str | None = SPLIT
    depth: int = flag(DEPTH, "rerank this many best documents per query", ge=1)
    minutes: float | None = flag(
        None, "time limit: measures the speed of this machine, then lowers the depth to fit", gt=0
    )
    device: str = DEVICE


def main(argv: Argv = None) -> None:
    kinds: dict[str, type[Settings]] = {"fuse": Fuse, "rerank": Rerank}
    settings: Fuse | Rerank = parse(kinds, argv, "python -m cai_pyserini.fusion", "Combine runs, or rerank one.")

    from cai_pyserini.core import artifact

    if isinstance(settings, Fuse):
        from cai_pyserini.runs.fuse import fuse, require_fusable

        require_fusable(settings.runs)
        fuse(settings.runs, settings.output, settings.method, settings.depth, settings.hits, weights=settings.weights)
    else:
        from cai_pyserini.collections.readers import open_collection
        from cai_pyserini.core.config import load_index_config
        from cai_pyserini.models.checkpoint import load_checkpoint
        from cai_pyserini.runs.rerank import rerank

        config = load_index_config(settings.collection)
        collection = open_collection(config)
        checkpoint = load_checkpoint(settings.cross_encoder)
        topics = collection.topics(settings.split or config.split)
        options = settings.model_dump(include={"depth", "device", "minutes"})
        rerank(settings.run, topics, collection, checkpoint, settings.output, **options)
    manifest = artifact.read_manifest(settings.output)
    print(f"{settings.output}: {manifest.stats['queries'] if manifest else 0:,} queries")
    for line in manifest.stats.get("decision", ()) if manifest else ():
        print(line)


if __name__ == "__main__":
    terminal.run(main)
