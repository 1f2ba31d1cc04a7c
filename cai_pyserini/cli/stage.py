"""`cai-pyserini stage`: the stages of a run, one at a time. A new one is a class here, and its line in STAGES."""

import logging
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from cai_pyserini.core import flags
from cai_pyserini.core.config import BM25, Bm25Parameters, IdfFormula
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import AnyPath, Command, Group, Main, flag

logger = logging.getLogger(__name__)


class Stage(Command):
    """A stage, whose `summary` is printed with the stats of its output.

    `each` is the number of non-zeros per vector, if the output has vectors.
    """

    recipe: ClassVar[str]  # its name in recipes
    summary: ClassVar[str]
    if TYPE_CHECKING:
        output: Path

    def execute(self) -> None:
        from cai_pyserini.core import artifact

        self.make()
        stats = artifact.require(self.output, self.recipe).stats
        each = stats["nonzeros"] / stats["vectors"] if {"nonzeros", "vectors"} <= stats.keys() else 0.0
        print(f"{self.output}: {self.describe(stats | {'each': each})}")

    def make(self) -> None:
        """Make the output. Slow modules are imported here."""
        raise NotImplementedError

    def describe(self, stats: dict[str, Any]) -> str:
        return self.summary.format(**stats)


class Idf(Stage):
    """Compute the IDF of an encoder's tokens in a collection."""

    recipe = "idf"
    summary = "{tokens:,} tokens in {documents:,} documents"
    example = "cai-pyserini stage idf --collection hpo --encoder splade-tiny --output idf"
    collection: str = flags.COLLECTION
    encoder: str = flags.ENCODER
    output: AnyPath = flags.OUTPUT_FOLDER
    formula: IdfFormula = flag("idf", "idf: ln(N / n); bm25idf: BM25's, ln(1 + (N - n + 0.5) / (n + 0.5))")

    def make(self) -> None:
        from cai_pyserini.collections.readers import load_collection
        from cai_pyserini.core.config import load_encoder
        from cai_pyserini.models.idf import compute

        compute(load_collection(self.collection), load_encoder(self.encoder), self.output, self.formula)


class Encode(Command):
    """Encode the documents or queries of a collection into raw vectors.

    If interrupted, run the same command again: it continues with the first missing shard.
    """

    example = "cai-pyserini stage encode --collection hpo --encoder splade-tiny --output vectors"
    shard_id: int = flag(0, "number of this command, from 0 to --shard-num - 1 (default: 0)", ge=0)
    shard_num: int = flag(1, "number of commands that share the work, each started with its own --shard-id", ge=1)
    collection: str = flags.COLLECTION
    encoder: str = flags.ENCODER
    output: AnyPath = flags.OUTPUT_FOLDER
    split: str | None = flag(None, "encode the queries of this split, such as test, instead of the documents")
    device: str = flags.DEVICE
    precision: Literal["auto", "float32", "bfloat16", "int8"] = flags.DOCUMENT_PRECISION
    batch_size: int | None = flags.BATCH_SIZE

    @model_validator(mode="after")
    def _check_shard(self) -> Self:
        if self.shard_id >= self.shard_num:
            raise ValueError(f"--shard-id {self.shard_id} is not from 0 to {self.shard_num - 1}")
        return self

    def execute(self) -> None:
        from cai_pyserini.collections.readers import load_collection
        from cai_pyserini.core.artifact import read_manifest
        from cai_pyserini.core.config import load_encoder
        from cai_pyserini.models.encoder import EncoderModel, Role
        from cai_pyserini.models.folder import warn_if_cut
        from cai_pyserini.vectors.encode import encode

        collection, config = load_collection(self.collection), load_encoder(self.encoder)
        encoder, output = EncoderModel(config, self.device, self.precision), self.output
        role: Role = "queries" if self.split else "documents"
        encoder.require_loadable(role)
        if role == "documents" and not self.shard_id:
            beginning = [document.contents for document in islice(collection.documents(), 2000)]
            warn_if_cut(encoder.config, beginning, collection.name)
        options = self.model_dump(include={"batch_size", "shard_id", "shard_num"})
        encode(collection, encoder, output, role, split=self.split or "", **options)
        manifest = read_manifest(output)
        if manifest is None:
            process = f"process {self.shard_id} of {self.shard_num}"
            print(f"{output}: the shards of {process} are finished, others are missing")
            return
        stats, vectors, seconds = manifest.stats, manifest.stats["vectors"], manifest.stats["encoding_seconds"]
        found = f", {stats['found']:,} of them encoded before" if stats["found"] else ""
        per_vector = stats["nonzeros"] / vectors
        size = f"{per_vector:.1f} non-zeros" if encoder.config.is_sparse else f"{per_vector:.0f} dimensions"
        print(
            f"{output}: {vectors:,} vectors, {size} per vector, "
            f"{vectors / max(seconds, 1e-3):,.0f} per second, "
            f"{manifest.recipe['inputs']['encoder']['precision']}{found}"
        )


