"""What a checkpoint folder says about itself, in the files of sentence-transformers.

modules.json lists modules: a Transformer, and what makes a vector of its output. A Router has a list for each role; the
queries of a sparse one may have no model, but a weight for each token (inference-free). A folder without modules.json
is a bare checkpoint: it says nothing, and the settings of the encoder hold.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from safetensors.numpy import load_file

from cai_pyserini.core.artifact import digest, file_digest
from cai_pyserini.core.config import DESCRIBED, EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import require_content
from cai_pyserini.models.checkpoint import (
    SUFFIXES,
    checkpoint_digest,
    checkpoint_folder,
    require_safetensors,
    require_whole,
)
from cai_pyserini.models.tokenizer import Tokenizer

LENGTH = 512  # tokens that are read at most, unless the encoder says more: longer texts cost more than they gain
ALL = 1 << 16  # tokens that are read where nothing limits them
ROLES = {"query": "queries", "document": "documents"}
UNUSUAL = DESCRIBED - {"kind", "max_document_length", "max_query_length", "query", "idf_power"}
UNUSUAL |= {"query_checkpoint", "query_weights", "binary_queries", "expand_queries", "trust_remote_code"}
PROMPTS = {"query_prompt": ("query",), "document_prompt": ("document", "passage", "corpus")}  # by setting
SPLADE_POOLING = {"pooling_strategy": "max", "activation_function": "relu"}  # the library's defaults
POOLED = ("Pooling", "Dense", "Normalize", "LayerNorm", "Dropout")  # modules of dense models


class Entry(TypedDict):
    """A module in modules.json."""

    type: str
    path: str


class Routes(TypedDict):
    """router_config.json: the classes of modules, and the modules of each role."""

    types: dict[str, str]
    structure: dict[str, list[str]]


@with_config(ConfigDict(extra="allow"))
class Keys(TypedDict, total=False):
    """What is read of the other files."""

    architectures: list[str] | None
    model_type: str
    similarity_fn_name: str | None
    prompts: dict[str, str | None] | None
    truncate_dim: int | None
    max_active_dims: int | None
    max_seq_length: int | None
    model_max_length: float | None
    max_position_embeddings: float | None
    modality_config: dict[str, dict[str, Any]] | None
    pooling_mode: str | list[str]
    path: str | None  # of the weights of tokens


class Module(NamedTuple):
    """A module of a folder: its class, without the package, the folder of its files, and its config.json."""

    name: str
    folder: Path
    config: dict[str, Any]

    @property
    def digest(self) -> list[str]:
        """The class and digests of the files, of which some modules have none, nor a folder."""
        files = (path for path in sorted(self.folder.glob("*")) if path.suffix in SUFFIXES)
        return [self.name, *map(file_digest, files)]


@dataclass(frozen=True)
class Side:
    """How the texts of one role become vectors: by the transformer in `folder`, or, of queries without a model, by
    weights of tokens, which are in the folder `weights`. `modules` come after the transformer; of the default, which is
    a normalized mean, there are none."""

    folder: Path
    modules: Sequence[Module] = ()
    weights: Path | None = None
    is_mean: bool = True  # over all tokens; of dense vectors
    is_static: bool = False  # token vectors in place of a transformer

    @cached_property
    def digest(self) -> str:
        """A digest of the checkpoint and the modules."""
        made_from = checkpoint_digest(self.folder)
        return digest([made_from, *(module.digest for module in self.modules)]) if self.modules else made_from


@dataclass(frozen=True)
class Folder:
    """A folder: what it makes of documents and queries, and the settings of an encoder that it stands for."""

    path: Path
    documents: Side
    queries: Side
    settings: dict[str, Any] = field(default_factory=dict)

    def described(self, config: EncoderConfig) -> EncoderConfig:
        """The configuration with the folder's settings where it has none of its own; documents have no IDF by default
        where queries have weights of their own. Raises CaiError for a model of the other kind."""
        kind = self.settings.get("kind", config.kind)
        if "kind" in config.model_fields_set and config.kind != kind:
            raise CaiError(f"{self.path} is a {kind} model, not a {config.kind} one")
        settings = self.settings
        if config.query_weights or self.queries.weights:
            settings = settings | {"query": "bow", "idf_power": 0.0}
        own = {name: value for name, value in settings.items() if name not in config.model_fields_set}
        changed = {name: value for name, value in own.items() if value != getattr(config, name)}
        return config.replace(**changed) if changed else config


def model_folder(config: EncoderConfig) -> Path:
    """The folder of the transformer and the tokenizer of documents."""
    return read_folder(checkpoint_folder(config)).documents.folder


def tokenizer_of(config: EncoderConfig) -> Tokenizer:
    """The tokenizer of documents, whose code runs if the encoder trusts it."""
    side = read_folder(checkpoint_folder(config)).documents
    return Tokenizer(side.folder, config.trust_remote_code, special=not side.is_static)


def described(config: EncoderConfig) -> EncoderConfig:
    """An encoder with the settings that its checkpoint's folder stands for."""
    return read_folder(checkpoint_folder(config)).described(config)


