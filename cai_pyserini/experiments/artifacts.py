"""The artifacts of a run: what each is made from, by which function, where it is, what it takes, how it is opened.

A system (experiments.systems) is built from them, and `experiments.plan` walks from there to all that must be made.
Here are those that `run --systems joint` makes; experiments.branches has the others.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cai_pyserini.collections.check import check
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, IdfFormula, load_encoder
from cai_pyserini.core.steps import Step
from cai_pyserini.experiments.sample import Rate, Size, sampled
from cai_pyserini.experiments.systems import ADAPTED
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.retrieve import search, word_queries
from cai_pyserini.indexes.words import count_words
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.models.idf import compute
from cai_pyserini.runs.measures import evaluate
from cai_pyserini.runs.trec import removes_query
from cai_pyserini.vectors import weighting
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.encode import encode, uncached
from cai_pyserini.vectors.queries import Queries, Representation
from cai_pyserini.vectors.shards import SHARD, Vectors
from cai_pyserini.vectors.speed import FEW_TOKENS, count_tokens, encoding_seconds

if TYPE_CHECKING:
    from cai_pyserini.experiments.results import Results
    from cai_pyserini.experiments.run_folder import RunFolder
    from cai_pyserini.experiments.systems import System

LINE_BYTES = 60  # size of a hit in a run
FORWARD_BYTES = 1.5  # size of a forward index per character that an encoder reads
FEWER_SYSTEMS = "fewer systems"


class Artifact:
    """An artifact of a run, and the step that makes it. `place` is its path in the run folder; `made_from` are other
    artifacts, None being left out."""

    rate: Rate | None = None
    size = Size()
    remedy = ""
    is_kept = False  # stays what it is: no step makes it

    def __init__(self, run: "RunFolder", name: str, place: str, *made_from: "Artifact | None"):
        self.run, self.name, self.output = run, name, run.place(place)
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

    def bytes(self) -> float:
        """About the bytes that it has; 0 if these are few."""
        return self.size.bytes(self.run.sample)

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        """Add to the results of the run what is known once it is made."""


def walk(artifacts: Iterable[Artifact]) -> Iterator[Artifact]:
    """Yield artifacts, each after all that it is made from, and some several times."""
    for each in artifacts:
        yield from walk(each.made_from)
        yield each


class CheckedCollection(Artifact):
    """The counts of a collection without broken records, and of what SPLADE truncates if it is to read them."""

    rate = Rate(0.5, 0.05, 0.2)

    def __init__(self, run: "RunFolder", is_encoded: bool):
        super().__init__(run, "check", "collection.json")
        self.is_encoded = is_encoded

    def make(self) -> Path:
        run = self.run
        return check(run.collection, run.split, self.output, run.reading if self.is_encoded else None)


@dataclass(frozen=True)
class RunEncoder:
    """An encoder of a run, adapted to the collection or as it is."""

    run: "RunFolder"
    adapted: bool = False

    vectors_size: ClassVar[Size]
    idf_suffix: ClassVar[str] = ""

    @property
    def prefix(self) -> str:
        """The beginning of the names of its vectors."""
        return ADAPTED * self.adapted

    @property
    def made_from(self) -> list[Artifact]:
        return [self.run.artifacts.adapted_encoders()] if self.adapted else []

    def config(self) -> EncoderConfig:
        """Its settings. Raises CaiError if it is adapted, but does not exist yet."""
        raise NotImplementedError

    def weighted(self, idf: "Idf | None") -> EncoderConfig:
        """Its settings for documents that are weighted with an IDF, and for first passages."""
        return with_weights(self.config(), self.run, idf)

    def opened(self) -> Encoder:
        if self not in self.run.encoders:
            self.run.encoders[self] = Encoder(self.config(), self.run.experiment.device, self.run.experiment.precision)
        return self.run.encoders[self]

    def documents(self) -> "Documents":
        return EncodedDocuments(self)

    def for_estimates(self) -> Encoder:
        """An encoder that takes the same time, before any step has run."""
        return self.opened()

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        """Add to the results of the run what the vectors of documents are."""


@dataclass(frozen=True)
class SpladeEncoder(RunEncoder):
    vectors_size = Size(per_read=2.5)

    def config(self) -> EncoderConfig:
        experiment = self.run.experiment
        config = load_encoder(str(self.run.adapted)) if self.adapted else experiment.encoder
        return config.fast() if experiment.search == "fast" else config

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        if results.nonzeros_per_document is None:
            results.nonzeros_per_document = manifest.stats["nonzeros"] / manifest.stats["vectors"]
            results.precision = manifest.recipe["inputs"]["encoder"]["precision"]


def with_weights(config: EncoderConfig, run: "RunFolder", idf: "Idf | None") -> EncoderConfig:
    first_passage = run.experiment.collection.weight_of_first_passage
    return config.replace(idf=str(idf.output) if idf else None, first_passage=first_passage)


class Idf(Artifact):
    """The IDF of an encoder's tokens."""

    rate = Rate(0.5, 0.05, 0.2)

    def __init__(self, encoder: RunEncoder, formula: IdfFormula):
        name = f"{ADAPTED * encoder.adapted}{formula}{encoder.idf_suffix}"
        super().__init__(encoder.run, name, name, *RunEncoder(encoder.run, encoder.adapted).made_from)
        self.encoder, self.formula = encoder, formula

    def make(self) -> Path:
        return compute(self.run.collection, self.encoder.config(), self.output, self.formula)


