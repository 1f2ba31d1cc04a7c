"""A run folder: where its files are, what its run has found, and its parts, each opened when it is first needed.

`beir` writes it; analyses, the search service, shipping and export read it.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cai_pyserini.beir.experiment import Experiment
from cai_pyserini.beir.systems import ADAPTED, System, parse_system
from cai_pyserini.collection.check import Reading
from cai_pyserini.collection.contract import Collection, Qrels
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import holder, named
from cai_pyserini.encode.encoder import Encoder, Role
from cai_pyserini.encode.queries import Queries
from cai_pyserini.evaluate.measures import MEASURES
from cai_pyserini.impact.impacts import Impacts, impacts_of_index
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.folder import model_folder, tokenizer_of
from cai_pyserini.retrieval.search import word_queries
from cai_pyserini.vectors.shards import Vectors

BASELINE = "bm25"
COUNTS = ("documents", "passages", "queries", "judgments")
BEIR = "`python -m cai_pyserini.beir`"
CURRENT = Path("versions") / "current"  # a link in a run folder that was updated


@dataclass
class Results:
    """The results of an experiment, as in results.json; `systems` maps a name to means over queries.

    Without qrels, there are no measures among these means, and after an update without evaluation nothing at all;
    without queries, there are no systems.
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
    best: dict[str, str]  # what is needed at query time -> the best system
    alpha: dict[str, dict[str, float]]  # joint index -> weight of BM25 by the representation of queries
    gains: dict[str, dict[str, float | None]]  # adapted system -> difference to the same before adaptation, and p
    decision: list[str]  # what the documents decided: weights, and what of an adaptation is used
    counts: dict[str, int | float]
    settings: dict[str, Any]  # see Experiment.record
    precision: str | None  # of the encoding
    quantization_loss: dict[str, dict[str, float]]  # SPLADE index -> its loss
    versions: dict[str, str]
    made: dict[str, str]  # what the run made, or found up to date: path in the folder -> digest of its recipe
    published: list[dict[str, Any]]

    @property
    def searched(self) -> bool:
        return any(self.systems.values())

    @property
    def scored(self) -> bool:
        return any(MEASURES[0] in row for row in self.systems.values())


def current(run: Path) -> Path:
    """The folder that has the files of a run: the run folder, or one of its versions, as soon as it was updated.

    Whoever opens several of these files asks once, and so gets those of one version.
    """
    return (run / CURRENT).resolve() if (run / CURRENT).is_symlink() else run