class IdfPower(Stage):
    """Choose the power of IDF that documents are weighted with, without labels, as systems named auto do."""

    recipe = "idf power"
    summary = "{decision}"
    example = (
        "cai-pyserini stage idf-power --vectors vectors --idf idf --words words --encoder splade-tiny "
        "--output idf-power.json"
    )
    vectors: AnyPath = flags.VECTORS
    idf: AnyPath = flag(help="folder written by the idf stage")
    words: AnyPath = flag(help="folder written by the words stage")
    encoder: str = flag(help="encoder that the vectors were made with")
    output: AnyPath = flag(help="output file, JSON")
    device: str = flags.DEVICE

    def make(self) -> None:
        from cai_pyserini.core.config import load_encoder
        from cai_pyserini.models.encoder import EncoderModel
        from cai_pyserini.vectors.idf_power import choose_power
        from cai_pyserini.vectors.shards import Vectors

        encoder = EncoderModel(load_encoder(self.encoder), self.device)
        choose_power(Vectors(self.vectors), self.idf, self.words, encoder, self.output)


class Words(Stage):
    """Count the words of a collection as BM25 does, for an index of impacts, or the n-grams of its words."""

    recipe = "words"
    summary = "{words:,} words in {vectors:,} documents"
    example = "cai-pyserini stage words --collection hpo --output words"
    collection: str = flags.COLLECTION
    output: AnyPath = flags.OUTPUT_FOLDER
    grams: bool = flag(False, "count character n-grams in place of words")

    def make(self) -> None:
        from cai_pyserini.collections.readers import load_collection
        from cai_pyserini.indexes.words import count_grams, count_words

        (count_grams if self.grams else count_words)(load_collection(self.collection), self.output)


class Near(Stage):
    """Find the nearest neighbours of every document, by dense vectors.

    The stages near-documents and near-words mix documents with their neighbours. If interrupted, run the same command
    again: it continues with the first missing shard.
    """

    recipe = "near"
    summary = "{vectors:,} documents, {each:.1f} neighbours each, {search} search, recall {recall:.2f}"
    example = "cai-pyserini stage near --vectors dense-vectors --output near"
    vectors: AnyPath = flag(help="folder of dense vectors, written by the encode stage")
    output: AnyPath = flags.OUTPUT_FOLDER
    neighbours: int = flag(40, "number of neighbours per document", ge=1)

    def make(self) -> None:
        from cai_pyserini.vectors.neighbours import find_neighbours
        from cai_pyserini.vectors.shards import Vectors

        find_neighbours(Vectors(self.vectors), self.output, self.neighbours)


