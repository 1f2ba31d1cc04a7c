"""`cai-pyserini rerank`."""

from cai_pyserini.core.flags import COLLECTION, DEVICE, OUTPUT_RUN, SPLIT
from cai_pyserini.core.settings import AnyPath, Argv, Settings, flag, parse
from cai_pyserini.runs.fusions import DEPTH


class RerankSettings(Settings):
    """Rerank the best documents of a run with a cross-encoder."""

    example = (
        "cai-pyserini rerank --collection scifact --trec bm25.trec "
        "--cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --output reranked.trec"
    )
    collection: str = COLLECTION
    trec: AnyPath = flag(help="TREC run to rerank")
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
    settings = parse(RerankSettings, argv, "cai-pyserini rerank")

    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core.artifact import require
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.models.checkpoint import load_checkpoint
    from cai_pyserini.runs.rerank import rerank

    config = load_index_config(settings.collection)
    collection = open_collection(config)
    rerank(
        settings.trec,
        collection.topics(settings.split or config.split),
        collection,
        load_checkpoint(settings.cross_encoder),
        settings.output,
        depth=settings.depth,
        device=settings.device,
        minutes=settings.minutes,
    )
    stats = require(settings.output, "fusion rerank").stats
    print("\n".join([f"{settings.output}: {stats['queries']:,} queries", *stats.get("decision", ())]))
