"""`cai-pyserini rerank`."""

from cai_pyserini.core.flags import COLLECTION, DEVICE, OUTPUT_RUN, SPLIT
from cai_pyserini.core.settings import AnyPath, Command, InputFile, Main, flag
from cai_pyserini.runs.fusions import DEPTH


class Rerank(Command):
    """Rerank the best documents of a run with a cross-encoder."""

    example = (
        "cai-pyserini rerank --collection scifact --trec bm25.trec "
        "--cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --output reranked.trec"
    )
    collection: str = COLLECTION
    trec: InputFile = flag(help="TREC run to rerank; -: standard input")
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

    def execute(self) -> None:
        from cai_pyserini.collections.readers import open_collection
        from cai_pyserini.core.artifact import require
        from cai_pyserini.core.config import load_index_config
        from cai_pyserini.models.checkpoint import load_checkpoint
        from cai_pyserini.runs.rerank import rerank

        config = load_index_config(self.collection)
        collection = open_collection(config)
        rerank(
            self.trec,
            collection.topics(self.split or config.split),
            collection,
            load_checkpoint(self.cross_encoder),
            self.output,
            depth=self.depth,
            device=self.device,
            minutes=self.minutes,
        )
        stats = require(self.output, "fusion rerank").stats
        print("\n".join([f"{self.output}: {stats['queries']:,} queries", *stats.get("decision", ())]))


main = Main(Rerank, "rerank")