class NearDocuments(Stage):
    """Mix the raw SPLADE vector of each document with those of its nearest neighbours.

    The output replaces the raw vectors, for example in the impact stage. If interrupted, run the same command again: it
    continues with the first missing shard.
    """

    recipe = "smooth"
    summary = "{vectors:,} vectors, {each:.1f} non-zeros per vector"
    example = "cai-pyserini stage near-documents --vectors vectors --near near --output mixed"
    vectors: AnyPath = flag(help="folder of SPLADE vectors, written by the encode stage")
    near: AnyPath = flag(help="folder of the neighbours of the same documents, written by the near stage")
    output: AnyPath = flags.OUTPUT_FOLDER
    weight: float = flag(0.4, "weight of the neighbours' mean, from 0 to 1", ge=0, le=1)

    def make(self) -> None:
        from cai_pyserini.vectors.near_documents import mix_near
        from cai_pyserini.vectors.shards import Vectors

        mix_near(Vectors(self.vectors), Vectors(self.near, "near"), self.output, self.weight)


class NearWords(Stage):
    """Expand documents with words that a dense encoder associates with them, such as synonyms, and neighbours' words.

    The impact stage adds both to the words of a joint index. If interrupted, run the same command again: it continues
    with the first missing shard.
    """

    recipe = "expand"
    summary = "{each:.1f} weights and rates per document, with a lexicon of {lexicon:,} words"
    example = (
        "cai-pyserini stage near-words --words words --vectors dense --near near --encoder minilm --output near-words"
    )
    words: AnyPath = flag(help="folder written by the words stage")
    vectors: AnyPath = flag(help="folder of dense vectors of the same documents, written by the encode stage")
    near: AnyPath = flag(help="folder of the neighbours by these vectors, written by the near stage")
    encoder: str = flag(help="dense encoder that the vectors were made with")
    output: AnyPath = flags.OUTPUT_FOLDER
    device: str = flags.DEVICE

    def make(self) -> None:
        from cai_pyserini.core.config import load_encoder
        from cai_pyserini.models.encoder import EncoderModel
        from cai_pyserini.vectors.near_words import find_near_words
        from cai_pyserini.vectors.shards import Vectors

        encoder = EncoderModel(load_encoder(self.encoder).replace(kind="dense"), self.device)
        near = Vectors(self.near, "near")
        find_near_words(Vectors(self.words, "words"), Vectors(self.vectors), near, encoder, self.output)