def require_usual(config: EncoderConfig, what: str) -> EncoderConfig:
    """An encoder with the settings that its folder stands for. Raises CaiError if it makes vectors in another way than
    `what` does: by one model for documents and queries, as a maximum or mean over all tokens."""
    folder = read_folder(checkpoint_folder(config))
    config = folder.described(config)
    values = config.model_dump(include=UNUSUAL, exclude_defaults=True)
    if folder.documents.modules or folder.documents.is_static:
        values["modules"] = ", ".join(module.name for module in folder.documents.modules) or "StaticEmbedding"
    if values or folder.queries != folder.documents:
        said = ", ".join(f"{name} {value!r}" for name, value in values.items()) or "another model for queries"
        raise CaiError(f"{config.name} has {said}, which {what} cannot take into account")
    return config


def read_folder(path: Path) -> Folder:
    """What a folder says. Raises CaiError for modules that are not supported."""
    if not (path / "modules.json").is_file():
        if any(
            "ForSequenceClassification" in name for name in read_json(path / "config.json").get("architectures") or ()
        ):
            raise CaiError(f"{path} is a reranker: use it with --cross-encoder")
        bare = Side(path)
        return Folder(path, bare, bare)
    about = read_json(path / "config_sentence_transformers.json")
    if about.get("model_type") == "CrossEncoder":
        raise CaiError(f"{path} is a reranker: use it with --cross-encoder")
    if about.get("similarity_fn_name") in ("euclidean", "manhattan"):
        raise CaiError(
            f"{path} compares vectors by their {about['similarity_fn_name']} distance; indexes here score by dot "
            "products or cosines"
        )
    modules = [_module(path, each["type"], each["path"]) for each in read_json(path / "modules.json", list[Entry])]
    if modules and modules[0].name in ("Router", "Asym"):
        queries, documents = (_route(modules[0].folder, role, modules[1:]) for role in ROLES)
    else:
        documents = queries = modules
    kind, of_queries = _kind(path, documents), _kind(path, queries)
    if kind not in ("splade", "dense") or of_queries not in (kind, f"{kind} without a model"):
        raise CaiError(f"{path}: its documents are {kind}, its queries {of_queries}, which do not go together")
    settings = _settings(path, kind, about, documents) | _lengths(documents[0], queries[0])
    if of_queries == "splade" and _pooling(queries[1]) != _pooling(documents[1]):
        raise CaiError(f"{path}: its queries and documents are pooled in different ways, which is not supported")
    return Folder(path, _side(documents, kind), _side(queries, of_queries), settings)


