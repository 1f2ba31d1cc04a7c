"""`encoders/` and `index_configs/`: YAML files, found by name or by path."""

import logging
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from cai_pyserini.core.artifact import read_manifest
from cai_pyserini.core.errors import CaiError, did_you_mean
from cai_pyserini.core.identity import OMITTED
from cai_pyserini.core.metadata import NAME, Kind
from cai_pyserini.core.packages import PIP
from cai_pyserini.core.settings import Settings, build, read_yaml

PASSAGE = "#"  # passage ids are `document#number`, as with Pyserini's --max-passage; documents' ids may have it, too
PYSERINI = "pyserini:"  # prefix of the source of a collection that is a prebuilt index
WORD, GRAM = "bm25:", "gram:"  # prefixes of BM25's words, and of their n-grams, in a joint index; no token has them
JOINT_BITS = 7  # more bits changed no ranking
ColumnNames = dict[Literal["id", "title", "text"], str]
ANSERINI_LANGUAGES = (  # the values of Anserini's -language
    "ar", "bn", "da", "de", "en", "es", "fa", "fi", "fr", "ha", "hi", "hu", "id", "it", "ja", "ko", "nl", "no",
    "pl", "pt", "ru", "so", "sv", "sw", "te", "th", "tr", "uk", "yo", "zh",
)  # fmt: skip
LUCENE_LANGUAGES = {  # with an analyzer of Lucene's that Anserini does not offer: its class
    "bg": "bg.Bulgarian", "ca": "ca.Catalan", "ckb": "ckb.Sorani", "cs": "cz.Czech", "el": "el.Greek",
    "et": "et.Estonian", "eu": "eu.Basque", "ga": "ga.Irish", "gl": "gl.Galician", "hy": "hy.Armenian",
    "lt": "lt.Lithuanian", "lv": "lv.Latvian", "ne": "ne.Nepali", "ro": "ro.Romanian", "sr": "sr.Serbian",
    "ta": "ta.Tamil",
}  # fmt: skip
LANGUAGES = (  # these, and others that can be guessed, whose words are only found and put in lower case
    *ANSERINI_LANGUAGES, *LUCENE_LANGUAGES,
    "af", "am", "as", "az", "be", "br", "bs", "cy", "eo", "fo", "fy", "gd", "gu", "he", "hr", "ht", "is", "jv", "ka",
    "kk", "km", "kn", "ku", "ky", "lb", "lo", "mg", "mk", "ml", "mn", "mr", "ms", "mt", "my", "oc", "or", "pa", "ps",
    "rw", "sa", "si", "sk", "sl", "sq", "tg", "tk", "tl", "tt", "ug", "ur", "uz", "vi", "xh", "zu",
)  # fmt: skip
logger = logging.getLogger(__name__)
CHECKPOINTS = ("checkpoint", "query_checkpoint")  # keys whose values can also be Hugging Face ids or pip: paths
LOCATED = (*CHECKPOINTS, "query_weights", "idf", "projection")  # keys whose paths are relative to the YAML file

# Chosen in docs/experiments/scale.md.
FAST = {"forward_index": True, "keep_query_mass": 0.55, "rescore": 400}
IdfFormula = Literal["idf", "bm25idf"]  # see models.idf.FORMULAS
Shapes = Literal["vectors", "impacts", "index", "query vectors", "queries"]  # the results that a setting affects
POOLING = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")  # dense encoders have these
MIN_LOST = 0.01  # fraction of the tokens of documents that encoders may leave unread without a warning
BOTH: tuple[Shapes, ...] = ("vectors", "query vectors")
# Settings that can be read from the checkpoint folder; an encoder's YAML overrides them.
DESCRIBED = {
    *("kind", "max_document_length", "max_query_length", "query", "pooling", "activation", "max_active_dims"),
    *("document_prompt", "query_prompt", "dimensions", "similarity", "idf_power"),
}


def shapes(what: Shapes | tuple[Shapes, ...], default: Any = ..., **constraints: Any) -> Any:
    """Declare a setting that shapes these results, which are made again when it changes."""
    extra: dict[str, Any] = {"shapes": [what] if isinstance(what, str) else [*what]}
    return Field(default, json_schema_extra=extra, **constraints)