class Impact(Stage):
    """Weight raw vectors with IDF and quantize them to integer impacts, as JSON vectors for Lucene."""

    recipe = "impact"
    summary = "{each:.1f} impacts per document, scale {document_scale:.3f}; quantization: {loss}"
    example = "cai-pyserini stage impact --vectors vectors --idf idf --encoder splade-tiny --output impacts"
    vectors: AnyPath | None = flag(None, "folder of vectors (default: none, for an index of --words alone)")
    encoder: str = flag("words", "encoder that the vectors were made with; words, for --words alone")
    output: AnyPath = flags.OUTPUT_FOLDER
    idf: str | None = flag(
        None, "folder written by the idf stage (default: the encoder's; if it has none, no weighting)"
    )
    idf_power: float | None = flag(
        None, "weight with the IDF to this power; 0.5: its square root (default: the encoder's, usually 1)", ge=0
    )
    words: AnyPath | None = flag(
        None, "folder written by the words stage; adds BM25, for a joint index of SPLADE and BM25"
    )
    alpha: float | None = flag(
        None,
        "with --words: weight of BM25 beside SPLADE (default: estimated, so that both have the same spread of scores)",
        gt=0,
    )
    near_words: AnyPath | None = flag(
        None, "with --words: folder written by the stage near-words; adds associated words and neighbours' words"
    )
    grams: AnyPath | None = flag(
        None, "with --words: folder written by the words stage with --grams; adds BM25 of character n-grams"
    )
    k1: float = flag(BM25.k1, "with --words: k1 of BM25", ge=0)
    b: float = flag(BM25.b, "with --words: b of BM25", ge=0, le=1)
    keep_terms: int | None = flag(
        None,
        "keep only this many SPLADE impacts per document, the largest (default: the encoder's)",
        ge=1,
    )
    keep_mass: float | None = flag(
        None,
        "keep only the largest SPLADE impacts of a document that make up this fraction of their sum (default: the "
        "encoder's)",
        gt=0,
        le=1,
    )
    bits: int | None = flag(None, "bits per impact (default: the encoder's, usually 10)", ge=1, le=16)
    threads: int = flags.THREADS

    def make(self) -> None:
        from cai_pyserini.core.config import EncoderConfig, load_encoder
        from cai_pyserini.models.folder import with_folder_settings
        from cai_pyserini.vectors.bm25 import Bm25
        from cai_pyserini.vectors.shards import Vectors
        from cai_pyserini.vectors.weighting import write_impacts

        if not self.words:
            for name in ("alpha", "near_words", "grams"):
                if getattr(self, name) is not None:
                    raise CaiError(f"--{name.replace('_', '-')} has no effect without --words")
            if not self.vectors:
                raise CaiError("neither --vectors nor --words: give one, or both for a joint index")
        bm25 = None
        if self.words:
            parameters = Bm25Parameters(self.k1, self.b)
            bm25 = Bm25(self.words, parameters, self.alpha, self.near_words, grams=self.grams)
        overrides = Impact.model_fields.keys() & EncoderConfig.model_fields.keys()
        changes = self.model_dump(include=overrides, exclude_none=True)
        config = with_folder_settings(load_encoder(self.encoder)).replace(**changes)
        if self.idf and config.idf_power == 0:
            raise CaiError(f"--idf {self.idf} has no effect, because {config.name} has idf_power 0: leave it out")
        if self.idf_power is not None and config.idf is None:
            raise CaiError("--idf-power has no effect without --idf")
        write_impacts(Vectors(self.vectors) if self.vectors else None, config, self.output, bm25, threads=self.threads)

    def describe(self, stats: dict[str, Any]) -> str:
        from cai_pyserini.vectors.quantization import loss_text

        text = super().describe(stats | {"loss": loss_text(stats["loss"])})
        alphas = ", ".join(f"{alpha:.3g} ({kind} queries)" for kind, alpha in (stats["alpha"] or {}).items())
        return f"{text}\nalpha, the weight of BM25: {alphas}" if alphas else text


class Index(Stage):
    """Write an index that Pyserini opens."""

    recipe = "index"
    output: AnyPath = flag(help="output folder for the index")
    threads: int = flags.THREADS

    def describe(self, stats: dict[str, Any]) -> str:
        size = f"{stats['documents']:,} documents, {stats['bytes'] / 1e6:.2f} MB"
        recalls = "".join(f", {name} {value:.3f}" for name, value in stats.items() if name.startswith("recall"))
        return f"{size}, in {stats['seconds']:.1f} s{recalls}"


class ImpactIndex(Index):
    """Index JSON vectors, from the impact stage or pyserini.encode, in Lucene."""

    example = "cai-pyserini stage index impact --input impacts --collection hpo --output index"
    input: AnyPath = flag(help="folder of JSON vectors, *.jsonl")
    collection: str | None = flag(None, "also store the documents of this collection, so that searches can show them")
    forward_index: bool | None = flag(
        None, "also store impacts by document, for a search in two steps (default: as the encoder's settings say)"
    )

    def make(self) -> None:
        from cai_pyserini.collections.readers import load_collection
        from cai_pyserini.indexes.impact_index import index_impacts

        collection = load_collection(self.collection) if self.collection else None
        index_impacts(self.input, self.output, collection, self.threads, forward_index=self.forward_index)


