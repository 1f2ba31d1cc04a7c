"""The definition of an experiment: a collection, encoders, and settings."""

from pathlib import Path
from typing import Any

from pydantic import Field

from cai_pyserini.core.config import EncoderConfig, IndexConfig
from cai_pyserini.core.flags import DenseMethod, Search
from cai_pyserini.core.settings import Settings
from cai_pyserini.experiments.systems import System
from cai_pyserini.models.device import Precision
from cai_pyserini.runs.fusions import DEPTH

RUNTIME_SETTINGS = {"device", "batch_size", "threads"}  # not part of an experiment's definition


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
    weights: list[float] = Field(default_factory=list)  # part weights, for hybrids with as many parts
    search: Search = "exact"  # fast: in two steps, see EncoderConfig.fast
    dense: EncoderConfig | None = None  # for dense systems, and to find what is near
    dense_index: DenseMethod = "flat"
    cross_encoder: str | None = None  # a checkpoint
    rerank_minutes: float | None = None  # time limit of reranking; lowers its depth
    generated: str | None = None  # folder of generated queries, for doct5query
    raw: bool = True  # Lucene indexes store the documents

    def weights_of(self, system: System) -> tuple[float, ...] | None:
        return tuple(self.weights) if self.weights and len(self.weights) == len(system.parts) else None

    @property
    def three_way_weights(self) -> list[float]:
        """The user's weights for BM25 + SPLADE + dense; empty if there are none."""
        return self.weights if len(self.weights) == 3 else []

    def balances(self, system: System) -> bool:
        """Whether the weights of a system's parts are chosen from the documents."""
        return system.balanced and self.weights_of(system) is None

    @property
    def source(self) -> str:
        """The source of the collection; absolute if it is a path."""
        source = self.collection.source
        return str(Path(source).resolve()) if source != "hpo" and Path(source).exists() else source

    def record(self) -> dict[str, Any]:
        """The settings in results.json, as JSON; Experiment.model_validate reads them."""
        located = self.replace(collection=self.collection.replace(source=self.source))
        record = located.model_dump(mode="json", exclude=RUNTIME_SETTINGS, exclude_none=True)
        encoders = {"encoder": self.encoder} | ({"dense": self.dense} if self.dense else {})
        # without defaults, which would override what the checkpoint's folder says
        return record | {name: each.model_dump(mode="json", exclude_unset=True) for name, each in encoders.items()}
