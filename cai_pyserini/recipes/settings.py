"""The settings of the recipes. Those of their steps are in YAML files of their own."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from cai_pyserini.core.flags import COLLECTION
from cai_pyserini.core.settings import AnyPath, Settings, flag
from cai_pyserini.trainer.settings import CONFIG

DEVICE = flag("auto", "auto: all GPUs, if there are any")
CROSS_ENCODER = "a cross-encoder, such as cross-encoder/ms-marco-MiniLM-L-6-v2"
GENERATOR = "a query generator, such as BeIR/query-gen-msmarco-t5-base-v1"
OUTPUT = flag(help="checkpoint folder to write; the steps are kept in <output>.steps")


class AdaptSettings(Settings):
    """Adapt SPLADE to a collection with nothing but its documents.

    Interrupted, the same command continues; finished steps are kept in <output>.steps.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.recipes adapt --collection hpo --base splade-tiny --output models/hpo"
    )
    config: AnyPath | None = CONFIG
    collection: str = COLLECTION
    base: str = flag(help="a SPLADE encoder; with --data, any masked language model")
    output: AnyPath = OUTPUT
    data: AnyPath | None = flag(None, "training file of MS MARCO (trainer msmarco): the paper's recipe")
    dense: str | None = flag(None, "teacher: a dense encoder, such as minilm")
    cross_encoder: str | None = flag(None, f"teacher: {CROSS_ENCODER}")
    generator: str | None = flag(None, f"writes the queries: {GENERATOR}")
    queries: int = flag(5000, "pseudo queries, at most", ge=1)
    weight: float | None = flag(
        None, "share of the new weights in the mean of old and new (default: 0.6, with a teacher 0.8)", gt=0, le=1
    )
    vocabulary: AnyPath | None = flag(None, "expand the vocabulary, with the settings of this YAML file")
    pretrain: AnyPath | None = flag(None, "pretrain on the collection, with the settings of this YAML file")
    generate: AnyPath | None = flag(None, "YAML settings of query generation")
    splade: AnyPath | None = flag(None, "YAML settings of SPLADE training")
    distil: AnyPath | None = flag(None, "YAML settings of the training with a teacher")
    seed: int = flag(42, "of all random draws", ge=0)
    device: Literal["auto", "cpu"] = DEVICE

    @model_validator(mode="after")
    def _check(self) -> Self:
        teacher = self.dense or self.cross_encoder
        if self.dense and self.cross_encoder:
            raise ValueError("--dense and --cross-encoder are both teachers: choose one")
        if self.data:
            for name in ("dense", "cross_encoder", "generator", "weight"):
                if getattr(self, name):
                    raise ValueError(f"--data is the paper's recipe, which has no --{name.replace('_', '-')}")
        if self.distil and not teacher:
            raise ValueError("--distil needs a teacher: --dense or --cross-encoder")
        if self.generate and not self.generator:
            raise ValueError("--generate needs --generator")
        return self


class GplSettings(Settings):
    """Adapt a SPLADE or dense retriever with generated queries and a cross-encoder (GPL).

    Interrupted, the same command continues; finished steps are kept in <output>.steps.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.recipes gpl --collection scifact --base splade-tiny --retrievers minilm "
        "--generator BeIR/query-gen-msmarco-t5-base-v1 --cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 "
        "--output models/gpl"
    )
    config: AnyPath | None = CONFIG
    collection: str = COLLECTION
    base: str = flag(help="the encoder to adapt, SPLADE or dense")
    generator: str = flag(help=GENERATOR)
    cross_encoder: str = flag(help=CROSS_ENCODER)
    output: AnyPath = OUTPUT
    retrievers: list[str] = flag([], "encoders that find negatives, besides the base, such as minilm")
    depth: int = flag(50, "negatives are drawn from this many best documents of each retriever", ge=1)
    generate: AnyPath | None = flag(None, "YAML settings of query generation")
    train: AnyPath | None = flag(None, "YAML settings of training")
    seed: int = flag(42, "of all random draws", ge=0)
    device: Literal["auto", "cpu"] = DEVICE
