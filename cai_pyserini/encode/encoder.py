"""An encoder with its configuration, whose model is loaded when it is first needed."""

import logging
from collections.abc import Mapping
from copy import copy
from functools import cache, cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.identity import changes
from cai_pyserini.core.processes import enter
from cai_pyserini.models.checkpoint import (
    checkpoint_files,
    checkpoint_folder,
    require_positions,
    require_projection,
    require_safetensors,
)
from cai_pyserini.models.device import Precision, resolve_device, resolve_precision
from cai_pyserini.models.folder import Side, read_folder, token_weights, tokenizer_of
from cai_pyserini.models.idf import load_weights
from cai_pyserini.models.tokenizer import Tokenizer, require_tokenizer

if TYPE_CHECKING:
    from cai_pyserini.models.dense import Dense
    from cai_pyserini.models.splade import Splade

Role = Literal["documents", "queries"]
logger = logging.getLogger(__name__)


@cache  # once in a process
def _warn_of_code(checkpoint: str, revision: str | None) -> None:
    logger.warning("the code of %s, revision %s, is trusted and will run here", checkpoint, revision or "none")


class Encoder:
    """A Splade or Dense model, loaded only when needed: not if all vectors are already stored.

    `precision` applies to documents. Queries, which are short, are encoded in float32, so that a query has the same
    impacts on every machine and in every batch. Raises CaiError for a checkpoint, projection or device that does not
    exist.
    """

    def __init__(self, config: EncoderConfig, device: str = "auto", precision: Precision = "auto"):
        folder = read_folder(checkpoint_folder(config))
        self.config = config = folder.described(config)
        self._sides: dict[Role, Side] = {"documents": folder.documents, "queries": folder.queries}
        if config.query_checkpoint:
            other = config.replace(checkpoint=config.query_checkpoint, revision=config.query_revision)
            of_queries = read_folder(checkpoint_folder(other))
            self._sides["queries"] = of_queries.documents
            for name in ("kind", "pooling", "activation", "max_active_dims"):
                own = getattr(config, name)
                if (found := of_queries.settings.get(name, own)) != own:
                    raise CaiError(f"{config.name}: {name} is {own} for documents and {found} for queries")
        if config.trust_remote_code:
            _warn_of_code(config.checkpoint, config.revision)
            if config.query_checkpoint:
                _warn_of_code(config.query_checkpoint, config.query_revision)
        self.checkpoint = folder.documents.folder
        self.projection = require_projection(Path(config.projection)) if config.projection else None
        self.device = device
        self._lock = RLock()
        self._precision = precision
        self._models: dict[Role, Splade | Dense] = {}

    @property
    def in_use(self) -> RLock:
        """A lock, held by a thread that encodes or tokenizes, where several share the encoder."""
        enter("PyTorch")
        return self._lock

    def require_loadable(self, *roles: Role) -> None:
        """Raise CaiError if loading the model is bound to fail, or reading texts of these roles to their length."""
        resolve_device(self.device)
        if self._idf and not self.is_mean:
            raise CaiError(
                f"{self.config.name} does not pool tokens by their mean, in which IDF would weight them: leave out "
                "dense-idf"
            )
        names = {"documents": "max_document_length", "queries": "max_query_length"}
        for role in dict.fromkeys(("documents", *roles)):
            side = self._model_side(role)
            require_safetensors(side.folder, config=not side.is_static)
            if role in roles and not self.config.trust_remote_code:
                require_positions(side.folder, {names[role]: self.max_length(role)})
        require_tokenizer(self._model_side("documents").folder)

    def _model_side(self, role: Role) -> Side:
        """The side of a role. Raises CaiError for queries without a model."""
        if (side := self._sides[role]).weights:
            raise CaiError(
                f"{self.config.name} has no model for queries, only weights of tokens: take bags of words, as in the "
                "systems splade-doc, or `query: bow`"
            )
        return side

    def folder(self, role: Role) -> Path:
        """The folder of the model for the texts of a role. Raises CaiError for queries without a model."""
        return self._model_side(role).folder

    def reading(self, length: int) -> "Encoder":
        """This encoder, with its models, for the first `length` tokens of a document alone."""
        other = copy(self)
        other.config = self.config.replace(max_document_length=length, overlap=None)
        return other

    @property
    def has_query_model(self) -> bool:
        """Whether a model can encode queries; else they are bags of words, with weights of tokens."""
        return self._sides["queries"].weights is None

    @property
    def is_mean(self) -> bool:
        """Whether dense vectors are means of token vectors."""
        pooling = self.config.pooling
        return pooling == "mean" if pooling else self._sides["documents"].is_mean

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.config)

    @property
    def digest(self) -> str:
        """A digest of the checkpoint of documents, and of the projection and the code, if there are any."""
        return self._digest("documents")

    def _digest(self, role: Role) -> str:
        side = self._sides[role]
        files = [self.projection] if self.projection else []
        if self.config.trust_remote_code:
            files += [path for path in checkpoint_files(side.folder, code=True) if path.suffix == ".py"]
        return artifact.digest([side.digest, *map(artifact.file_digest, files)]) if files else side.digest

    @cached_property
    def token_weights(self) -> np.ndarray | None:
        """The weights of tokens in bags of words, (vocabulary,); None if they count."""
        place = self.config.query_weights or self._sides["queries"].weights
        return token_weights(Path(place), self.tokenizer) if place else None

    def precision(self, role: Role) -> Precision:
        return "float32" if role == "queries" else resolve_precision(self._precision, resolve_device(self.device))

    def max_length(self, role: Role) -> int:
        """The number of tokens read of a document or query, or of each window of a document."""
        return self.config.max_query_length if role == "queries" else self.config.max_document_length

    def overlap(self, role: Role) -> int | None:
        """By how many tokens the windows of a document overlap; None if only the first one is read, as of a query."""
        return None if role == "queries" else self.config.overlap

    def identity(self, role: Role) -> dict[str, Any]:
        """What the vector of a document or query depends on, apart from its text: digests and settings."""
        return {
            "checkpoint": self._digest(role),
            "kind": self.config.kind,
            "precision": self.precision(role),
            "idf": self.idf,
            **self._weights_identity(role),
            **self.config.shaping("query vectors" if role == "queries" else "vectors"),
        }

    def require_made(
        self, identity: Mapping[str, Any], place: Path, remedy: str = "encode the documents again"
    ) -> None:
        """Raise CaiError unless this encoder makes the vectors of documents at `place`, which have this identity. The
        precision in which they were encoded may be another."""
        made, own = ({**each, "precision": None} for each in (identity, self.identity("documents")))
        if made != own:
            raise CaiError(
                f"{place} was not encoded as {self.config.name} encodes documents ({changes(made, own)}): {remedy}, or "
                "name the encoder that it was encoded with"
            )

    @property
    def of_queries(self) -> dict[str, Any]:
        """What of their identity only queries have, such as a checkpoint of their own."""
        documents = self.identity("documents")
        own = {name: value for name, value in self.identity("queries").items() if value != documents.get(name)}
        return {name: value for name, value in own.items() if name != "precision"}

    def _weights_identity(self, role: Role) -> dict[str, Any]:
        place = self.config.query_weights
        return {"weights": artifact.file_digest(Path(place))} if place and role == "queries" else {}

    @property
    def idf(self) -> list[Any] | None:
        """The digest of the IDF that vectors are weighted with, and its power; only dense ones are."""
        return [artifact.require(self._idf, "idf").digest, self.config.idf_power] if self._idf else None

    @property
    def _idf(self) -> Path | None:
        """The IDF folder that raw vectors depend on: that of dense means; SPLADE's vectors are weighted later."""
        config = self.config
        return config.idf_folder if config.kind == "dense" and config.idf_power else None

    def load(self, role: Role) -> "Splade | Dense":
        """The model for the texts of a role, with its prompt. Raises CaiError for a model that cannot be loaded, for
        one of queries that has another vocabulary than that of documents, and for queries without a model."""
        if role not in self._models:
            config, side, precision = self.config, self._model_side(role), self.precision(role)
            same = (each for each in self._models if (self._sides[each], self.precision(each)) == (side, precision))
            if (other := next(same, None)) is not None:
                model = self._models[other]
            else:
                model = self._load_int8(side) if precision == "int8" else self._load(side, precision)
            prompt = config.query_prompt if role == "queries" else config.document_prompt
            self._models[role] = model.with_prompt(prompt)
        return self._models[role]

    def _load_int8(self, side: Side) -> "Splade | Dense":
        """The model in int8. Raises CaiError if its vectors are not close to those of float32, which depends on the
        weights: a few large activations leave no room for the others."""
        from cai_pyserini.models.int8 import PROBES, require_close  # imports torch, which takes seconds

        length = self.max_length("documents")
        expected = self._load(side, "float32").encode(PROBES, length)
        model = self._load(side, "int8")
        require_close(side.folder, model.encode(PROBES, length), expected)
        return model

    def _load(self, side: Side, precision: Precision) -> "Splade | Dense":
        config = self.config
        if config.kind == "splade":
            from cai_pyserini.models.splade import Splade  # imports torch, which takes seconds

            how = self.device, precision, config.pooling or "max", config.activation, config.max_active_dims
            model = Splade(side.folder, *how, config.trust_remote_code)
            if side.folder != self.checkpoint and model.tokenizer.vocabulary != self.tokenizer.vocabulary:
                raise CaiError(f"{side.folder} has another vocabulary than {self.checkpoint}: no query would match")
            return model
        from cai_pyserini.models.dense import Dense

        idf = load_weights(self._idf, config.idf_power, self.tokenizer.vocabulary) if self._idf else None
        made_of = idf, self.projection, config.pooling, config.dimensions, config.similarity
        return Dense(side, self.device, precision, *made_of, config.trust_remote_code)
