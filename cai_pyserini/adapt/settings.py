"""The settings of an adaptation; those of single steps can be given in YAML files."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from cai_pyserini.core.flags import COLLECTION
from cai_pyserini.core.settings import AnyPath, Settings, flag
from cai_pyserini.trainer.settings import CONFIG, ONE_GPU

CROSS_ENCODER = "a cross-encoder, such as cross-encoder/ms-marco-MiniLM-L-6-v2"
GENERATOR = "a query generator, such as BeIR/query-gen-msmarco-t5-base-v1"
OUTPUT = flag(help="output folder, the checkpoint; the results of the steps are kept in <output>.steps")


class AdaptSettings(Settings):
    """Adapt SPLADE to a collection, from nothing but its documents.

    If interrupted, run the same command again to continue. docs/how-to/adapt.md explains the steps.
    """

    example: ClassVar[str] = "python -m cai_pyserini.adapt --collection hpo --base splade-tiny --output models/hpo"
    config: AnyPath | None = CONFIG
    collection: str = COLLECTION
    base: str = flag(help="SPLADE encoder to start from; with --data, any masked language model")
    output: AnyPath = OUTPUT
    data: AnyPath | None = flag(None, "follow the paper: train on this file, written by `trainer msmarco`")
    dense: str | None = flag(None, "use this dense encoder as teacher, such as minilm")
    cross_encoder: str | None = flag(None, f"use this model as teacher: {CROSS_ENCODER}")
    generator: str | None = flag(
        None, f"write the pseudo queries with this model, {GENERATOR} (default: titles and parts of documents)"
    )
    queries: int = flag(5000, "number of pseudo queries, at most", ge=1)
    weight: float | None = flag(
        None,
        "weight of the new checkpoints in their mean with the old one (default: 0.3, with a teacher 0.4, or 0, as "
        "held-out queries decide)",
        gt=0,
        le=1,
    )
    vocabulary: AnyPath | None = flag(None, "first expand the vocabulary, with the settings in this YAML file")
    pretrain: AnyPath | None = flag(None, "first pretrain on the collection, with the settings in this YAML file")
    generate: AnyPath | None = flag(None, "YAML file with settings for query generation")
    splade: AnyPath | None = flag(None, "YAML file with settings for the SPLADE training")
    distil: AnyPath | None = flag(None, "YAML file with settings for the training with a teacher")
    vectors: AnyPath | None = flag(
        None, "folder for the vectors of the documents before adaptation (default: in <output>.steps)"
    )
    seed: int = flag(42, "random seed", ge=0)
    device: Literal["auto", "cpu"] = ONE_GPU

    @model_validator(mode="after")
    def _check(self) -> Self:
        teacher = self.dense or self.cross_encoder
        if self.dense and self.cross_encoder:
            raise ValueError("--dense and --cross-encoder are both teachers: choose one")
        if self.data:
            for name in ("dense", "cross_encoder", "generator", "weight", "queries", "vectors"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"--data is the paper's recipe, which has no --{name.replace('_', '-')}")
        if self.distil and not teacher:
            raise ValueError("--distil needs a teacher: --dense or --cross-encoder")
        if self.generate and not self.generator:
            raise ValueError("--generate needs --generator")
        return self
