"""The indexes that systems search, and what they are made from besides vectors; see experiments.artifacts."""

from dataclasses import replace
from math import sqrt
from pathlib import Path

from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.collections.spans import CONTEXTS, SPANS_PER_TEXT
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.artifacts import (
    Artifact,
    DenseEncoder,
    Documents,
    EncodedDocuments,
    EncodedQueries,
    Idf,
    RunEncoder,
    SpladeEncoder,
    WordsEncoder,
)
from cai_pyserini.experiments.chosen_artifacts import IdfPower
from cai_pyserini.experiments.estimate import Rate
from cai_pyserini.experiments.experiment import Results
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import ADAPTED, DenseSystem, SpladeSystem, System, TextSystem, WordSystem
from cai_pyserini.indexes.dense_index import index_dense
from cai_pyserini.indexes.impact_index import index_impacts
from cai_pyserini.indexes.retrieve import word_queries
from cai_pyserini.indexes.text_index import GENERATED, index_bm25
from cai_pyserini.indexes.words import LEXICON, count_grams, count_words
from cai_pyserini.vectors import weighting
from cai_pyserini.vectors.bm25 import Bm25
from cai_pyserini.vectors.near_documents import mix_near
from cai_pyserini.vectors.near_words import find_near_words
from cai_pyserini.vectors.neighbours import find_neighbours
from cai_pyserini.vectors.queries import Queries, Representation
from cai_pyserini.vectors.shards import Vectors

CONTEXT_TOKENS, WORD_TOKENS = 16, 8  # with padding, of what vectors.near_words encodes
WORDS_PER_ROOT = 4.5  # words in two documents or more, per square root of a character
FEWER_SYSTEMS = "fewer systems"
NO_NEIGHBOURS = "no dense encoder, or systems that need no neighbours (no -near, no trio)"


def index_of(system: System, run: RunFolder) -> "Index":
    """The index that a system searches. Raises ValueError for a system that has none of its own."""
    match system:
        case TextSystem():
            return TextIndex(run, system)
        case DenseSystem():
            return DenseIndex(DenseEncoder(run, system.adapted, system.formula))
        case WordSystem():
            return ImpactIndex(WordImpacts(system, WordsEncoder(run, system.adapted)))
        case SpladeSystem():
            encoder = SpladeEncoder(run, system.adapted)
            vectors = NearDocuments(encoder) if system.near else encoder.documents()
            idf = Idf(encoder, system.weighting) if system.weighting else None
            words = Words(run) if system.joint else None
            near_words = NearWords(run, system.adapted) if system.joint and system.near else None
            return ImpactIndex(Impacts(system.index_name, encoder, vectors, idf, words, near_words))
    raise ValueError(f"{system.name} has no index of its own")


class Words(Artifact):
    """How often documents have words, as BM25 counts them."""

    rate = Rate(1.0, 0.2, 0.7)

    def __init__(self, run: RunFolder):
        super().__init__(run, "words", "words")

    def make(self) -> Path:
        return count_words(self.run.collection, self.output)


class Grams(Artifact):
    """How often documents have n-grams of words."""

    rate = Rate(1.0, 0.2, 0.7)

    def __init__(self, run: RunFolder):
        super().__init__(run, "grams", "grams")

    def make(self) -> Path:
        return count_grams(self.run.collection, self.output)


class Neighbours(Artifact):
    """Each document's nearest ones by dense vectors; by those of the adapted encoder if `adapted`."""

    rate = Rate(0.2, 0.3)
    remedy = NO_NEIGHBOURS

    def __init__(self, run: RunFolder, adapted: bool):
        self.vectors = DenseEncoder(run, adapted).documents()
        super().__init__(run, name := f"{ADAPTED * adapted}near", name, self.vectors)

    def make(self) -> Path:
        return find_neighbours(Vectors(self.vectors.output), self.output)


class NearDocuments(Documents):
    """SPLADE vectors that are mixed with those of near documents."""

    rate = Rate(0.2, 0.1)
    remedy = NO_NEIGHBOURS

    def __init__(self, encoder: RunEncoder):
        self.raw, self.near = EncodedDocuments(encoder), Neighbours(encoder.run, encoder.adapted)
        super().__init__(encoder, "near", self.raw, self.near, suffix="-near")
        self.name = f"{encoder.prefix}near-documents"

    def make(self) -> Path:
        return mix_near(Vectors(self.raw.output), Vectors(self.near.output, "near"), self.output)


class NearWords(Artifact):
    """Words that a dense encoder associates with documents, and words of near documents."""

    rate = Rate(2.0, 0.5)  # besides encoding
    remedy = NO_NEIGHBOURS

    def __init__(self, run: RunFolder, adapted: bool):
        self.encoder = DenseEncoder(run, adapted)
        self.words, self.vectors, self.near = Words(run), self.encoder.documents(), Neighbours(run, adapted)
        name = f"{ADAPTED * adapted}near-words"
        super().__init__(run, name, name, self.words, self.vectors, self.near)

    def make(self) -> Path:
        words, near = Vectors(self.words.output, "words"), Vectors(self.near.output, "near")
        return find_near_words(words, Vectors(self.vectors.output), near, self.encoder.opened(), self.output)

    def seconds(self) -> float | None:
        if self.encoder.adapted:
            return None
        sample = self.run.sample
        contexts = min(CONTEXTS, SPANS_PER_TEXT * sample.documents)
        words = min(LEXICON, WORDS_PER_ROOT * sqrt(sample.characters))
        tokens = CONTEXT_TOKENS * contexts + WORD_TOKENS * words
        return self.rate.seconds(sample) + sample.encoding_seconds(self.encoder.opened(), tokens)