class RunFolder:
    """A run folder, `root`, whose files are in `folder`, see current; `experiment` is what is run in it, by default
    that of its finished run."""

    def __init__(self, root: Path, experiment: Experiment | None = None):
        self.root = root
        self.folder = folder = current(root)
        self._given = experiment
        self._encoders: dict[str, Encoder] = {}
        self.checked = folder / "collection.json"  # the counts of the checked collection
        self.results_file = folder / "results.json"
        self.report = folder / "report.md"
        self.changes = folder / "update.json"  # what the last update has moved
        self.lock = root / ".lock"
        self.adapted = folder / "adapted"  # the adapted SPLADE encoder
        self.adapted_dense = self.adapted / "dense"  # and dense encoder
        self.weights = folder / "weights.json"  # of BM25 + SPLADE + dense
        self.words = folder / "words"  # of the documents, for joint indexes
        self.vectors = folder / "vectors"  # all raw ones

    # What a run has found

    @property
    def is_finished(self) -> bool:
        return self.results_file.is_file()

    @cached_property
    def results(self) -> Results:
        """The results of the run. Raises CaiError for a folder without a finished run, or one of another version."""
        if not self.is_finished:
            raise self._unfinished()
        try:
            return TypeAdapter(Results).validate_python(json.loads(self.results_file.read_text(encoding="utf-8")))
        except ValueError:
            raise CaiError(f"{self.results_file} is broken or of another version: run {BEIR} again") from None

    def _unfinished(self) -> CaiError:
        if not self.root.is_dir():
            return CaiError(f"no folder {self.root}: {BEIR} makes a run")
        if not self.lock.exists():
            return CaiError(f"{self.root} has no finished run: make one with {BEIR}")
        remedy = f"start {BEIR} again with the same arguments, which continues"
        if (note := holder(self.lock)) is not None:
            remedy = f"it is being written by {named(note)}: wait until it has ended"
        return CaiError(f"{self.root} is a run that has not finished: {remedy}")

    @cached_property
    def experiment(self) -> Experiment:
        """Raises CaiError as `results` does."""
        if self._given:
            return self._given
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
        """Whether a file or folder of the finished run is there, as the run made it or found it up to date: another run
        in the same folder may have replaced what it depends on, or itself."""
        digest, manifest = self.results.made.get(self.name_of(path)), artifact.read_manifest(path)
        return manifest is not None and manifest.digest == digest

    def made(self, path: Path) -> Path:
        """A file or folder of the finished run. Raises CaiError unless the folder has it, or while a run is made."""
        if self._given is None and not self.has(path):
            raise CaiError(
                f"{self.root} has no {self.name_of(path)} that is up to date: run {BEIR} with the systems that "
                "need it, or after an update `cai-pyserini update --evaluate`"
            )
        return path

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    # Where files are

    def idf(self, system: System) -> Path:
        """The IDF of the tokens of a system's encoder."""
        return self.folder / f"{ADAPTED * system.adapted}idf{'-dense' * (system.kind == 'dense')}"

    def near(self, system: System) -> Path:
        """The documents near each; for adapted systems, by adapted vectors."""
        return self.folder / f"{ADAPTED * system.adapted}near"

    def expansion(self, system: System) -> Path:
        """Words near documents, and of near documents, for smooth joint indexes; adapted ones have those that the
        adapted dense encoder finds."""
        return self.folder / f"{ADAPTED * system.adapted}expansion"

    def vectors_of(self, system: System, role: Role = "documents") -> Path:
        """Raw vectors. SPLADE systems share theirs, smooth and adapted ones among themselves; those of a dense encoder
        depend on the IDF."""
        split = self.experiment.collection.split
        name = f"documents{'-smooth' * system.mixes_vectors}" if role == "documents" else f"queries-{split}"
        prefix = f"{system.index}-" if system.kind == "dense" else ADAPTED * system.adapted
        return self.vectors / f"{prefix}{name}"

    def impacts(self, system: System) -> Path:
        return self.folder / "impacts" / system.index

    def index(self, system: System) -> Path:
        return self.folder / "indexes" / system.index

    def run(self, system: System) -> Path:
        return self.folder / "runs" / f"{system.name}.trec"

    def rescored(self, hybrid: System, part: System) -> Path:
        """The run of a part of an exact hybrid, with scores for the documents of all parts."""
        others = "-".join(other.name for other in hybrid.parts if other != part)
        return self.folder / "runs" / "rescored" / f"{part.name}-with-{others}.trec"

    def evaluation(self, system: System) -> Path:
        return self.folder / "evaluations" / f"{system.name}.json"

    # What is in them

    @cached_property
    def collection(self) -> Collection:
        """The collection. Raises CaiError where it has changed since the run that is read."""
        collection = open_collection(self.experiment.collection)
        if self._given:
            return collection
        if (checked := artifact.read_manifest(self.checked)) is None:
            raise CaiError(f"{self.root} was run by another version of cai_pyserini: run {BEIR} again")
        parts = checked.recipe["inputs"]["parts"]
        if any(collection.fingerprint(part) != digest for part, digest in parts.items()):
            source = self.experiment.collection.source
            raise CaiError(f"{self.root} was not run on {source} as it is now: run {BEIR} again")
        if "left_out_judgments" not in checked.stats:
            collection.set_missing(self.experiment.collection.split, frozenset())
        return collection

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
        """The encoder of a system; dense systems with and without IDF have different ones. Raises CaiError for an
        adapted one that has not been made."""
        is_dense, experiment = system.kind == "dense", self.experiment
        name = system.index if is_dense else f"{ADAPTED * system.adapted}splade"
        if name not in self._encoders:
            config = experiment.encoder
            if system.adapted:
                config = load_encoder(str(self.adapted_dense if is_dense else self.adapted))
            elif is_dense and experiment.dense:
                config = experiment.dense
            if is_dense:
                config = config.replace(idf=str(self.idf(system)) if system.idf else None)
            self._encoders[name] = Encoder(config, experiment.device, experiment.precision)
        return self._encoders[name]

    @cached_property
    def reading(self) -> Reading | None:
        """How SPLADE reads documents; None if it reads all of them, in windows."""
        config = self.experiment.encoder
        if config.overlap is not None:
            return None
        tokenizer = checkpoint_digest(model_folder(config), tokenizer_only=True)
        return Reading(tokenizer_of(config).lengths, config.max_document_length, tokenizer)

    def queries(self, system: System) -> Queries:
        """The queries in the form that a system's index takes."""
        if system.searches_text:
            return Queries(self.topics)
        words = word_queries(load_encoder(str(self.made(self.index(system))))) if system.joint else None
        if system.bow:
            return Queries(self.topics, self.encoder(system), "bow", words=words)
        return Queries(
            self.topics, self.encoder(system), "splade", self.made(self.vectors_of(system, "queries")), words
        )

    def chosen_weights(self) -> tuple[float, ...]:
        """The weights of BM25 + SPLADE + dense that were chosen for the collection."""
        return tuple(json.loads(self.made(self.weights).read_text(encoding="utf-8")).values())

    def documents(self, system: System) -> Vectors:
        return Vectors(self.made(self.vectors_of(system)))

    def impacts_of(self, system: System) -> Impacts:
        """The impacts of a system's index, made again from the vectors, words and expansion behind it."""
        return impacts_of_index(
            self.made(self.index(system)), self.vectors_of(system), self.words, self.expansion(system)
        )
