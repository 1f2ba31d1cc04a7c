"""Read the modules and settings of a checkpoint folder from the files of sentence-transformers.

modules.json lists modules: a Transformer, and those that turn its output into a vector. A Router has a list for each
role; in a sparse model, queries may have a weight for each token in place of a model (inference-free). A folder without
modules.json is a bare checkpoint: all settings are the encoder's.
"""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from cai_pyserini.core.artifact import digest, file_digest
from cai_pyserini.core.config import DESCRIBED, MIN_LOST, EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import (
    DOWNLOAD_AGAIN,
    SUFFIXES,
    checkpoint_digest,
    checkpoint_folder,
    read_json,
    require_complete,
    require_safetensors,
)
from cai_pyserini.models.tokenizer import Tokenizer, count_pieces

logger = logging.getLogger(__name__)
MAX_LENGTH = 512  # tokens, unless the encoder sets more: longer texts cost more than they gain
SAMPLE, CHARACTERS = 100, 1000  # texts, and characters of each, that are tokenized: 0.04 s, for a ratio within 1%
ROLES = {"query": "queries", "document": "documents"}
NONSTANDARD = DESCRIBED - {"kind", "max_document_length", "max_query_length", "query", "idf_power"}
NONSTANDARD |= {"query_checkpoint", "query_weights", "binary_queries", "expand_queries"}
PROMPTS = {"query_prompt": ("query",), "document_prompt": ("document", "passage", "corpus")}  # names by setting
DENSE_MODULES = ("Pooling", "Dense", "Normalize", "LayerNorm", "Dropout")


class Module(NamedTuple):
    """A module: its class name without the package, the folder of its files, and its config.json."""

    name: str
    folder: Path
    config: dict[str, Any]

    @property
    def digest(self) -> list[str]:
        """The class and the digests of the files; some modules have neither files nor a folder."""
        files = (path for path in sorted(self.folder.glob("*")) if path.suffix in SUFFIXES)
        return [self.name, *map(file_digest, files)]


@dataclass(frozen=True)
class Side:
    """How texts of one role become vectors: by the transformer in `folder` and the `modules` after it (none for the
    default, a normalized mean), or, for bag-of-words queries, by the token weights in the folder `weights`."""

    folder: Path
    modules: Sequence[Module] = ()
    weights: Path | None = None
    is_mean: bool = True  # whether dense vectors are means over all tokens

    @cached_property
    def digest(self) -> str:
        """A digest of the checkpoint and the modules."""
        checkpoint = checkpoint_digest(self.folder)
        return digest([checkpoint, *(module.digest for module in self.modules)]) if self.modules else checkpoint


@dataclass(frozen=True)
class Folder:
    """A checkpoint folder: its sides for documents and queries, and the encoder settings that its files imply."""

    path: Path
    documents: Side
    queries: Side
    settings: dict[str, Any] = field(default_factory=dict)

    def complete(self, config: EncoderConfig) -> EncoderConfig:
        """Fill in settings that the configuration leaves out. If queries have token weights, documents have no IDF by
        default. Raises CaiError for a model of the other kind."""
        kind = self.settings.get("kind", config.kind)
        if "kind" in config.model_fields_set and config.kind != kind:
            raise CaiError(f"{self.path} is a {kind} model, not a {config.kind} one")
        settings = self.settings
        if config.query_weights or self.queries.weights:
            settings = settings | {"query": "bow", "idf_power": 0.0}
        changed = {
            name: value
            for name, value in settings.items()
            if name not in config.model_fields_set and value != getattr(config, name)
        }
        return config.replace(**changed) if changed else config


def model_folder(config: EncoderConfig) -> Path:
    """The folder of the documents' transformer and tokenizer."""
    return read_folder(checkpoint_folder(config)).documents.folder


def with_folder_settings(config: EncoderConfig) -> EncoderConfig:
    """Fill in an encoder's settings from its checkpoint folder."""
    return read_folder(checkpoint_folder(config)).complete(config)


