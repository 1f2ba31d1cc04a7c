"""The definition of an experiment: a collection, encoders, settings, and a folder."""

from dataclasses import dataclass
from pathlib import Path

from cai_pyserini.adapt.settings import AdaptSettings
from cai_pyserini.beir.layout import Layout
from cai_pyserini.beir.systems import System
from cai_pyserini.core.config import EncoderConfig, IndexConfig
from cai_pyserini.fusion.fusions import DEPTH
from cai_pyserini.models.device import Precision

REQUIRES = {"dense": "dense", "cross-encoder": "cross_encoder", "doct5query": "generated"}  # kind -> setting


@dataclass(frozen=True)
class Experiment:
    """A collection, the models to run on it, their settings, and the output folder."""

    collection: IndexConfig
    encoder: EncoderConfig
    output: Path
    split: str = "test"
    device: str = "auto"
    precision: Precision = "auto"
    batch_size: int | None = None
    threads: int = 0
    depth: int = DEPTH  # documents per query of each run that are fused or reranked
    alpha: float | None = None  # weight of BM25 in joint systems; None: estimated
    weights: tuple[float, ...] | None = None  # of the parts of hybrids that have as many; None: the fusion's own
    dense: EncoderConfig | None = None  # of the dense systems, and to find near documents with
    cross_encoder: str | None = None  # a checkpoint
    generated: str | None = None  # folder of generated queries, for doct5query
    adapt: AdaptSettings | None = None  # of the adaptation that adapted systems need
    raw: bool = True  # Lucene indexes store the documents

    @property
    def layout(self) -> Layout:
        return Layout(self.output)

    def expands(self, system: System) -> bool:
        """Whether a system's index has words near the documents."""
        return system.joint and system.smooth and self.dense is not None

    def balances(self, system: System) -> bool:
        """Whether the weights of a system's parts are chosen for the collection."""
        return system.balanced and self.weights_of(system) is None

    def weights_of(self, system: System) -> tuple[float, ...] | None:
        """The weights that were given for the parts of a system."""
        return self.weights if self.weights and len(self.weights) == len(system.parts) else None