def document_of(id: str) -> str:
    """The document of a passage, by their ids; any other id unchanged."""
    document, _, number = id.rpartition(PASSAGE)
    return document if document and number.isdecimal() else id


def languages_in(language: str) -> list[str]:
    """The languages of a collection, one or several."""
    return language.split("+")


def joined_languages(languages: object) -> str:
    """One language, or several in alphabetical order, joined by a plus. Raises ValueError for others than LANGUAGES."""
    listed = languages_in(languages) if isinstance(languages, str) else languages
    if not isinstance(listed, list) or not listed or not all(each in LANGUAGES for each in listed):
        raise ValueError(f"should be one of {', '.join(sorted(LANGUAGES))}, or several, such as de+en")
    return "+".join(sorted({*listed}))


Language = Annotated[str, BeforeValidator(joined_languages)]  # of a collection: "de", or several, "de+en"
ENGLISH: Language = "en"


def tag_of(language: Language) -> str:
    """The language tag of texts in HTML; empty, for unknown, if they can be in several languages."""
    return language if language in LANGUAGES else ""


class Bm25Parameters(NamedTuple):
    """The parameters of BM25; the defaults are Anserini's."""

    k1: float = 0.9
    b: float = 0.4


BM25 = Bm25Parameters()


class Joint(Settings):
    """BM25 in a joint index: score = alpha * BM25 + SPLADE."""

    alpha: dict[Literal["splade", "bow"], float]  # by query representation
    range: float = Field(ge=1e-6)  # BM25 weight of the largest impact
    bits: int = Field(default=JOINT_BITS, ge=1, le=16)  # of BM25's impacts
    k1: float
    b: float
    expanded: bool = False  # with neighbours' words and associated words
    documents_only: bool = Field(default=False, exclude_if=lambda only: not only)  # with neighbours' words only
    grams: bool = Field(default=False, exclude_if=lambda grams: not grams)  # with n-grams of words
    language: Language = Field(default=ENGLISH, exclude_if=lambda language: language == ENGLISH)  # of the words

    @property
    def scale(self) -> float:
        """The impact of a weight of 1."""
        return (2**self.bits - 1) / self.range

    @property
    def bm25(self) -> Bm25Parameters:
        return Bm25Parameters(self.k1, self.b)


