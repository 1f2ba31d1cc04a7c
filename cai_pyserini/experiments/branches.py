"""The artifacts off the main way: dense vectors, what is near, reranking, fusion; see experiments.artifacts."""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.collections.spans import CONTEXTS, SPANS_PER_TEXT
from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, IdfFormula, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.steps import Step
from cai_pyserini.experiments.artifacts import (
    Artifact,
    Documents,
    EncodedDocuments,
    EncodedQueries,
    Idf,
    ImpactIndex,
    Impacts,
    Index,
    Ranking,
    RunEncoder,
    Search,
    SpladeEncoder,
    Words,
    with_weights,
)
from cai_pyserini.experiments.sample import Rate, Size
from cai_pyserini.experiments.systems import ADAPTED
from cai_pyserini.indexes.dense_index import index_dense
from cai_pyserini.indexes.text_index import GENERATED, index_bm25
from cai_pyserini.indexes.words import LEXICON
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.runs.fuse import fuse
from cai_pyserini.runs.rerank import rerank
from cai_pyserini.vectors.encode import project_vectors
from cai_pyserini.vectors.near_documents import mix_near
from cai_pyserini.vectors.near_words import find_near_words
from cai_pyserini.vectors.neighbours import find_neighbours
from cai_pyserini.vectors.queries import Queries, Representation
from cai_pyserini.vectors.shards import Vectors

if TYPE_CHECKING:
    from cai_pyserini.experiments.results import Results
    from cai_pyserini.experiments.run_folder import RunFolder
    from cai_pyserini.experiments.systems import System

SEED = 42  # samples the pseudo queries that weights are chosen on
CONTEXT_TOKENS, WORD_TOKENS = 16, 8  # with padding, of what vectors.near_words encodes
WORDS_PER_ROOT = 4.5  # words in two documents or more, per square root of a character
SOURCES = 600  # documents that weights are chosen on, at most a twentieth of all, see trainer.choice
QUERIES_PER_SOURCE = 2
QUERY_TOKENS = 16
NO_NEIGHBOURS = "no dense encoder, or systems that need no neighbours (no -near, no trio)"


@dataclass(frozen=True)
class DenseEncoder(RunEncoder):
    formula: IdfFormula | None = None  # of an IDF that weights tokens

    vectors_size = Size(per_document=1_600)
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
        config = load_encoder(str(run.adapted_dense)) if self.adapted else run.experiment.dense
        return with_weights(config or run.experiment.encoder, run, self.idf)

    def documents(self) -> "Documents":
        return ProjectedDocuments(self) if self.adapted and not self.formula else EncodedDocuments(self)

    def for_estimates(self) -> Encoder:
        return replace(self, formula=None).opened()


class ProjectedDocuments(Documents):
    """The vectors of an adapted dense encoder: those of the encoder before, projected."""

    rate = Rate(0.2, 0.02)

    def __init__(self, encoder: RunEncoder):
        self.plain = EncodedDocuments(DenseEncoder(encoder.run))
        super().__init__(encoder, "project", self.plain, *encoder.made_from)

    def make(self) -> Path:
        return project_vectors(Vectors(self.plain.output), self.encoder.opened(), self.output)


class Neighbours(Artifact):
    """Each document's nearest ones by dense vectors; by those of the adapted encoder if `adapted`."""

    rate = Rate(0.2, 0.3)
    size = Size(per_document=400)
    remedy = NO_NEIGHBOURS

    def __init__(self, run: "RunFolder", adapted: bool):
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
    size = Size(per_document=1_200)
    remedy = NO_NEIGHBOURS

    def __init__(self, run: "RunFolder", adapted: bool):
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
        words = min(LEXICON, WORDS_PER_ROOT * sqrt(sample.characters()))
        tokens = CONTEXT_TOKENS * contexts + WORD_TOKENS * words
        return self.rate.seconds(sample) + sample.encoding_seconds(self.encoder.opened(), tokens)


class WordImpacts(Impacts):
    """The integers of BM25's words alone, and of words of near documents."""

    def __init__(self, title: str, encoder: SpladeEncoder):
        words, near_words = Words(encoder.run), NearWords(encoder.run, encoder.adapted)
        super().__init__(title, encoder.documents(), None, words, near_words)  # no weight of SPLADE is kept
        self.size = Size(per_character=3.5)

    def index_size(self) -> Size:
        return Size(per_character=1.1)

    def make(self) -> Path:
        bm25 = self._bm25(alpha=1.0)
        return self._write(
            self.encoder.weighted(None).replace(keep_terms=0), bm25 and replace(bm25, documents_only=True)
        )

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        """Nothing of SPLADE's, which this does not have."""


class DenseIndex(Index):
    size = Size(per_document=1_500)
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


