"""The run folder: its files, the results of its run, and what it was made from.

`run` writes it; analyses, the search service, shipping and export read it.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cai_pyserini.collections.check import Reading
from cai_pyserini.collections.contract import Collection, Qrels
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import holder, holder_name
from cai_pyserini.experiments.estimate import Sample
from cai_pyserini.experiments.experiment import Experiment, Results
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.systems import System
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.folder import long_documents_remedy, model_folder
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.trainer.settings import AdaptSettings

BEIR = "`cai-pyserini run`"
CURRENT = Path("versions") / "current"  # a link in run folders that have been updated


def current(run: Path) -> Path:
    """The folder with a run's files: the run folder itself or, after an update, its current version.

    Call it once before opening several files, so that all are of the same version.
    """
    return (run / CURRENT).resolve() if (run / CURRENT).is_symlink() else run


class RunFolder:
    """The run folder `root`; its files are in `folder`, see `current`.

    `experiment` is the experiment to run in it; without one, the folder's finished run is read, or with `started` what
    there is of one that has not finished. `adaptation` has the settings to adapt its encoders with, without which they
    are kept. `earlier` is a run on a previous version of the collection, whose adapted encoders and chosen weights are
    kept, and whose vectors are reused.
    """

    def __init__(
        self,
        root: Path,
        experiment: Experiment | None = None,
        *,
        started: bool = False,
        adaptation: AdaptSettings | None = None,
        earlier: "RunFolder | None" = None,
    ):
        self.root = root
        self.settings: dict[str, Any] = {}  # of the command that runs the experiment, see provenance.recorded
        self.folder = folder = current(root)
        self.adaptation, self.earlier = adaptation, earlier
        self._experiment = experiment
        self.encoders: dict[Any, EncoderModel] = {}  # that are open, see artifacts.RunEncoder
        self.checked = folder / "collection.json"  # the counts of the checked collection
        self.results_file = folder / "results.json"
        self.started_file = folder / ".started.json"  # the results so far of a run that has not finished
        self.is_started = started and self.started_file.is_file()
        if self.is_started:
            self.results_file = self.started_file
        self.report = folder / "report.md"
        self.page = folder / "report.html"
        self.changes = folder / "update.json"  # the effects of the last update
        self.files = folder / "files.json"  # those of a folder of files, see collections.file_listing
        self.lock = root / ".lock"
        self.adapted = folder / "adapted"  # encoders
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
            return TypeAdapter(Results).validate_python(json.loads(self.results_file.read_text(encoding="utf-8")))
        except ValueError:
            raise CaiError(f"{self.results_file} is broken or of another version: run {BEIR} again") from None

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

    def reopened(self) -> "RunFolder":
        """The same run, which reads its collection again."""
        return RunFolder(self.root, self.experiment, adaptation=self.adaptation, earlier=self.earlier)

    @property
    def split(self) -> str:
        return self.experiment.collection.split

    @property
    def systems(self) -> list[System]:
        """The systems of the run, the best first."""
        means, searches = self.results.systems, self.results.searches
        names = sorted(means, key=lambda name: -means[name].get(self.results.measure, 0.0))
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

    # Contents

    @cached_property
    def collection(self) -> Collection:
        """The collection. Raises CaiError if it has changed since the finished run."""
        collection = open_collection(self.experiment.collection)
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
        return self.collection.topics(self.split)

    @property
    def has_queries(self) -> bool:
        return self.collection.has_queries(self.split)

    @property
    def has_qrels(self) -> bool:
        return self.collection.has_qrels(self.split)

    @cached_property
    def qrels(self) -> Qrels | None:
        return self.collection.qrels(self.split) if self.has_qrels else None

    @cached_property
    def reading(self) -> Reading:
        """How SPLADE truncates documents."""
        config = self.experiment.encoder
        folder = model_folder(config)
        tokenizer = checkpoint_digest(folder, tokenizer_only=True)
        length, remedy = config.max_document_length, long_documents_remedy(config)
        return Reading(lambda texts: Tokenizer(folder).lengths(texts), length, tokenizer, remedy)