class Impacts(Artifact):
    """The integers of an index: of SPLADE, and of BM25's words if it is joint. `title` is the name of the index."""

    rate = Rate(1.0, 0.1, 0.05)
    remedy = FEWER_SYSTEMS

    def __init__(
        self,
        title: str,
        encoder: RunEncoder,
        vectors: Documents | None,
        idf: Idf | None,
        words: Words | None,
        near_words: Artifact | None = None,
        grams: Grams | None = None,
    ):
        self.title, self.encoder, self.grams = title, encoder, grams
        self.vectors, self.idf, self.words, self.near_words = vectors, idf, words, near_words
        self.power = IdfPower(encoder, idf, Words(encoder.run)) if idf and idf.weighting == "auto" else None
        made_from = vectors, near_words, idf, self.power, words, grams
        super().__init__(encoder.run, f"impacts {title}", f"impacts/{title}", *made_from)

    def make(self) -> Path:
        config = self.encoder.weighted(self.idf)
        if self.power:
            config = config.replace(idf_power=self.power.value())
        return self._write(config, self._bm25(self.run.experiment.alpha))

    def _bm25(self, alpha: float | None) -> Bm25 | None:
        parameters = self.run.experiment.collection.bm25
        near_words, grams = (each.output if each else None for each in (self.near_words, self.grams))
        return Bm25(self.words.output, parameters, alpha, near_words, grams=grams) if self.words else None

    def _write(self, config: EncoderConfig, bm25: Bm25 | None) -> Path:
        vectors, threads = Vectors(self.vectors.output) if self.vectors else None, self.run.experiment.threads
        return weighting.write_impacts(vectors, config, self.output, bm25, self.encoder.opened(), threads)

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        results.quantization_loss[self.title] = manifest.stats["loss"]
        if self.words:
            results.alpha[self.title] = manifest.stats["alpha"]


class WordImpacts(Impacts):
    """The integers of BM25's words alone; in some systems with n-grams, words of near documents, associated words."""

    def __init__(self, system: WordSystem, encoder: WordsEncoder):
        self.documents_only = system.near and not system.associated
        near_words = NearWords(encoder.run, encoder.adapted) if system.near else None
        grams = Grams(encoder.run) if system.grams else None
        super().__init__(system.long_name, encoder, None, None, Words(encoder.run), near_words, grams)

    def make(self) -> Path:
        bm25 = self._bm25(alpha=1.0)
        return self._write(self.encoder.weighted(None), bm25 and replace(bm25, documents_only=self.documents_only))

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        """Nothing of SPLADE's, which this does not have."""


class Index(Artifact):
    """What systems search; those that differ in their queries alone share one."""

    rate = Rate(2.0, 0.1, 0.1)
    remedy = FEWER_SYSTEMS
    stores_documents = True

    def __init__(self, run: RunFolder, title: str, *made_from: Artifact):
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

    def collect(self, results: Results, manifest: artifact.Manifest) -> None:
        results.index_bytes[self.title] = manifest.stats["bytes"]


class ImpactIndex(Index):
    def __init__(self, impacts: Impacts):
        super().__init__(impacts.run, impacts.title, impacts)
        self.impacts, self.encoder = impacts, impacts.encoder

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
        made = self.impacts
        inputs = (each.output if each else None for each in (made.vectors, made.words, made.near_words, made.grams))
        return weighting.impacts_of_index(self.run.require(self.output), *inputs)


class DenseIndex(Index):
    stores_documents = False

    def __init__(self, encoder: DenseEncoder):
        self.encoder, self.vectors = encoder, encoder.documents()
        super().__init__(encoder.run, encoder.title, self.vectors)

    def make(self) -> Path:
        experiment, vectors = self.run.experiment, Vectors(self.vectors.output)
        first_passage = experiment.collection.weight_of_first_passage
        return index_dense(vectors, self.output, experiment.dense_index, experiment.threads, first_passage)

    def encoded_queries(self, query: Representation | None) -> EncodedQueries:
        return EncodedQueries(self.encoder)

    def queries(self, query: Representation | None) -> Queries:
        vectors = self.run.require(self.encoded_queries(query).output)
        return Queries(self.run.topics, self.encoder.opened(), "splade", vectors)

    def query_encoder(self) -> EncoderConfig:
        return self.encoder.config()


class TextIndex(Index):
    """The text of documents for BM25, with generated queries (doct5query) or without."""

    def __init__(self, run: RunFolder, system: TextSystem):
        super().__init__(run, system.long_name)
        self.generated = system.generated

    def require(self) -> None:
        self._generated()

    def _generated(self) -> Collection | None:
        if not self.generated:
            return None
        collection = load_collection(self.run.experiment.generated or "")
        if not collection.has_qrels(GENERATED):
            raise CaiError(f"{self.run.experiment.generated} has no queries of `cai-pyserini train generate`")
        return collection

    def make(self) -> Path:
        experiment = self.run.experiment
        return index_bm25(self.run.collection, self.output, experiment.threads, self._generated(), raw=experiment.raw)