def token_weights(place: Path, tokenizer: Tokenizer) -> np.ndarray:
    """The weights of tokens in queries, float32 (vocabulary,), from a JSON file {token: weight}, or the folder of a
    SparseStaticEmbedding. Tokens that the file does not have weigh 0; those that the vocabulary does not have are left
    out. Raises CaiError for another vocabulary."""
    if place.is_dir():
        if Tokenizer(place).vocabulary != tokenizer.vocabulary:
            raise CaiError(f"{place}: the tokens of queries are not those of documents")
        if (path := read_json(place / "config.json").get("path")) is None:
            require_safetensors(place, config=False)
            return _positive(load_file(place / "model.safetensors")["weight"].astype(np.float32), place)
        if not (place / path).is_file() or not (place / path).resolve().is_relative_to(place.resolve()):
            raise CaiError(f"{place}: the weights of tokens are in {path}, which is not in this folder: copy it there")
        place = place / path
    weights, found = np.zeros(len(tokenizer), np.float32), read_json(place, dict[str, float])
    known = [token for token in found if token in tokenizer.ids]
    if not known:
        raise CaiError(f"{place}: no weight of a token of the vocabulary")
    weights[[tokenizer.ids[token] for token in known]] = [found[token] for token in known]
    return _positive(weights, place)


def _positive(weights: np.ndarray, place: Path) -> np.ndarray:
    """The weights. Raises CaiError if some are negative or not finite."""
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise CaiError(f"{place}: some tokens have weights below 0, or no numbers, which a query of Lucene cannot have")
    return weights


def _route(router: Path, role: str, after: Sequence[Module]) -> list[Module]:
    """The modules of a role, with those that follow the router."""
    config = read_json(router / "router_config.json", Routes) or {"structure": {}}
    names = config["structure"].get(role)
    if not names or not config["types"].keys() >= {*names}:
        raise CaiError(f"{router}: its Router has no route for {ROLES[role]}")
    return [*(_module(router, config["types"][name], name) for name in names), *after]


def _module(root: Path, kind: str, place: str) -> Module:
    package, _, name = kind.rpartition(".")
    if package.partition(".")[0] != "sentence_transformers":
        raise CaiError(f"{root}: its module {kind} is code of its own, which is not run")
    folder = (root / place).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise CaiError(f"{root}: the module {place} is outside the folder")
    require_whole(folder)
    own = folder / ("config.json" if place else "none")  # that at the root is the transformer's
    return Module(name, folder, read_json(own) if own.is_file() else {})


def _kind(path: Path, modules: Sequence[Module]) -> str:
    """What a list of modules is: splade, splade without a model, or dense."""
    first, *rest = [module.name for module in modules] or ["none"]
    is_transformer = first in ("Transformer", "MLMTransformer")
    if is_transformer and rest == ["SpladePooling"]:
        return "splade"
    if first == "SparseStaticEmbedding" and not rest:
        return "splade without a model"
    if (first == "StaticEmbedding" or (is_transformer and rest[:1] == ["Pooling"])) and {*rest[1:]} <= {*POOLED}:
        return "dense"
    raise CaiError(f"{path}: a model of the modules {', '.join([first, *rest])} is not supported")


def _settings(path: Path, kind: str, about: Mapping[str, Any], documents: Sequence[Module]) -> dict[str, Any]:
    """The settings of an encoder that documents' modules stand for."""
    prompts, similarity = about.get("prompts") or {}, about.get("similarity_fn_name")
    settings: dict[str, Any] = {
        name: next(filter(None, map(prompts.get, candidates)), "") for name, candidates in PROMPTS.items()
    }
    if kind == "dense":
        return settings | {
            "kind": "dense",
            "dimensions": about.get("truncate_dim"),
            "similarity": similarity or "cosine",
        }
    if similarity == "cosine":
        raise CaiError(f"{path} compares sparse vectors by cosine; indexes of impacts score by dot products")
    pooling, activation = _pooling(documents[1])
    return settings | {
        "kind": "splade",
        "pooling": None if pooling == "max" else pooling,
        "activation": activation,
        "max_active_dims": about.get("max_active_dims"),
    }