class EncoderConfig(Settings):
    """An encoder. Only the checkpoint is required; other settings default to the paper's, or to those in the checkpoint
    folder of a sentence-transformers model (models.folder)."""

    name: str
    checkpoint: str  # a folder, a Hugging Face model id, or pip:PACKAGE/PATH
    query_checkpoint: str | None = None  # separate model for queries, with the same vocabulary
    query_revision: str | None = None  # of a Hugging Face model for queries
    query_weights: str | None = None  # JSON, {token: weight}: weights for `query: bow`, in place of counts
    kind: Literal["splade", "dense"] = shapes("vectors", "splade")  # dense: for Faiss
    revision: str | None = None  # of a Hugging Face model
    pooling: str | None = shapes(BOTH, None)  # of tokens: mean (default), cls, …; of SPLADE always max
    activation: Literal["relu", "log1p_relu"] = shapes(BOTH, "relu")  # log(1 + relu(logit)), or log(1 + that)
    max_active_dims: int | None = shapes(BOTH, None, ge=1)  # keep only the largest weights of a SPLADE vector
    dimensions: int | None = shapes(BOTH, None, ge=1)  # keep only the first dimensions of a dense vector (Matryoshka)
    similarity: Literal["cosine", "dot"] = shapes(BOTH, "cosine")  # cosine: dense vectors are scaled to length 1
    document_prompt: str = shapes("vectors", "")  # text put before documents
    query_prompt: str = shapes("query vectors", "")  # text put before queries
    max_document_length: int = shapes("vectors", 256, ge=3)  # tokens, including [CLS] and [SEP]
    max_query_length: int = shapes("query vectors", 256, ge=3)
    query: Literal["splade", "bow"] = shapes("queries", "splade")  # bow: tokens without a model (SPLADE-Doc)
    binary_queries: bool = shapes("query vectors", False)  # every query term has weight 1
    expand_queries: bool = shapes("query vectors", True)  # False: a SPLADE query has only terms of its text
    idf: str | None = None  # folder written by the idf stage; without one, documents are not weighted
    idf_power: float = shapes("impacts", 1.0, ge=0)  # documents (dense: tokens) are weighted with idf ** idf_power
    projection: str | None = None  # safetensors file with a matrix that dense vectors are multiplied by
    bits: int = shapes("impacts", 10, ge=1, le=16)  # impacts are integers from 0 to 2 ** bits - 1
    range: float | None = shapes("impacts", None, ge=1e-6)  # weight of the largest impact; None: the largest weight
    keep_terms: int | None = shapes("impacts", None, ge=0)  # static pruning: impacts per document, the largest
    keep_mass: float | None = shapes("impacts", None, gt=0, le=1)  # or the largest that make up this share of the sum
    first_passage: float = shapes("impacts", 0.0, ge=0)  # its weight in all passages of a document; set by a run
    query_scale: int = shapes("impacts", 100, ge=1, le=100_000)  # query weights are round(weight * query_scale)
    forward_index: bool = shapes("index", False)  # impacts by document, for the second of two steps
    rescore: int | None = shapes("queries", None, ge=1)  # two steps: the whole query scores so many hits of the first
    keep_query_mass: float | None = shapes("queries", None, gt=0, le=1)  # share of weight * IDF in the first step
    joint: Joint | None = shapes("impacts", None)  # the index has BM25 words too; written by the impact stage
    source: str | None = None  # origin of the checkpoint; informative only

    @property
    def is_sparse(self) -> bool:
        """Whether vectors have a column per token, as SPLADE's; dense ones do not."""
        return self.kind == "splade"

    @property
    def only_words(self) -> bool:
        """Whether an index keeps nothing of SPLADE, and so only BM25's words."""
        return self.keep_terms == 0

    def needs_query_model(self, query: str | None = None) -> bool:
        """Whether a model encodes queries, in a representation or in the one of the settings."""
        return not self.is_sparse or (query or self.query) == "splade"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.rescore) != bool(self.keep_query_mass):
            raise ValueError("rescore, keep_query_mass: two steps need both")
        if self.projection and self.is_sparse:
            raise ValueError("projection: only a dense encoder has one, but kind is splade")
        poolings = ("max",) if self.is_sparse else POOLING
        if self.pooling not in (None, *poolings):
            raise ValueError(f"pooling: {self.pooling!r} is not one of {', '.join(poolings)} ({self.kind} encoders)")
        return self

    def fast(self) -> Self:
        """These settings, and FAST for those of a search in two steps that are not set."""
        return self.replace(**{key: value for key, value in FAST.items() if not getattr(self, key)})

    def unpruned(self) -> Self:
        """These settings without static pruning of documents."""
        return self.replace(keep_terms=None, keep_mass=None)

    def shaping(self, *what: Shapes, defaults: bool = False) -> dict[str, Any]:
        """The settings that shape these results, as JSON values, without paths; `defaults` includes unchanged ones."""
        extras = {name: field.json_schema_extra for name, field in type(self).model_fields.items()}
        shaped = {name: extra["shapes"] for name, extra in extras.items() if isinstance(extra, dict)}
        names = {name for name, results in shaped.items() if not {*what}.isdisjoint(results)}  # type: ignore[arg-type]
        query_time = {"joint": {"alpha"}}  # weights the BM25 words of queries
        return self.model_dump(mode="json", include=names, exclude=query_time, exclude_defaults=not defaults)

    @property
    def idf_folder(self) -> Path | None:
        return Path(self.idf) if self.idf else None


OMITTED.update({name: field.default for name, field in EncoderConfig.model_fields.items()}, language=ENGLISH)


class PublishedScore(Settings):
    """A score from the literature, shown beside the measured one."""

    system: str
    score: float  # nDCG@10
    source: str