class Weights(Artifact):
    """The weights of BM25, SPLADE and dense in their fusion, chosen from the documents or kept from an earlier run."""

    rate = Rate(5.0, 0.5)  # besides encoding
    remedy = "weights 2 1 2, without a choice"

    def __init__(self, run: "RunFolder"):
        self.splade, self.dense = SpladeEncoder(run), DenseEncoder(run)
        super().__init__(run, "weights", "weights.json", self.splade.documents(), self.dense.documents())
        self.is_kept = run.earlier is not None and artifact.read_manifest(self.output) is not None

    def make(self) -> Path:
        from cai_pyserini.trainer.adaptation_data import AdaptationData
        from cai_pyserini.trainer.choice import FEW_HELD_OUT, balance  # imports torch, which takes seconds

        experiment = self.run.experiment
        options = experiment.model_dump(include={"device", "precision", "depth"})
        options |= FEW_HELD_OUT | {"queries": 0, "seed": SEED}
        splade, dense = self.splade.config(), self.dense.config()
        return balance(AdaptationData(experiment.collection, splade, dense, self.run.vectors, **options), self.output)

    def seconds(self) -> float:
        sample, seconds = self.run.sample, self.rate.seconds(self.run.sample)
        queries = QUERIES_PER_SOURCE * min(SOURCES, sample.documents / 20)
        for encoder in (self.splade.opened(), self.dense.opened()):
            seconds += sample.encoding_seconds(encoder, queries * (sample.tokens(encoder) + QUERY_TOKENS))
        return seconds

    def values(self) -> tuple[float, ...]:
        return tuple(json.loads(self.run.require(self.output).read_text(encoding="utf-8")).values())

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        results.decision += manifest.stats["decision"]


class Fusion(Ranking):
    """The fusion of the parts' rankings."""

    chosen: Weights | None
    rate = Rate(0.5)

    def __init__(self, system: "System", run: "RunFolder"):
        self.rankings = [part.ranking(run) for part in system.parts]
        self.chosen = Weights(run) if run.experiment.balances(system) else None
        self.method = system.fusion
        super().__init__("fuse", system, run, *self.rankings, self.chosen)

    def weights(self) -> tuple[float, ...] | None:
        return self.chosen.values() if self.chosen else self.run.experiment.weights_of(self.system)

    def make(self) -> Path:
        experiment, runs = self.run.experiment, [ranking.output for ranking in self.rankings]
        depth, hits = experiment.depth, experiment.collection.hits
        return fuse(
            runs, self.output, self.system.fusion, depth=depth, hits=hits, tag=self.system.name, weights=self.weights()
        )


class Rerank(Ranking):
    """The first part's best documents in the order of a cross-encoder."""

    remedy = "rerank_minutes, or a smaller depth"

    def __init__(self, system: "System", run: "RunFolder"):
        self.first_stage = system.parts[0].ranking(run)
        super().__init__("rerank", system, run, self.first_stage)

    def require(self) -> None:
        from cai_pyserini.models.cross_encoder import require_reranker  # imports torch, which takes seconds

        resolve_device(self.run.experiment.device)
        require_reranker(self._checkpoint())

    def _checkpoint(self) -> Path:
        return load_checkpoint(self.run.experiment.cross_encoder or "")

    def make(self) -> Path:
        run, experiment = self.run, self.run.experiment
        return rerank(
            self.first_stage.output,
            run.topics,
            run.collection,
            self._checkpoint(),
            self.output,
            depth=experiment.depth,
            device=experiment.device,
            precision="auto" if experiment.precision == "int8" else experiment.precision,  # int8 is for documents only
            tag=self.system.name,
            minutes=experiment.rerank_minutes,
        )

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        results.decision += manifest.stats["decision"]


class TextIndex(Index):
    """The text of documents for BM25, with generated queries if `generated`."""

    size = Size(per_character=1.1)

    def __init__(self, run: "RunFolder", title: str, generated: bool):
        super().__init__(run, title)
        self.generated = generated

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


class AdaptedEncoders(Artifact):
    """A SPLADE encoder that is adapted to the collection, and a dense one in the subfolder `dense`."""

    def __init__(self, run: "RunFolder"):
        super().__init__(run, "adapt", "adapted")
        self.is_kept = run.adaptation is None

    def steps(self, planned: Container[Path]) -> Sequence[Step]:
        if self.run.adaptation is None:
            return []
        from cai_pyserini.trainer.adapt import steps  # needs the extra `trainer`

        return steps(self.run.adaptation, planned=planned)

    def collect(self, results: "Results", manifest: artifact.Manifest) -> None:
        results.decision += manifest.stats["decision"]


class Artifacts:
    """The artifacts that systems name, in one run; systems are declared without importing what makes these."""

    def __init__(self, run: "RunFolder"):
        self._run = run

    def adapted_encoders(self) -> Artifact:
        return AdaptedEncoders(self._run)

    def text_index(self, title: str, *, generated: bool) -> Index:
        return TextIndex(self._run, title, generated)

    def dense_index(self, adapted: bool, formula: IdfFormula | None) -> Index:
        return DenseIndex(DenseEncoder(self._run, adapted, formula))

    def impact_index(self, title: str, *, adapted: bool, formula: IdfFormula | None, joint: bool, near: bool) -> Index:
        run, encoder = self._run, SpladeEncoder(self._run, adapted)
        vectors = NearDocuments(encoder) if near else encoder.documents()
        near_words = NearWords(run, adapted) if joint and near else None
        idf, words = Idf(encoder, formula) if formula else None, Words(run) if joint else None
        return ImpactIndex(Impacts(title, vectors, idf, words, near_words))

    def word_index(self, title: str, *, adapted: bool) -> Index:
        return ImpactIndex(WordImpacts(title, SpladeEncoder(self._run, adapted)))

    def search(self, system: "System") -> Ranking:
        return Search(system, self._run)

    def rerank(self, system: "System") -> Ranking:
        return Rerank(system, self._run)

    def fusion(self, system: "System") -> Ranking:
        return Fusion(system, self._run)
