"""The artifacts of a run: what each is made from, by which function, where it is, what it takes, how it is opened.

`experiments.plan` walks from the indexes of systems (experiments.index_artifacts) and their rankings
(experiments.ranking_artifacts) to all that must be made. Here are vectors, and what they are made from.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from cai_pyserini.collections.check import check
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, IdfFormula, load_encoder
from cai_pyserini.core.steps import Step
from cai_pyserini.experiments.estimate import Rate, sampled
from cai_pyserini.experiments.experiment import Results
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import ADAPTED, WEIGHTINGS
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import compute
from cai_pyserini.vectors.encode import encode, project_vectors, uncached
from cai_pyserini.vectors.shards import SHARD, Vectors
from cai_pyserini.vectors.speed import FEW_TOKENS, count_tokens, encoding_seconds


class Artifact:
    """An artifact of a run, and the step that makes it. `place` is its path in the run folder; `made_from` are other
    artifacts, None being left out."""

    rate: Rate | None = None
    remedy = ""
    is_kept = False  # stays what it is: no step makes it

    def __init__(self, run: RunFolder, name: str, place: str, *made_from: "Artifact | None"):
        self.run, self.name, self.output = run, name, run.folder / place
        self.made_from = [each for each in made_from if each]

    def make(self) -> Path:
        raise NotImplementedError

    @property
    def inputs(self) -> tuple[Path, ...]:
        return tuple(each.output for each in self.made_from if not each.is_kept)

    def steps(self, planned: Container[Path]) -> Sequence[Step]:
        """The steps that make it, after those with the outputs `planned`."""
        return [] if self.is_kept else [self]

    def require(self) -> None:
        """Raise CaiError, before any step runs, if it cannot be made."""

    def seconds(self) -> float | None:
        """About the seconds that making it takes; None if that is not known."""
        return self.rate and self.rate.seconds(self.run.sample)

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        """Add to the results of the run what is known once it is made."""


def walk(artifacts: Iterable[Artifact]) -> Iterator[Artifact]:
    """Yield artifacts, each after all that it is made from, and some several times."""
    for each in artifacts:
        yield from walk(each.made_from)
        yield each


class CheckedCollection(Artifact):
    """The counts of a collection without broken records, and of what SPLADE truncates if it is to read them."""

    rate = Rate(0.5, 0.05, 0.2)

    def __init__(self, run: RunFolder, is_encoded: bool):
        super().__init__(run, "check", "collection.json")
        self.is_encoded = is_encoded

    def make(self) -> Path:
        run = self.run
        return check(run.collection, run.split, self.output, run.reading if self.is_encoded else None)


class AdaptedEncoders(Artifact):
    """A SPLADE encoder that is adapted to the collection, and a dense one in the subfolder `dense`."""

    def __init__(self, run: RunFolder):
        super().__init__(run, "adapt", "adapted")
        self.is_kept = run.adaptation is None

    def steps(self, planned: Container[Path]) -> Sequence[Step]:
        if self.run.adaptation is None:
            return []
        from cai_pyserini.trainer.adapt import steps  # needs the extra `trainer`

        return steps(self.run.adaptation, planned=planned)

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        results.decision += manifest.stats["decision"]


@dataclass(frozen=True)
class RunEncoder:
    """An encoder of a run, adapted to the collection or as it is."""

    run: RunFolder
    adapted: bool = False

    idf_suffix: ClassVar[str] = ""

    @property
    def prefix(self) -> str:
        """The beginning of the names of its vectors."""
        return ADAPTED * self.adapted

    @property
    def made_from(self) -> list[Artifact]:
        return [AdaptedEncoders(self.run)] if self.adapted else []

    def config(self) -> EncoderConfig:
        """Its settings. Raises CaiError if it is adapted, but does not exist yet."""
        raise NotImplementedError

    def weighted(self, idf: "Idf | None") -> EncoderConfig:
        """Its settings for documents that are weighted with an IDF, and for first passages."""
        return with_weights(self.config(), self.run, idf)

    def opened(self) -> EncoderModel:
        if self not in self.run.encoders:
            self.run.encoders[self] = EncoderModel(
                self.config(), self.run.experiment.device, self.run.experiment.precision
            )
        return self.run.encoders[self]

    def documents(self) -> "Documents":
        return EncodedDocuments(self)

    def for_estimates(self) -> EncoderModel:
        """An encoder that takes the same time, before any step has run."""
        return self.opened()

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        """Add to the results of the run what the vectors of documents are."""


@dataclass(frozen=True)
class SpladeEncoder(RunEncoder):
    def config(self) -> EncoderConfig:
        experiment = self.run.experiment
        config = load_encoder(str(self.run.adapted)) if self.adapted else experiment.encoder
        return config.fast() if experiment.search == "fast" else config

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        if results.nonzeros_per_document is None:
            results.nonzeros_per_document = manifest.stats["nonzeros"] / manifest.stats["vectors"]
            results.precision = manifest.recipe["inputs"]["encoder"]["precision"]


@dataclass(frozen=True)
class WordsEncoder(RunEncoder):
    """What indexes of words alone have in place of an encoder."""

    def config(self) -> EncoderConfig:
        return load_encoder("words")


@dataclass(frozen=True)
class DenseEncoder(RunEncoder):
    formula: IdfFormula | None = None  # of an IDF that weights tokens

    idf_suffix = "-dense"

    @property
    def title(self) -> str:
        """The name of its system and its index."""
        return f"{ADAPTED * self.adapted}dense{f'-{self.formula}' if self.formula else ''}"

    @property
    def prefix(self) -> str:
        return f"{self.title}-"

    @property
    def idf(self) -> "Idf | None":
        return Idf(self, self.formula) if self.formula else None

    @property
    def made_from(self) -> list[Artifact]:
        return [*([self.idf] if self.idf else []), *super().made_from]

    def config(self) -> EncoderConfig:
        run = self.run
        config = load_encoder(str(run.adapted / "dense")) if self.adapted else run.experiment.dense
        return with_weights(config or run.experiment.encoder, run, self.idf)

    def documents(self) -> "Documents":
        return ProjectedDocuments(self) if self.adapted and not self.formula else EncodedDocuments(self)

    def for_estimates(self) -> EncoderModel:
        return replace(self, formula=None).opened()


def with_weights(config: EncoderConfig, run: RunFolder, idf: "Idf | None") -> EncoderConfig:
    first_passage = run.experiment.collection.weight_of_first_passage
    power = {} if idf is None or idf.power is None else {"idf_power": idf.power}
    return config.replace(idf=str(idf.output) if idf else None, first_passage=first_passage, **power)


class Idf(Artifact):
    """The IDF of an encoder's tokens."""

    rate = Rate(0.5, 0.05, 0.2)

    def __init__(self, encoder: RunEncoder, weighting: str = "idf"):
        self.formula, self.power = WEIGHTINGS[weighting]
        name = f"{ADAPTED * encoder.adapted}{self.formula}{encoder.idf_suffix}"
        super().__init__(encoder.run, name, name, *RunEncoder(encoder.run, encoder.adapted).made_from)
        self.encoder, self.weighting = encoder, weighting

    def make(self) -> Path:
        return compute(self.run.collection, self.encoder.config(), self.output, self.formula)