class IndexConfig(Settings):
    """A collection to index and search, and scores to compare with."""

    name: str
    source: str  # a folder or file, ir_datasets:ID with {split} in it, pyserini:INDEX, or hpo
    topics: str | None = None  # for pyserini:INDEX, the topics' name in Pyserini; not needed for BEIR's collections
    split: str = "test"
    fields: list[Literal["title", "text"]] = Field(default=["title", "text"], min_length=1)  # joined by a space
    columns: ColumnNames = Field(default_factory=dict)  # names of the columns in document files
    query_columns: ColumnNames = Field(default_factory=dict)  # names of the columns in the query file
    metadata: dict[str, Kind] = Field(default_factory=dict)  # names and types of fields to filter searches by
    base_url: str | None = None  # of a folder of files: paths after it are the metadata `url`
    strict: bool = False  # refuse judgments of missing documents, empty queries, and files that cannot be read
    language: Language = ENGLISH  # of the Anserini analyzer that makes BM25's words; a list if documents differ
    glossary: str | None = None  # TSV of language, text and its translation: see collections.glossary
    passages: int | None = Field(default=None, ge=0)  # words; 0: whole documents; None: a run decides by their length
    passage_overlap: int = Field(default=0, ge=0)  # words
    first_passage: float = Field(default=0.5, ge=0)  # weight in all of a document's passages
    k1: float = Field(default=BM25.k1, ge=0)  # BM25
    b: float = Field(default=BM25.b, ge=0, le=1)
    hits: int = Field(default=1000, ge=1)
    remove_query: Literal["auto", "always", "never"] = "auto"  # remove hits with the query's id; auto: unless relevant
    published: list[PublishedScore] = Field(default_factory=list)
    expected: dict[str, dict[str, float]] = Field(default_factory=dict)  # encoder name (or any) -> system -> nDCG@10
    tolerance: float = Field(default=0.003, ge=0)
    note: str | None = None  # how to get the data; shown if the data is missing

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.fields)) < len(self.fields):
            raise ValueError("fields: each field can be listed only once")
        if wrong := next((name for name in self.metadata if not NAME.fullmatch(name)), None):
            raise ValueError(f"metadata: {wrong!r} is reserved or not a name (a letter, then letters, digits or _.-)")
        if self.topics and not self.source.startswith(PYSERINI):
            raise ValueError(f"topics: only for a source {PYSERINI}INDEX")
        if self.passages and self.passage_overlap >= self.passages:
            raise ValueError(f"passage_overlap: {self.passage_overlap} should be less than passages, {self.passages}")
        return self

    @property
    def bm25(self) -> Bm25Parameters:
        return Bm25Parameters(self.k1, self.b)

    @property
    def weight_of_first_passage(self) -> float:
        return self.first_passage if self.passages else 0.0


def load_encoder(spec: str) -> EncoderConfig:
    """The encoder of a name in encoders/, a YAML file, a folder (with its encoder.yaml, if it has one), or a Hugging
    Face model id. Raises CaiError for impacts or an index whose encoder.yaml has other settings than their own."""
    path = _encoder_file(spec)
    _warn_if_shadowed(spec, path)
    if path is None:
        return EncoderConfig(name=Path(spec).absolute().name, checkpoint=spec)
    name = path.absolute().parent.name if path.name == "encoder.yaml" else path.stem
    config = build(EncoderConfig, {"name": name} | read_yaml(path), path)
    _require_unchanged(config, path)
    located = {key: _relative_to(path, value) for key in LOCATED if (value := getattr(config, key))}
    return config.replace(**located)


def is_encoder(spec: str) -> bool:
    """Whether `spec` is a name in encoders/, an encoder's YAML file, or a folder with an encoder.yaml."""
    return _encoder_file(spec) is not None


def is_checkpoint(spec: str) -> bool:
    """Whether `spec` is a checkpoint folder with safetensors files."""
    return (Path(spec) / "config.json").is_file() and any(Path(spec).glob("*.safetensors"))


def _encoder_file(spec: str) -> Path | None:
    own = Path(spec) / "encoder.yaml"
    return _find("encoders", spec) or (own if own.is_file() else None)


def unless_english(language: Language) -> Language | None:
    """The language as recipes record it: None, which they omit, for English."""
    return None if language == ENGLISH else language


