"""The definition of an experiment (a collection, encoders, and settings), and its results, as in results.json."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from cai_pyserini.core.config import EncoderConfig, IndexConfig
from cai_pyserini.core.flags import MEASURES, DenseMethod, Search
from cai_pyserini.core.settings import Settings
from cai_pyserini.experiments.names import with_parts
from cai_pyserini.experiments.systems import System
from cai_pyserini.models.device import Precision
from cai_pyserini.runs.compared import Compared
from cai_pyserini.runs.fusions import DEPTH
from cai_pyserini.runs.significance import Comparison, Interval

RUNTIME_SETTINGS = {"device", "batch_size", "threads"}  # not part of an experiment's definition
BASELINE = "bm25"
COUNTS = ("documents", "passages", "queries", "judgments")


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
    measures: list[str] = Field(default=[*MEASURES])  # systems are compared by the first

    def weights_of(self, system: System) -> tuple[float, ...] | None:
        return tuple(self.weights) if self.weights and len(self.weights) == len(system.parts) else None

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


@dataclass
class Results:
    """The results of an experiment, as in results.json; `systems` maps a name to means over queries.

    The means have no measures without qrels, and are empty without queries and after an update without evaluation.
    """

    collection: str
    encoder: str
    split: str
    systems: dict[str, dict[str, float]]
    searches: dict[str, str]  # index -> a system that searches it
    settings: dict[str, Any]  # see Experiment.record
    published: list[dict[str, Any]]
    measures: list[str] = field(default_factory=lambda: [*MEASURES])
    evaluated_queries: int = 0
    intervals: dict[str, Interval | None] = field(default_factory=dict)  # 95%, of the means of the first measure
    comparisons: dict[str, Comparison] = field(default_factory=dict)  # with the baseline
    pairs: dict[str, dict[str, Comparison]] = field(default_factory=dict)  # of all systems: first -> second
    timings_s: dict[str, float] = field(default_factory=dict)  # stage -> seconds
    index_bytes: dict[str, int] = field(default_factory=dict)
    nonzeros_per_document: float | None = None  # of SPLADE's raw vectors
    best: dict[str, str] = field(default_factory=dict)  # models at query time -> the best system with no others
    alpha: dict[str, dict[str, float]] = field(default_factory=dict)  # joint index -> query representation -> of BM25
    gains: dict[str, Comparison] = field(default_factory=dict)  # of adapted systems
    decision: list[str] = field(default_factory=list)  # made from the documents: weights, which adapted encoders to use
    counts: dict[str, int | float] = field(default_factory=dict)
    precision: str | None = None  # of the encoding
    quantization_loss: dict[str, dict[str, float]] = field(default_factory=dict)  # SPLADE index -> its loss
    versions: dict[str, str] = field(default_factory=dict)  # of the command that wrote them
    made: dict[str, str] = field(default_factory=dict)  # the run's outputs: path in the folder -> recipe digest
    provenance: dict[str, Any] = field(default_factory=dict)  # see experiments.provenance

    @property
    def shown(self) -> "Results":
        """What the page of the run shows of them: no times of steps, and nothing of how they were made."""
        evaluations = {name: digest for name, digest in self.made.items() if name.startswith("evaluations/")}
        return replace(self, made=evaluations, timings_s={}, index_bytes={}, versions={}, provenance={})

    @property
    def searched(self) -> bool:
        return any(self.systems.values())

    @property
    def scored(self) -> bool:
        return any(self.measure in row for row in self.systems.values())

    @property
    def compared(self) -> Compared:
        """The systems, compared with each other and with the baseline."""
        return Compared(
            self.measures,
            self.evaluated_queries,
            {name: {each: row[each] for each in self.measures if each in row} for name, row in self.systems.items()},
            self.intervals,
            BASELINE,
            self.comparisons,
            self.pairs,
        )

    @property
    def measure(self) -> str:
        """The measure that systems are compared by."""
        return self.measures[0]


def begun(experiment: Experiment, systems: Sequence[System]) -> Results:
    """The results of a run before its first step: the settings, and the systems that will be there."""
    config = experiment.collection
    searches: dict[str, str] = {}
    for system in with_parts(systems):
        if system.index_name:
            searches.setdefault(system.index_name, system.name)
    return Results(
        collection=config.name,
        encoder=experiment.encoder.name,
        split=config.split,
        systems={system.name: {} for system in systems},
        searches=searches,
        settings=experiment.record(),
        published=[score.model_dump() for score in config.published],
        measures=experiment.measures,
    )