class Documents(Artifact):
    """Vectors of the documents."""

    def __init__(self, encoder: RunEncoder, work: str, *made_from: Artifact, suffix: str = ""):
        name = f"{encoder.prefix}documents{suffix}"
        super().__init__(encoder.run, f"{work} {name}", f"vectors/{name}", *made_from)
        self.encoder = encoder

    def vectors(self) -> Vectors:
        return Vectors(self.run.require(self.output))


class EncodedDocuments(Documents):
    remedy = "precision int8 (without a GPU), a smaller encoder, or fewer tokens per document (max_document_length)"

    def __init__(self, encoder: RunEncoder):
        super().__init__(encoder, "encode", *encoder.made_from)

    def require(self) -> None:
        if not self.encoder.adapted:  # the adapted one may not exist yet
            self.encoder.opened().require_loadable("documents")

    def make(self) -> Path:
        run, encoder = self.run, self.encoder
        earlier = EncodedDocuments(replace(encoder, run=run.earlier)).output if run.earlier else None
        batch_size = run.experiment.batch_size
        return encode(run.collection, encoder.opened(), self.output, batch_size=batch_size, earlier=earlier)

    def seconds(self) -> float | None:
        """The seconds to encode the documents that neither an unfinished output nor the cache has."""
        if self.encoder.adapted or self.run.earlier:
            return None
        encoder, sample = self.encoder.for_estimates(), self.run.sample
        per_document, documents = sample.tokens(encoder), sample.documents
        if per_document * documents >= FEW_TOKENS:
            if not artifact.read_manifest(self.output) and (shards := len(list(self.output.glob("*.npz")))):
                documents = max(documents - shards * SHARD, 0)
            else:
                documents *= len(uncached(encoder, "documents", sample.texts)) / len(sample.texts)
        return sample.encoding_seconds(encoder, per_document * documents)

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        self.encoder.collect(results, manifest)


class ProjectedDocuments(Documents):
    """The vectors of an adapted dense encoder: those of the encoder before, projected."""

    rate = Rate(0.2, 0.02)

    def __init__(self, encoder: RunEncoder):
        self.plain = EncodedDocuments(DenseEncoder(encoder.run))
        super().__init__(encoder, "project", self.plain, *encoder.made_from)

    def make(self) -> Path:
        return project_vectors(Vectors(self.plain.output), self.encoder.opened(), self.output)


class EncodedQueries(Artifact):
    def __init__(self, encoder: RunEncoder):
        name = f"{encoder.prefix}queries-{encoder.run.split}"
        super().__init__(encoder.run, f"encode {name}", f"vectors/{name}", *encoder.made_from)
        self.encoder = encoder

    def require(self) -> None:
        if not self.encoder.adapted:
            self.encoder.opened().require_loadable("queries")

    def make(self) -> Path:
        run, batch_size = self.run, self.run.experiment.batch_size
        encoder = self.encoder.opened()
        return encode(run.collection, encoder, self.output, "queries", split=run.split, batch_size=batch_size)

    def seconds(self) -> float | None:
        if self.encoder.adapted or self.run.earlier:
            return None
        queries = [*self.run.topics.values()]
        encoder, sample = self.encoder.for_estimates(), sampled(queries)
        tokens = count_tokens(encoder, sample, "queries") * len(queries) / len(sample)
        return encoding_seconds(encoder, tokens, sample, "queries")