def load_index_config(spec: str) -> IndexConfig:
    """The collection of a name in index_configs/, a YAML file, a folder, a file of documents, or pyserini:INDEX."""
    path = _find("index_configs", spec)
    _warn_if_shadowed(spec, path)
    if path is not None:
        config = build(IndexConfig, {"name": path.stem} | read_yaml(path), path)
        glossary = config.glossary and _relative_to(path, config.glossary)
        return config.replace(source=_relative_to(path, config.source), glossary=glossary)
    if spec.startswith(PYSERINI):
        return IndexConfig(name=spec.removeprefix(PYSERINI).removesuffix(".flat"), source=spec)
    if spec == "-":
        raise CaiError("a collection is read several times: write standard input to a file, such as documents.jsonl")
    if spec and Path(spec).exists():
        if (path := Path(spec).resolve()).joinpath("collection.json.manifest.json").exists():
            raise CaiError(f"{spec} is a run folder, not a collection: search it with `cai-pyserini search {spec}`")
        name = path.name if path.is_dir() else Path(path.name.removesuffix(".gz")).stem
        if path.is_file() and name == "corpus":  # as BEIR calls the documents of every collection
            name = path.parent.name or name
        return IndexConfig(name=name, source=spec)
    if hint := did_you_mean(spec, names("index_configs")):
        raise CaiError(f"no collection {spec!r}{hint}")
    raise CaiError(
        f"no collection {spec!r}: give the path of a folder in BEIR's layout or of files, of a file of documents or "
        f"of a YAML file, {PYSERINI}INDEX, or one of " + ", ".join(names("index_configs"))
    )


def names(kind: Literal["encoders", "index_configs"]) -> list[str]:
    return sorted(path.stem for path in _folder(kind).glob("*.yaml"))


def encoder_yaml(config: EncoderConfig, folder: Path) -> str:
    """The text of an encoder.yaml in `folder`, with the values that differ from the defaults, and those set explicitly
    that would else be read from the checkpoint folder. An encoder without a name is named after the folder."""
    overrides = config.model_dump(include=config.model_fields_set.intersection(DESCRIBED))
    values = config.model_dump(exclude_defaults=True, exclude=set() if config.name else {"name"}) | overrides
    for key in LOCATED:
        if key in values and (key not in CHECKPOINTS or Path(values[key]).is_dir()):
            values[key] = os.path.relpath(values[key], folder)
    return yaml.safe_dump(values, sort_keys=False)


def _folder(kind: str) -> Path:
    """encoders/ or index_configs/: inside an installed package, beside the package in a clone."""
    package = Path(__file__).parents[1]
    return next(folder for folder in (package / kind, package.parent / kind) if folder.is_dir())


def _find(kind: str, spec: str) -> Path | None:
    """The YAML file that a name or a path refers to; None if there is none."""
    if spec.endswith((".yaml", ".yml")):
        if not Path(spec).is_file():
            raise CaiError(f"no file {spec}")
        return Path(spec)
    path = _folder(kind) / f"{spec}.yaml"
    return path if "/" not in spec and path.is_file() else None


def _require_unchanged(config: EncoderConfig, path: Path) -> None:
    manifest = read_manifest(path.parent) if path.name == "encoder.yaml" else None
    recorded = manifest.stats.get("settings", {}) if manifest else {}
    for key, value in config.shaping("vectors", "impacts", defaults=True).items():
        made_with = recorded.get(key, EncoderConfig.model_fields[key].default)
        if recorded and made_with != value:
            raise CaiError(f"{path}: {key} is {value}, but {path.parent} was made with {made_with}: restore that")


@cache  # once per process
def _warn_if_shadowed(spec: str, found: Path | None) -> None:
    """Warn if a name in encoders/ or index_configs/ is also the name of a local file or folder."""
    if found and "/" not in spec and found.stem == spec and Path(spec).exists():
        logger.warning(
            "%s is read as the name of %s/%s, not as the local ./%s: write ./%s to use that",
            *(spec, found.parent.name, found.name, spec, spec),
        )


def _relative_to(config: Path, value: str) -> str:
    """Resolve a relative path in a YAML file against that file; any other value is unchanged."""
    path = config.parent / value
    return str(path) if not value.startswith(PIP) and path.exists() else value
