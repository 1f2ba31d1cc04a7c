"""The settings of GPL; YAML files can set those of single steps."""

from cai_pyserini.core.flags import COLLECTION, DEVICE
from cai_pyserini.core.settings import AnyPath, Settings, flag
from cai_pyserini.trainer.settings import CONFIG


class GplSettings(Settings):
    """Adapt a SPLADE or dense retriever with generated queries and a cross-encoder (GPL).

    If interrupted, run the same command again to continue.
    """

    example = (
        "cai-pyserini train gpl --collection scifact --base splade-tiny --retrievers minilm "
        "--generator BeIR/query-gen-msmarco-t5-base-v1 --cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 "
        "--output models/gpl"
    )
    config: AnyPath | None = CONFIG
    collection: str = COLLECTION
    base: str = flag(help="encoder to adapt, SPLADE or dense")
    generator: str = flag(help="a query generator, such as BeIR/query-gen-msmarco-t5-base-v1")
    cross_encoder: str = flag(help="a cross-encoder, such as cross-encoder/ms-marco-MiniLM-L-6-v2")
    output: AnyPath = flag(help="output folder, the checkpoint; the results of the steps are kept in <output>.steps")
    retrievers: list[str] = flag([], "further encoders, besides the base, that retrieve negatives, such as minilm")
    depth: int = flag(50, "draw negatives from this many best documents of each retriever", ge=1)
    generate: AnyPath | None = flag(None, "YAML file with settings for query generation")
    train: AnyPath | None = flag(None, "YAML file with settings for the training")
    seed: int = flag(42, "random seed", ge=0)
    device: str = DEVICE
