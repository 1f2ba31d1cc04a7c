"""The settings of an adaptation; YAML files can set those of single steps."""

from typing import Literal, Self

from pydantic import model_validator

from cai_pyserini.core.flags import COLLECTION, DEVICE, DOCUMENT_PRECISION
from cai_pyserini.core.settings import AnyPath, Settings, flag
from cai_pyserini.runs.fusions import DEPTH
from cai_pyserini.trainer.settings import CONFIG, SEED


class AdaptSettings(Settings):
    """Adapt SPLADE to a collection, using only its documents.

    If interrupted, run the same command again to continue. docs/how-to/adapt.md explains the steps.
    """

    example = "cai-pyserini adapt --collection hpo --base splade-tiny --output models/hpo"
    config: AnyPath | None = CONFIG
    collection: str = COLLECTION
    base: str = flag(help="SPLADE encoder to start from; with --data, any masked language model")
    output: AnyPath = flag(help="output folder, the checkpoint; the results of the steps are kept in <output>.steps")
    data: AnyPath | None = flag(None, "follow the paper: train on this file, written by `train msmarco`")
    dense: str | None = flag(None, "use this dense encoder as teacher, such as minilm, and adapt it too")
    queries: int = flag(5000, "maximum number of pseudo queries for training", ge=1)
    weight: float | None = flag(
        None,
        "weight of the new checkpoints in their mean with the old one (default: held-out queries decide between 0 and "
        "0.3, or 0.4 with a teacher)",
        gt=0,
        le=1,
    )
    alpha: float | None = flag(
        None, "weight of BM25 in the simulated joint systems (default: estimated, as for the index)", gt=0
    )
    weights: list[float] = flag(
        [], "weights of BM25, SPLADE and dense in the simulated fusion (default: chosen for the collection)"
    )
    depth: int = flag(DEPTH, "fuse this many best documents per query of each run in the simulated fusion", ge=1)
    vocabulary: AnyPath | None = flag(None, "with --data, YAML file with settings for the vocabulary expansion")
    pretrain: AnyPath | None = flag(None, "with --data, YAML file with settings for the pretraining")
    splade: AnyPath | None = flag(None, "YAML file with settings for the SPLADE training")
    distil: AnyPath | None = flag(None, "with --dense, YAML file with settings for the training with a teacher")
    vectors: AnyPath | None = flag(
        None, "folder for the vectors of the documents before adaptation (default: in <output>.steps)"
    )
    seed: int = SEED
    device: str = DEVICE
    precision: Literal["auto", "float32", "bfloat16", "int8"] = DOCUMENT_PRECISION
    dry_run: bool = flag(False, "only print the steps, and for each whether it is up to date, or why it must run")

    @model_validator(mode="after")
    def _check(self) -> Self:
        def changed(*names: str) -> list[str]:
            return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]

        not_in_paper = ("dense", "weight", "queries", "vectors", "precision", "alpha", "weights", "depth")
        if self.data and (names := changed(*not_in_paper)):
            raise ValueError(f"data is the paper's method, which has no setting {names[0]}")
        if not self.data and (names := changed("vocabulary", "pretrain")):
            raise ValueError(f"{names[0]} is a step of the paper's method, which needs the setting data")
        if self.distil and not self.dense:
            raise ValueError("distil needs a teacher: the setting dense")
        if (names := changed("weights", "depth")) and not self.dense:
            raise ValueError(f"{names[0]} applies to the fusion with a dense encoder: add the setting dense")
        if self.weights and (len(self.weights) != 3 or min(self.weights) <= 0):
            raise ValueError("weights: give three positive numbers, for BM25, SPLADE and dense")
        return self
