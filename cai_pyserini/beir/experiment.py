"""The definition of an experiment: a collection, encoders, and settings."""

from pathlib import Path
from typing import Any

from pydantic import Field

from cai_pyserini.beir.systems import System
from cai_pyserini.core.config import EncoderConfig, IndexConfig
from cai_pyserini.core.flags import DenseMethod
from cai_pyserini.core.settings import Settings
from cai_pyserini.fusion.fusions import DEPTH
from cai_pyserini.models.device import Precision

REQUIRES = {"dense": "dense", "cross-encoder": "cross_encoder", "doct5query": "generated"}  # kind -> setting
OF_A_CALL = {"device", "batch_size", "threads"}  # settings that do not define an experiment


class Experiment(Settings):
    """A collection, the models to run on it, and their settings."""

    collection: IndexConfig
    encoder: EncoderConfig
    device: str = "auto"
    precision: Precision = "auto"
    batch_size: int | None = None
    threads: int = 0
    depth: int = DEPTH  # documents per query of each run that are fused or reranked
    alpha: float | None = None  # weight of BM25 in joint systems; None: estimated
    weights: list[float] = Field(default_factory=list)  # of the parts of hybrids that have as many
    dense: EncoderConfig | None = None  # of the dense systems, and to find near documents with
    dense_index: DenseMethod = "flat"
    cross_encoder: str | None = None  # a checkpoint
    rerank_minutes: float | None = None  # lowers the depth of reranking
    generated: str | None = None  # folder of generated queries, for doct5query
    raw: bool = True  # Lucene indexes store the documents

    def weights_of(self, system: System) -> tuple[float, ...] | None:
        return tuple(self.weights) if self.weights and len(self.weights) == len(system.parts) else None

    @property
    def given_weights(self) -> list[float]:
        """The weights given for BM25 + SPLADE + dense, if there are any."""
        return self.weights if len(self.weights) == 3 else []

    def balances(self, system: System) -> bool:
        """Whether the weights of a system's parts are chosen for the collection."""
        return system.balanced and self.weights_of(system) is None

    @property
    def source(self) -> str:
        """The source of the collection, as an absolute path if it is one."""
        source = self.collection.source
        return str(Path(source).resolve()) if source != "hpo" and Path(source).exists() else source

    def record(self) -> dict[str, Any]:
        """What results.json has of it, JSON; Experiment.model_validate reads it."""
        located = self.collection.replace(source=self.source)
        record = self.replace(collection=located).model_dump(mode="json", exclude=OF_A_CALL, exclude_none=True)
        encoders = {"encoder": self.encoder} | ({"dense": self.dense} if self.dense else {})
        # without defaults, which would take the place of what the checkpoint's folder says
        return record | {name: each.model_dump(mode="json", exclude_unset=True) for name, each in encoders.items()}