class Bm25Index(Index):
    """Index the text of a collection for BM25, with Anserini's analyzers."""

    example = "cai-pyserini stage index bm25 --collection hpo --output index"
    collection: str = flags.COLLECTION
    generated: str | None = flag(None, "BEIR folder of generated queries to append to their documents (docT5query)")
    no_raw: bool = flags.NO_RAW

    def make(self) -> None:
        from cai_pyserini.collections.readers import load_collection
        from cai_pyserini.indexes.text_index import index_bm25

        generated = load_collection(self.generated) if self.generated else None
        raw, collection = not self.no_raw, load_collection(self.collection)
        index_bm25(collection, self.output, self.threads, generated, raw=raw)


class DenseIndex(Index):
    """Index dense vectors with Faiss or Lucene.

    Graphs built by several threads, or by Lucene, differ from build to build. With --threads 1, Faiss always builds the
    same index from the same vectors.
    """

    example = "cai-pyserini stage index dense --vectors vectors --method hnsw --output index"
    vectors: AnyPath = flags.VECTORS
    method: flags.DenseMethod = flags.DENSE_METHOD

    def make(self) -> None:
        from cai_pyserini.indexes.dense_index import index_dense
        from cai_pyserini.vectors.shards import Vectors

        index_dense(Vectors(self.vectors), self.output, self.method, self.threads)


class Search(Stage):
    """Search an index with the queries of a collection, and write the TREC run."""

    recipe = "search"
    summary = "{queries:,} queries, {ms_per_query:.2f} ms per query"
    example = "cai-pyserini stage search --index index --collection hpo --output run.trec"
    index: AnyPath = flag(help="folder written by the index stage")
    collection: str = flags.COLLECTION
    output: AnyPath = flags.OUTPUT_RUN
    split: str | None = flags.SPLIT
    strict: bool | None = flags.STRICT
    hits: int | None = flag(None, "hits per query (default: the collection's, usually 1000)", ge=1)
    filter: str | None = flags.FILTER
    encoder: str | None = flag(None, "query encoder; a dense index needs it (default: that of the impact index)")
    query: Literal["splade", "bow"] | None = flags.QUERY
    k1: float | None = flag(None, "k1 of BM25 (default: the collection's, usually 0.9)", ge=0)
    b: float | None = flag(None, "b of BM25 (default: the collection's, usually 0.4)", ge=0, le=1)
    remove_query: Literal["auto", "always", "never"] | None = flags.REMOVE_QUERY
    device: str = flags.DEVICE
    threads: int = flags.THREADS

    def make(self) -> None:
        from cai_pyserini.collections.readers import open_collection
        from cai_pyserini.core.config import load_index_config
        from cai_pyserini.core.files import without_links
        from cai_pyserini.indexes.retrieve import queries_for, search
        from cai_pyserini.runs.trec import removes_query

        index = without_links(self.index)
        changes = self.model_dump(include={"k1", "b", "hits", "split", "remove_query", "strict"}, exclude_none=True)
        config = load_index_config(self.collection).replace(**changes)
        collection, split = open_collection(config), config.split
        qrels = collection.qrels(split) if collection.has_qrels(split) else None
        search(
            index,
            queries_for(index, collection.topics(split), self.encoder, self.query, self.device),
            self.output,
            hits=config.hits,
            remove_query=removes_query(config.remove_query, qrels),
            bm25=config.bm25,
            threads=self.threads,
            passages=bool(config.passages),
            filter=self.filter,
        )


STAGES: dict[str, type[Command] | Group] = {
    "idf": Idf,
    "idf-power": IdfPower,
    "encode": Encode,
    "words": Words,
    "near": Near,
    "near-documents": NearDocuments,
    "near-words": NearWords,
    "impact": Impact,
    "index": Group(
        "Write an index that Pyserini opens: of impacts, of text, or of dense vectors.",
        {"impact": ImpactIndex, "bm25": Bm25Index, "dense": DenseIndex},
    ),
    "search": Search,
}

main = Main(Group("Run one stage of `cai-pyserini run`.", STAGES), "stage")
