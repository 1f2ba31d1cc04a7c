"""The results of a run, as in its results.json."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.names import canonical_name, current_name, with_parts
from cai_pyserini.experiments.systems import System
from cai_pyserini.runs.measures import MEASURES

BASELINE = "bm25"
COUNTS = ("documents", "passages", "queries", "judgments")


@dataclass
class Results:
    """The results of an experiment, as in results.json; `systems` maps a name to means over queries.

    The means have no measures without qrels, and are empty without queries and after an update without evaluation.
    """

    collection: str
    encoder: str
    split: str
    systems: dict[str, dict[str, float]]
    comparisons: dict[str, dict[str, float | None]]  # against the baseline: difference and p
    timings_s: dict[str, float]  # stage -> seconds
    index_bytes: dict[str, int]
    searches: dict[str, str]  # index -> a system that searches it
    nonzeros_per_document: float | None  # of SPLADE's raw vectors
    best: dict[str, str]  # models at query time -> the best system with no others
    alpha: dict[str, dict[str, float]]  # joint index -> query representation -> weight of BM25
    gains: dict[str, dict[str, float | None]]  # adapted system -> its difference to the unadapted one, and p
    decision: list[str]  # choices made from the documents: weights, and which adapted encoders are used
    counts: dict[str, int | float]
    settings: dict[str, Any]  # see Experiment.record
    precision: str | None  # of the encoding
    quantization_loss: dict[str, dict[str, float]]  # SPLADE index -> its loss
    versions: dict[str, str]  # of the command that wrote them; each output's manifest has those that made it
    made: dict[str, str]  # the run's outputs, new or up to date: path in the folder -> recipe digest
    published: list[dict[str, Any]]
    provenance: dict[str, Any] = field(default_factory=dict)  # see experiments.provenance

    def with_short_names(self) -> "Results":
        """These results, which may have been written with long names of systems, with their short names."""

        changes: dict[str, Any] = {}
        for each in ("systems", "comparisons", "gains"):
            changes[each] = {canonical_name(name): value for name, value in getattr(self, each).items()}
        for each in ("searches", "best"):
            changes[each] = {current_name(key): canonical_name(name) for key, name in getattr(self, each).items()}
        for each in ("index_bytes", "alpha", "quantization_loss"):
            changes[each] = {current_name(key): value for key, value in getattr(self, each).items()}
        return replace(self, **changes)

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
        return any(MEASURES[0] in row for row in self.systems.values())


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
        comparisons={},
        timings_s={},
        index_bytes={},
        searches=searches,
        best={},
        alpha={},
        gains={},
        decision=[],
        nonzeros_per_document=None,
        counts={},
        settings=experiment.record(),
        precision=None,
        quantization_loss={},
        versions={},
        made={},
        published=[score.model_dump() for score in config.published],
    )