def _pooling(module: Module) -> tuple[str, str]:
    """The strategy and the activation of a SpladePooling."""
    pooling, activation = (module.config.get(name, default) for name, default in SPLADE_POOLING.items())
    if pooling not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise CaiError(f"{module.folder}: pooling by {pooling} of {activation} is not supported")
    return pooling, activation


def _lengths(documents: Module, queries: Module) -> dict[str, int]:
    """The settings of lengths, of those modules that say one."""
    found = {"max_document_length": _length(documents), "max_query_length": _length(queries)}
    return {name: length for name, length in found.items() if length is not None}


def _length(module: Module) -> int | None:
    """The number of tokens that a module reads, LENGTH at most; None if it does not say."""
    folder = module.folder
    if module.name == "StaticEmbedding":
        return (read_json(folder / "tokenizer.json").get("truncation") or {"max_length": ALL})["max_length"]
    own: dict[str, Any] = next((read_json(path) for path in sorted(folder.glob("sentence_*_config.json"))), {})
    modality = own.get("modality_config") or {}
    if "message" in modality or modality.get("text", {}).get("method", "forward") != "forward":
        raise CaiError(f"{folder}: it reads texts as chat messages, or by a method of its own, which is not supported")
    if own.get("do_lower_case") and not _lowercases(folder):
        raise CaiError(
            f"{folder}: do_lower_case in sentence_bert_config.json is not supported: its tokenizer keeps case"
        )
    tokenizer, model = (read_json(folder / name) for name in ("tokenizer_config.json", "config.json"))
    limits = [own.get("max_seq_length")]
    limits = limits if limits[0] else [tokenizer.get("model_max_length"), model.get("max_position_embeddings")]
    known = [int(limit) for limit in limits if limit and limit > 0]
    if module.name == "SparseStaticEmbedding":  # reads no special tokens, for which bags of words leave room
        return min([LENGTH, *known]) + 2
    return min([LENGTH, *known]) if known else None


def _lowercases(folder: Path) -> bool:
    normalizer = json.dumps(read_json(folder / "tokenizer.json").get("normalizer"))
    return '"lowercase": true' in normalizer or '"type": "Lowercase"' in normalizer


def _side(modules: Sequence[Module], kind: str) -> Side:
    first, *rest = modules
    if kind != "dense":  # pooling and activation are settings
        return Side(first.folder, weights=None if kind == "splade" else first.folder)
    names = [module.name for module in modules]
    if names == ["Transformer", "Pooling", "Normalize"] and _is_mean(rest[0].config):
        return Side(first.folder)
    for module in rest:
        activation = str(module.config.get("activation_function", "torch.nn."))
        if not activation.startswith("torch.nn."):
            raise CaiError(f"{module.folder}: the activation function {activation} is not one of torch.nn")
    means = [module for module in rest if module.name == "Pooling" and _is_mean(module.config)]
    is_static = first.name == "StaticEmbedding"
    return Side(first.folder, tuple(rest), is_mean=bool(means) or is_static, is_static=is_static)


def _is_mean(pooling: Mapping[str, Any]) -> bool:
    """Whether a Pooling is the mean of all tokens; older folders have a boolean for each mode."""
    modes = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value]
    means = ("mean", ["mean"], ["pooling_mode_mean_tokens"])
    return pooling.get("include_prompt", True) and pooling.get("pooling_mode", modes) in means


def read_json(path: Path, shape: Any = Keys) -> Any:
    """The contents of a JSON file; {} if it is missing. Raises CaiError for a file of another shape."""
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        return {} if text is None else TypeAdapter(shape).validate_python(json.loads(text))
    except ValidationError as error:
        (detail, *_), where = error.errors(), "".join(f"{part}: " for part in error.errors()[0]["loc"])
        raise CaiError(f"{path}: {where}{detail['msg']}; save or download the model again") from None
    except ValueError as error:
        require_content(path)
        raise CaiError(f"{path}: not JSON ({error}); save or download the model again") from None