class Documents(Artifact):
    """Vectors of the documents."""

    def __init__(self, encoder: RunEncoder, work: str, *made_from: Artifact, suffix: str = ""):
        name = f"{encoder.prefix}documents{suffix}"
        super().__init__(encoder.run, f"{work} {name}", f"vectors/{name}", *made_from)
        self.encoder, self.size = encoder, encoder.vectors_size

    def vectors(self) -> Vectors:
        return Vectors(self.run.require(self.output))


class EncodedDocuments(Documents):
    remedy = "a smaller encoder, or fewer tokens per document (max_document_length)"

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

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        self.encoder.collect(results, manifest)


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


class Words(Artifact):
    """How often documents have words, as BM25 counts them."""

    rate = Rate(1.0, 0.2, 0.7)
    size = Size(per_character=1.0)

    def __init__(self, run: "RunFolder"):
        super().__init__(run, "words", "words")

    def make(self) -> Path:
        return count_words(self.run.collection, self.output)


class Impacts(Artifact):
    """The integers of an index: of SPLADE, and of BM25's words if it is joint. `title` is the name of the index."""

    rate = Rate(1.0, 0.1, 0.05)
    remedy = FEWER_SYSTEMS

    def __init__(
        self, title: str, vectors: Documents, idf: Idf | None, words: Words | None, near_words: Artifact | None = None
    ):
        self.title, self.encoder = title, vectors.encoder
        self.vectors, self.idf, self.words, self.near_words = vectors, idf, words, near_words
        self.size = Size(per_read=9.0, per_character=3.5) if words else Size(per_read=5.0)
        super().__init__(vectors.run, f"impacts {title}", f"impacts/{title}", vectors, near_words, idf, words)

    def index_size(self) -> Size:
        forward = FORWARD_BYTES * self.encoder.config().forward_index
        return Size(per_read=1.2 + forward, per_character=0.9 * (self.words is not None))

    def make(self) -> Path:
        return self._write(self.encoder.weighted(self.idf), self._bm25(self.run.experiment.alpha))

    def _bm25(self, alpha: float | None) -> Bm25 | None:
        parameters = self.run.experiment.collection.bm25
        near_words = self.near_words.output if self.near_words else None
        return Bm25(self.words.output, parameters, alpha, near_words) if self.words else None

    def _write(self, config: EncoderConfig, bm25: Bm25 | None) -> Path:
        vectors, threads = Vectors(self.vectors.output), self.run.experiment.threads
        return weighting.write_impacts(vectors, config, self.output, bm25, self.encoder.opened(), threads)

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        results.quantization_loss[self.title] = manifest.stats["loss"]
        if self.words:
            results.alpha[self.title] = manifest.stats["alpha"]


