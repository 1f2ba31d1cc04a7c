"""The run folder: paths of its files, the results of its run, and its artifacts, opened on first use.

`beir` writes it; analyses, the search service, shipping and export read it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cai_pyserini.collections.check import Reading
from cai_pyserini.collections.contract import Collection, Qrels
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import holder, holder_name
from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.sample import Sample
from cai_pyserini.experiments.systems import ADAPTED, System, canonical_name, parse_system, with_parts
from cai_pyserini.indexes.retrieve import word_queries
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.encoder import Encoder, Role
from cai_pyserini.models.folder import model_folder, tokenizer_of
from cai_pyserini.runs.measures import MEASURES
from cai_pyserini.vectors.queries import Queries
from cai_pyserini.vectors.shards import Vectors
from cai_pyserini.vectors.weighting import Impacts, impacts_of_index

BASELINE = "bm25"
COUNTS = ("documents", "passages", "queries", "judgments")
BEIR = "`cai-pyserini run`"
CURRENT = Path("versions") / "current"  # a link in run folders that have been updated


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
            changes[each] = {key: canonical_name(name) for key, name in getattr(self, each).items()}
        return replace(self, **changes)

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
        if not system.parts:
            searches.setdefault(system.index, system.name)
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


def current(run: Path) -> Path:
    """The folder with a run's files: the run folder itself or, after an update, its current version.

    Call it once before opening several files, so that all are of the same version.
    """
    return (run / CURRENT).resolve() if (run / CURRENT).is_symlink() else run


class RunFolder:
    """The run folder `root`; its files are in `folder`, see `current`.

    `experiment` is the experiment to run in it; without one, the folder's finished run is read, or with `started` what
    there is of one that has not finished. With `before`, files that its collection could not read are not tried again.
    """

    def __init__(
        self,
        root: Path,
        experiment: Experiment | None = None,
        started: bool = False,
        before: "RunFolder | None" = None,
    ):
        self.root = root
        self.settings: dict[str, Any] = {}  # of the command that runs the experiment, see provenance.recorded
        self.folder = folder = current(root)
        self._experiment, self._before = experiment, before
        self._encoders: dict[str, Encoder] = {}
        self.checked = folder / "collection.json"  # the counts of the checked collection
        self.results_file = folder / "results.json"
        self.started_file = folder / ".started.json"  # the results so far of a run that has not finished
        self.is_started = started and self.started_file.is_file()
        if self.is_started:
            self.results_file = self.started_file
        self.report = folder / "report.md"
        self.page = folder / "report.html"
        self.changes = folder / "update.json"  # the effects of the last update
        self.lock = root / ".lock"
        self.adapted = folder / "adapted"  # SPLADE encoder
        self.adapted_dense = self.adapted / "dense"
        self.weights = folder / "weights.json"  # of BM25 + SPLADE + dense
        self.words = folder / "words"  # word counts of documents, for joint indexes
        self.vectors = folder / "vectors"  # raw vectors

    # Results

    @property
    def is_finished(self) -> bool:
        return self.results_file.is_file()

    @cached_property
    def results(self) -> Results:
        """The results of the run. Raises CaiError for a folder without a finished run, or one of another version."""
        if not self.is_finished:
            raise self._unfinished()
        try:
            found = TypeAdapter(Results).validate_python(json.loads(self.results_file.read_text(encoding="utf-8")))
        except ValueError:
            raise CaiError(f"{self.results_file} is broken or of another version: run {BEIR} again") from None
        return found.with_short_names()

    def _unfinished(self) -> CaiError:
        if not self.root.is_dir():
            return CaiError(f"no folder {self.root}: {BEIR} makes a run")
        if not self.lock.exists():
            inside = next((f"; did you mean {path.parent}?" for path in sorted(self.root.glob("*/results.json"))), "")
            return CaiError(f"{self.root} has no finished run{inside or f': make one with {BEIR}'}")
        return CaiError(f"{self.root} is a run that has not finished: {self.remedy}")

    @property
    def remedy(self) -> str:
        """What finishes a run that has not finished."""
        if (note := holder(self.lock)) is not None:
            return f"it is being written by {holder_name(note)}: wait until it has ended"
        return f"start {BEIR} again with the same arguments, which continues"

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment to run, or that of the finished run. Raises CaiError as `results` does."""
        if self._experiment:
            return self._experiment
        try:
            return Experiment.model_validate(self.results.settings)
        except ValidationError:
            raise CaiError(f"{self.results_file} does not have the settings of the run: run {BEIR} again") from None

    @property
    def systems(self) -> list[System]:
        """The systems of the run, the best first."""
        means, searches = self.results.systems, self.results.searches
        names = sorted(means, key=lambda name: -means[name].get(MEASURES[0], 0.0))
        return [parse_system(name) for name in names or searches.values()]

    def has(self, path: Path) -> bool:
        """Whether an output of the finished run exists and is unchanged: a later run in the same folder may have
        replaced it or its inputs."""
        digest, manifest = self.results.made.get(self.name_of(path)), artifact.read_manifest(path)
        return manifest is not None and manifest.digest == digest

    def require(self, path: Path) -> Path:
        """Return the path of an output; when reading a finished run, raise CaiError unless the folder has it."""
        if self._experiment is None and not self.has(path):
            raise CaiError(
                f"{self.root} has no {self.name_of(path)} that is up to date: run {BEIR} with the systems that "
                "need it, or after an update `cai-pyserini update --evaluate`"
            )
        return path

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    # Paths

    def idf(self, system: System) -> Path:
        """The token IDF of a system's encoder, by the formula of its weighting."""
        formula, dense = system.weighting or "idf", "-dense" * (system.kind == "dense")
        return self.folder / f"{ADAPTED * system.adapted}{formula}{dense}"

    def near(self, system: System) -> Path:
        """Each document's neighbours; for adapted systems, by adapted vectors."""
        return self.folder / f"{ADAPTED * system.adapted}near"

    def expansion(self, system: System) -> Path:
        """Associated words and neighbours' words for smooth joint indexes; for adapted systems, by the adapted dense
        encoder."""
        return self.folder / f"{ADAPTED * system.adapted}expansion"

    def vectors_of(self, system: System, role: Role = "documents") -> Path:
        """Raw vectors of documents or queries. SPLADE systems share them, apart from smooth and adapted variants; dense
        vectors depend on the IDF."""
        split = self.experiment.collection.split
        name = f"documents{'-smooth' * system.mixes_vectors}" if role == "documents" else f"queries-{split}"
        prefix = f"{system.index}-" if system.kind == "dense" else ADAPTED * system.adapted
        return self.vectors / f"{prefix}{name}"

    def impacts(self, system: System) -> Path:
        return self.folder / "impacts" / system.index

    def index(self, system: System) -> Path:
        return self.folder / "indexes" / system.index

    def run(self, system: System) -> Path:
        return self.folder / "runs" / f"{system.long_name}.trec"

    def evaluation(self, system: System) -> Path:
        return self.folder / "evaluations" / f"{system.long_name}.json"

    # Contents

    @cached_property
    def collection(self) -> Collection:
        """The collection. Raises CaiError if it has changed since the finished run."""
        collection = open_collection(self.experiment.collection, self._before.collection if self._before else None)
        if self._experiment:
            return collection
        if (checked := artifact.read_manifest(self.checked)) is None:
            raise CaiError(f"{self.root} was run by another version of cai_pyserini: run {BEIR} again")
        parts = checked.recipe["inputs"]["parts"]
        if any(collection.fingerprint(part) != digest for part, digest in parts.items()):
            source = self.experiment.collection.source
            raise CaiError(f"{source} has changed since the run in {self.root}: run {BEIR} again")
        if "left_out_judgments" not in checked.stats:
            collection.set_missing(self.experiment.collection.split, frozenset())
        return collection

    @cached_property
    def sample(self) -> Sample:
        """Some of the documents, for estimates."""
        return Sample(self.collection)

    @cached_property
    def topics(self) -> dict[str, str]:
        return self.collection.topics(self.experiment.collection.split)

    @property
    def has_queries(self) -> bool:
        return self.collection.has_queries(self.experiment.collection.split)

    @property
    def has_qrels(self) -> bool:
        return self.collection.has_qrels(self.experiment.collection.split)

    @cached_property
    def qrels(self) -> Qrels | None:
        return self.collection.qrels(self.experiment.collection.split) if self.has_qrels else None

    def encoder(self, system: System) -> Encoder:
        """The encoder of a system; dense systems with and without IDF have different ones. Raises CaiError if an
        adapted encoder does not exist."""
        is_dense, experiment = system.kind == "dense", self.experiment
        name = system.index if is_dense else f"{ADAPTED * system.adapted}splade"
        if name not in self._encoders:
            config = experiment.encoder
            if system.adapted:
                config = load_encoder(str(self.adapted_dense if is_dense else self.adapted))
            elif is_dense and experiment.dense:
                config = experiment.dense
            if is_dense:
                config = self.weighted(config, system)
            elif experiment.search == "fast":
                config = config.fast()
            self._encoders[name] = Encoder(config, experiment.device, experiment.precision)
        return self._encoders[name]

    def weighted(self, config: EncoderConfig, system: System) -> EncoderConfig:
        """The settings of an encoder with a system's weighting, and that of first passages."""
        idf = str(self.idf(system)) if system.weighting else None
        return config.replace(idf=idf, first_passage=self.experiment.collection.weight_of_first_passage)

    @cached_property
    def reading(self) -> Reading:
        """How SPLADE truncates documents."""
        config = self.experiment.encoder
        tokenizer = checkpoint_digest(model_folder(config), tokenizer_only=True)
        return Reading(tokenizer_of(config).lengths, config.max_document_length, tokenizer)

    def queries(self, system: System) -> Queries:
        """The queries in the representation that a system's index takes."""
        if system.searches_text:
            return Queries(self.topics)
        words = word_queries(load_encoder(str(self.require(self.index(system))))) if system.joint else None
        if system.bow:
            return Queries(self.topics, self.encoder(system), "bow", words=words)
        return Queries(
            self.topics, self.encoder(system), "splade", self.require(self.vectors_of(system, "queries")), words
        )

    def chosen_weights(self) -> tuple[float, ...]:
        """The weights of BM25 + SPLADE + dense that were chosen from the documents."""
        return tuple(json.loads(self.require(self.weights).read_text(encoding="utf-8")).values())

    def weights_of(self, hybrid: System) -> tuple[float, ...] | None:
        """The weights of a hybrid's parts: the user's, or those chosen from the documents; None if all are 1."""
        return self.chosen_weights() if self.experiment.balances(hybrid) else self.experiment.weights_of(hybrid)

    def documents(self, system: System) -> Vectors:
        return Vectors(self.require(self.vectors_of(system)))

    def impacts_of(self, system: System) -> Impacts:
        """The impacts of a system's index, recomputed from its vectors, words and expansion."""
        return impacts_of_index(
            self.require(self.index(system)), self.vectors_of(system), self.words, self.expansion(system)
        )