def share_lost(config: EncoderConfig, texts: Sequence[str]) -> float:
    """About the share of the tokens of texts that an encoder does not read, from the mean length of a token."""
    sample = tuple(text[:CHARACTERS] for text in texts[:: -(-len(texts) // SAMPLE) or 1])
    tokens_per_character = count_pieces(model_folder(config), sample) / max(1, sum(map(len, sample)))
    tokens = [len(text) * tokens_per_character for text in texts]
    return sum(max(0, count - config.max_document_length) for count in tokens) / max(1, sum(tokens))


def warn_if_cut(config: EncoderConfig, texts: Sequence[str], collection: str) -> None:
    """Warn if an encoder does not read some of a collection, whose first texts are given."""
    if (lost := share_lost(config, texts)) >= MIN_LOST:
        reads = f"{collection}: {config.name} reads {config.max_document_length} word pieces of a document"
        warn_once(f"{reads}, and about {lost:.0%} of the text is lost: {long_documents_remedy(config)}")


@cache  # once per process: runs are prepared several times
def warn_once(message: str) -> None:
    logger.warning(message)


def long_documents_remedy(config: EncoderConfig) -> str:
    """How more of a long document is read, for messages."""
    positions = read_json(model_folder(config) / "config.json").get("max_position_embeddings") or sys.maxsize
    can_read_more = positions - 2 > config.max_document_length  # RoBERTa and its kind use no position 0 or 1
    longer = " or a larger max_document_length of the encoder" if can_read_more else ""
    return f"the setting passages (such as 100){longer} keeps more"


def require_standard(config: EncoderConfig, consumer: str) -> EncoderConfig:
    """Fill in an encoder's settings from its folder. Raises CaiError unless it encodes as `consumer` does: with one
    model for documents and queries, and the maximum or mean over all tokens."""
    folder = read_folder(checkpoint_folder(config))
    config = folder.complete(config)
    values = config.model_dump(include=NONSTANDARD, exclude_defaults=True)
    if folder.documents.modules:
        values["modules"] = ", ".join(module.name for module in folder.documents.modules)
    if values or folder.queries != folder.documents:
        features = ", ".join(f"{name} {value!r}" for name, value in values.items()) or "another model for queries"
        raise CaiError(f"{config.name} has {features}, which {consumer} cannot take into account")
    return config


def read_folder(path: Path) -> Folder:
    """Read the sides and settings of a folder. Raises CaiError for modules that are not supported."""
    try:
        return _read_folder(path)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise CaiError(
            f"{path}: its JSON files are not as sentence-transformers writes them ({error!r}); {DOWNLOAD_AGAIN}"
        ) from None


def _read_folder(path: Path) -> Folder:
    if not (path / "modules.json").is_file():
        architectures = read_json(path / "config.json").get("architectures") or ()
        if any("ForSequenceClassification" in name for name in architectures):
            raise CaiError(f"{path} is a reranker: give it as the setting cross_encoder")
        bare = Side(path)
        return Folder(path, bare, bare)
    config = read_json(path / "config_sentence_transformers.json")
    if config.get("model_type") == "CrossEncoder":
        raise CaiError(f"{path} is a reranker: give it as the setting cross_encoder")
    if config.get("similarity_fn_name") in ("euclidean", "manhattan"):
        raise CaiError(
            f"{path} compares vectors by their {config['similarity_fn_name']} distance; indexes here score by dot "
            "products or cosines"
        )
    modules = [_module(path, each["type"], each["path"]) for each in read_json(path / "modules.json")]
    if modules and modules[0].name in ("Router", "Asym"):
        queries, documents = (_route(modules[0].folder, role, modules[1:]) for role in ROLES)
    else:
        documents = queries = modules
    kind, query_kind = _kind(path, documents), _kind(path, queries)
    if (kind, query_kind) not in (("splade", "splade"), ("splade", "bags of words"), ("dense", "dense")):
        raise CaiError(f"{path}: its documents are {kind}, its queries {query_kind}, which do not go together")
    lengths = {"max_document_length": _length(documents[0]), "max_query_length": _length(queries[0])}
    settings = _settings(path, kind, config, documents)
    settings |= {name: length for name, length in lengths.items() if length is not None}
    if query_kind == "splade" and _activation(queries[1]) != _activation(documents[1]):
        raise CaiError(f"{path}: its queries and documents are pooled in different ways, which is not supported")
    return Folder(path, _side(documents, kind), _side(queries, query_kind), settings)


def token_weights(path: Path, tokenizer: Tokenizer) -> np.ndarray:
    """Read the token weights of queries, float32 (vocabulary,), 0 by default, from a JSON file {token: weight} or the
    folder of a SparseStaticEmbedding. Unknown tokens are ignored. Raises CaiError for another vocabulary."""
    if path.is_dir():
        if Tokenizer(path).vocabulary != tokenizer.vocabulary:
            raise CaiError(f"{path}: the tokens of queries are not those of documents")
        if (name := read_json(path / "config.json").get("path")) is None:
            require_safetensors(path)
            return _require_nonnegative(load_file(path / "model.safetensors")["weight"].astype(np.float32), path)
        if not (path / name).is_file() or not (path / name).resolve().is_relative_to(path.resolve()):
            raise CaiError(f"{path}: the token weights are in {name}, which is not in this folder: copy it there")
        path = path / name
    weights, values = np.zeros(len(tokenizer), np.float32), read_json(path)
    known = [token for token in values if token in tokenizer.ids]
    if not known:
        raise CaiError(f"{path}: none of the weights is of a token in the vocabulary")
    try:
        weights[[tokenizer.ids[token] for token in known]] = [float(values[token]) for token in known]
    except (TypeError, ValueError) as error:
        raise CaiError(f"{path}: expected {{token: weight}} ({error})") from None
    return _require_nonnegative(weights, path)


def _require_nonnegative(weights: np.ndarray, path: Path) -> np.ndarray:
    """Return the weights. Raises CaiError if some are negative or not finite."""
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise CaiError(f"{path}: some token weights are negative or not finite, which Lucene queries do not allow")
    return weights


def _route(router: Path, role: str, after: Sequence[Module]) -> list[Module]:
    """The router's modules for a role, and those that follow the router."""
    config = read_json(router / "router_config.json")
    names = config["structure"].get(role)
    if not names or not config["types"].keys() >= {*names}:
        raise CaiError(f"{router}: its Router has no route for {ROLES[role]}")
    return [*(_module(router, config["types"][name], name) for name in names), *after]


def _module(root: Path, kind: str, path: str) -> Module:
    package, _, name = kind.rpartition(".")
    if package.partition(".")[0] != "sentence_transformers":
        raise CaiError(f"{root}: its module {kind} is custom code, which is not run")
    folder = (root / path).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise CaiError(f"{root}: the module {path} is outside the folder")
    require_complete(folder)
    # The config.json at the root is the transformer's.
    return Module(name, folder, read_json(folder / "config.json") if path else {})


def _kind(path: Path, modules: Sequence[Module]) -> str:
    """The kind of a list of modules: splade, bags of words, or dense."""
    first, *rest = [module.name for module in modules] or ["none"]
    is_transformer = first in ("Transformer", "MLMTransformer")
    if is_transformer and rest == ["SpladePooling"]:
        return "splade"
    if first == "SparseStaticEmbedding" and not rest:
        return "bags of words"
    if is_transformer and rest[:1] == ["Pooling"] and {*rest} <= {*DENSE_MODULES}:
        return "dense"
    raise CaiError(f"{path}: a model of the modules {', '.join([first, *rest])} is not supported")


def _settings(path: Path, kind: str, config: Mapping[str, Any], documents: Sequence[Module]) -> dict[str, Any]:
    """The encoder settings that config_sentence_transformers.json and the documents' modules imply."""
    prompts, similarity = config.get("prompts") or {}, config.get("similarity_fn_name")
    settings: dict[str, Any] = {"kind": kind}
    for name, candidates in PROMPTS.items():
        settings[name] = next(filter(None, map(prompts.get, candidates)), "")
    if kind == "dense":
        return settings | {"dimensions": config.get("truncate_dim"), "similarity": similarity or "cosine"}
    if similarity == "cosine":
        raise CaiError(f"{path} compares sparse vectors by cosine; indexes of impacts score by dot products")
    return settings | {"activation": _activation(documents[1]), "max_active_dims": config.get("max_active_dims")}


def _activation(module: Module) -> str:
    """The activation of a SpladePooling. Raises CaiError unless it takes the maximum."""
    pooling = module.config.get("pooling_strategy", "max")
    activation: str = module.config.get("activation_function", "relu")
    if pooling != "max" or activation not in ("relu", "log1p_relu"):
        raise CaiError(f"{module.folder}: pooling by {pooling} of {activation} is not supported")
    return activation


def _length(module: Module) -> int | None:
    """The number of tokens that a module reads, at most MAX_LENGTH; None if it does not specify one."""
    folder = module.folder
    config: dict[str, Any] = next((read_json(path) for path in sorted(folder.glob("sentence_*_config.json"))), {})
    modality = config.get("modality_config") or {}
    if "message" in modality or modality.get("text", {}).get("method", "forward") != "forward":
        raise CaiError(f"{folder}: it reads texts as chat messages or by a custom method, which is not supported")
    if config.get("do_lower_case") and not _lowercases(folder):
        raise CaiError(
            f"{folder}: do_lower_case in sentence_bert_config.json is not supported: its tokenizer keeps case"
        )
    tokenizer, model = (read_json(folder / name) for name in ("tokenizer_config.json", "config.json"))
    limits = [config.get("max_seq_length")]
    if not limits[0]:
        limits = [tokenizer.get("model_max_length"), model.get("max_position_embeddings")]
    known = [int(limit) for limit in limits if limit and limit > 0]
    if module.name == "SparseStaticEmbedding":  # reads no special tokens, but bags of words leave room for two
        return min([MAX_LENGTH, *known]) + 2
    return min([MAX_LENGTH, *known]) if known else None


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
    return Side(first.folder, tuple(rest), is_mean=bool(means))


def _is_mean(pooling: Mapping[str, Any]) -> bool:
    """Whether a Pooling is the mean over all tokens; older folders have a boolean for each mode."""
    modes = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value]
    means = ("mean", ["mean"], ["pooling_mode_mean_tokens"])
    return pooling.get("include_prompt", True) and pooling.get("pooling_mode", modes) in means