class Index(Artifact):
    """What systems search; those that differ in their queries alone share one."""

    rate = Rate(2.0, 0.1, 0.1)
    remedy = FEWER_SYSTEMS
    stores_documents = True

    def __init__(self, run: "RunFolder", title: str, *made_from: Artifact):
        super().__init__(run, f"index {title}", f"indexes/{title}", *made_from)
        self.title = title

    def encoded_queries(self, query: Representation | None) -> EncodedQueries | None:
        """The vectors of queries in a representation; None for those that no model encodes."""
        return None

    def queries(self, query: Representation | None) -> Queries:
        """The queries in the form that it is searched with."""
        return Queries(self.run.topics)

    def query_encoder(self) -> EncoderConfig | None:
        """The settings of the encoder of queries; None if the index has them, or needs none."""
        return None

    def open_impacts(self) -> weighting.Impacts | None:
        """Its impacts, recomputed from what they are made from; None if it has none."""
        return None

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        results.index_bytes[self.title] = manifest.stats["bytes"]


class ImpactIndex(Index):
    def __init__(self, impacts: Impacts):
        super().__init__(impacts.run, impacts.title, impacts)
        self.impacts, self.encoder = impacts, impacts.encoder

    def bytes(self) -> float:
        return self.impacts.index_size().bytes(self.run.sample)

    def make(self) -> Path:
        experiment, stored = self.run.experiment, self.run.collection if self.run.experiment.raw else None
        forward = self.encoder.config().forward_index  # impacts may still have earlier settings
        impacts = self.impacts.output
        return index_impacts(impacts, self.output, stored, experiment.threads, forward_index=forward)

    def encoded_queries(self, query: Representation | None) -> EncodedQueries | None:
        return EncodedQueries(self.encoder) if query == "splade" else None

    def queries(self, query: Representation | None) -> Queries:
        run, encoded = self.run, self.encoded_queries(query)
        words = word_queries(load_encoder(str(run.require(self.output)))) if self.impacts.words else None
        vectors = run.require(encoded.output) if encoded else None
        return Queries(run.topics, self.encoder.opened(), query, vectors, words)

    def open_impacts(self) -> weighting.Impacts:
        words, near_words = (each.output if each else None for each in (self.impacts.words, self.impacts.near_words))
        index, vectors = self.run.require(self.output), self.impacts.vectors.output
        return weighting.impacts_of_index(index, vectors, words, near_words)


class Ranking(Artifact):
    """The TREC run of a system."""

    remedy = FEWER_SYSTEMS
    method: str | None = None  # of fusion
    chosen: Artifact | None = None  # weights of the parts, if they are chosen from the documents

    def __init__(self, work: str, system: "System", run: "RunFolder", *made_from: Artifact | None):
        super().__init__(run, f"{work} {system.name}", f"runs/{system.long_name}.trec", *made_from)
        self.system = system

    def weights(self) -> tuple[float, ...] | None:
        """The weights of the parts; None if all are 1, or if there are no parts."""
        return None

    def bytes(self) -> float:
        run = self.run
        return LINE_BYTES * len(run.topics) * min(run.experiment.collection.hits, run.sample.documents)


class Search(Ranking):
    rate = Rate(0.001, 0.00001)  # per query
    start = 2.0  # seconds

    def __init__(self, system: "System", run: "RunFolder"):
        self.index = system.index(run)
        super().__init__("search", system, run, self.index, self.index.encoded_queries(system.query))

    def make(self) -> Path:
        run, collection = self.run, self.run.experiment.collection
        return search(
            self.index.output,
            self.index.queries(self.system.query),
            self.output,
            hits=collection.hits,
            remove_query=removes_query(collection.remove_query, run.qrels),
            bm25=collection.bm25,
            threads=run.experiment.threads,
            tag=self.system.name,
            passages=bool(collection.passages),
        )

    def seconds(self) -> float:
        return self.start + len(self.run.topics) * self.rate.seconds(self.run.sample)


class Evaluation(Artifact):
    """The measures of a ranking, by query."""

    rate = Rate(0.5)

    def __init__(self, system: "System", run: "RunFolder"):
        self.ranking = system.ranking(run)
        name, place = f"evaluate {system.name}", f"evaluations/{system.long_name}.json"
        super().__init__(run, name, place, self.ranking)

    def make(self) -> Path:
        return evaluate(self.ranking.output, self.run.qrels or {}, self.output)
