"""An encoder: a configuration, and the model that is loaded when it is first needed."""

from collections.abc import Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.identity import changes, code
from cai_pyserini.core.packages import require_encode
from cai_pyserini.core.processes import enter
from cai_pyserini.models.checkpoint import checkpoint_folder, require_positions, require_projection, require_safetensors
from cai_pyserini.models.device import Precision, resolve_device, resolve_precision
from cai_pyserini.models.folder import Side, read_folder, token_weights
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.tokenizer import Tokenizer, require_tokenizer

if TYPE_CHECKING:
    from cai_pyserini.models.dense import Dense
    from cai_pyserini.models.splade import Splade

Role = Literal["documents", "queries"]


class EncoderModel:
    """A Splade or Dense model that is loaded only when needed, which is not the case if all vectors are stored.

    `precision` applies to documents. Queries, which are short, are encoded in float32, so that a query has the same
    impacts on every machine and in every batch. Raises CaiError for a missing checkpoint or projection.
    """

    def __init__(self, config: EncoderConfig, device: str = "auto", precision: Precision = "auto"):
        folder = read_folder(checkpoint_folder(config))
        self.config = config = folder.complete(config)
        self._sides: dict[Role, Side] = {"documents": folder.documents, "queries": folder.queries}
        if config.query_checkpoint:
            other = config.replace(checkpoint=config.query_checkpoint, revision=config.query_revision)
            query_folder = read_folder(checkpoint_folder(other))
            self._sides["queries"] = query_folder.documents
            for name in ("kind", "activation", "max_active_dims"):
                documents = getattr(config, name)
                if (queries := query_folder.settings.get(name, documents)) != documents:
                    raise CaiError(f"{config.name}: {name} is {documents} for documents and {queries} for queries")
        self.checkpoint = folder.documents.folder
        self.projection = require_projection(Path(config.projection)) if config.projection else None
        self.device = device
        self._lock = RLock()
        self._precision = precision
        self._models: dict[Role, Splade | Dense] = {}

    @property
    def lock(self) -> RLock:
        """The lock that a thread holds while it encodes or tokenizes with a shared encoder."""
        enter("PyTorch")
        return self._lock

    def require_loadable(self, *roles: Role) -> None:
        """Raise CaiError if the model cannot be loaded, or cannot read texts of these roles at their maximum length."""
        resolve_device(self.device)
        if self._idf and not self.is_mean:
            raise CaiError(
                f"{self.config.name} does not pool by the mean of its tokens, which is where IDF weights apply: leave "
                "out dense-idf"
            )
        names = {"documents": "max_document_length", "queries": "max_query_length"}
        for role in dict.fromkeys(("documents", *roles)):
            side = self.model_side(role)
            require_safetensors(side.folder)
            if role in roles:
                require_positions(side.folder, {names[role]: self.max_length(role)})
        require_tokenizer(self.model_side("documents").folder)

    def model_side(self, role: Role) -> Side:
        """The side of a role. Raises CaiError for bag-of-words queries."""
        if (side := self._sides[role]).weights:
            raise CaiError(
                f"{self.config.name} has no model for queries, only token weights: use bags of words, as in the "
                "systems splade-doc, or `query: bow`"
            )
        return side

    def truncated(self, length: int) -> "EncoderModel":
        """This encoder, sharing its models, but reading only the first `length` tokens of a document."""
        other = copy(self)
        other.config = self.config.replace(max_document_length=length)
        return other

    @property
    def has_query_model(self) -> bool:
        """Whether a model encodes queries; otherwise they are bags of words with token weights."""
        return self._sides["queries"].weights is None

    @property
    def is_mean(self) -> bool:
        """Whether dense vectors are means of token vectors."""
        pooling = self.config.pooling
        return pooling == "mean" if pooling else self._sides["documents"].is_mean

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.checkpoint)

    @property
    def digest(self) -> str:
        """A digest of the documents' checkpoint and the projection."""
        return self._digest("documents")

    def _digest(self, role: Role) -> str:
        side = self._sides[role]
        return artifact.digest([side.digest, artifact.file_digest(self.projection)]) if self.projection else side.digest

    @cached_property
    def token_weights(self) -> np.ndarray | None:
        """The token weights in bags of words, (vocabulary,); None if bags hold counts."""
        path = self.config.query_weights or self._sides["queries"].weights
        return token_weights(Path(path), self.tokenizer) if path else None

    def precision(self, role: Role) -> Precision:
        is_exact = role == "queries" or self._precision == "float32"  # on every device
        return "float32" if is_exact else resolve_precision(self._precision, resolve_device(self.device))

    def max_length(self, role: Role) -> int:
        """The number of tokens read of a document or query."""
        return self.config.max_query_length if role == "queries" else self.config.max_document_length

    def variant(self, role: Role) -> str:
        """The variant of the encode stage that makes the vectors of a role."""
        return f"{role} {self.config.kind}{' idf' if self._idf else ''}"

    def identity(self, role: Role) -> dict[str, Any]:
        """The digests and settings that the vector of a document or query depends on, besides its text."""
        return {**self._identity(role), "precision": self.precision(role)}

    def _identity(self, role: Role) -> dict[str, Any]:
        """As `identity`, but for the precision, which only a machine that encodes has."""
        weights = self.config.query_weights if role == "queries" else None
        made_by = code("encode", self.variant(role)) if any(self.checkpoint.glob("*.safetensors")) else {}
        return {
            **{key: value for key, value in made_by.items() if value != 1},  # a version counts from the second on
            "checkpoint": self._digest(role),
            "kind": self.config.kind,
            "idf": self.idf,
            **({"weights": artifact.file_digest(Path(weights))} if weights else {}),
            **self.config.shaping("query vectors" if role == "queries" else "vectors"),
        }

    def require_identity(
        self, identity: Mapping[str, Any], folder: Path, remedy: str = "encode the documents again"
    ) -> None:
        """Raise CaiError unless document vectors in `folder` have this encoder's identity, but for the precision."""
        found, own = {**identity}, self._identity("documents")
        found.pop("precision")
        if found != own:
            raise CaiError(
                f"{folder} was not encoded as {self.config.name} encodes documents ({changes(found, own)}): {remedy}, "
                "or name the encoder that it was encoded with"
            )

    @property
    def query_only_identity(self) -> dict[str, Any]:
        """The part of the query identity that differs from the documents', such as a separate checkpoint."""
        queries, documents = self._identity("queries"), self._identity("documents")
        return {key: queries[key] for key in queries if queries[key] != documents.get(key)}

    @property
    def idf(self) -> list[Any] | None:
        """The digest and power of the IDF that weights the tokens of dense vectors; None without."""
        return [artifact.require(self._idf, "idf").digest, self.config.idf_power] if self._idf else None

    @property
    def _idf(self) -> Path | None:
        """The IDF folder that dense vectors depend on; None for SPLADE, whose vectors are weighted later."""
        config = self.config
        return config.idf_folder if config.idf_power and not config.is_sparse else None

    def load(self, role: Role) -> "Splade | Dense":
        """The model for the texts of a role, with its prompt. Raises CaiError for a model that cannot be loaded, for
        another vocabulary of queries than of documents, for bag-of-words queries, and without the extra `encode`."""
        if role not in self._models:
            require_encode()
            config, side, precision = self.config, self.model_side(role), self.precision(role)
            same = (each for each in self._models if (self._sides[each], self.precision(each)) == (side, precision))
            if (other := next(same, None)) is not None:
                model = self._models[other]
            else:
                model = self._load_int8(side) if precision == "int8" else self._load(side, precision)
            prompt = config.query_prompt if role == "queries" else config.document_prompt
            self._models[role] = model.with_prompt(prompt)
        return self._models[role]

    def _load_int8(self, side: Side) -> "Splade | Dense":
        """Load the model in int8. Raises CaiError if its vectors are far from float32's, which depends on the weights:
        a few large activations leave no resolution for the others."""
        from cai_pyserini.models.int8 import PROBES, require_close  # imports torch, which takes seconds

        length = self.max_length("documents")
        expected = self._load(side, "float32").encode(PROBES, length)
        model = self._load(side, "int8")
        require_close(side.folder, model.encode(PROBES, length), expected)
        return model

    def _load(self, side: Side, precision: Precision) -> "Splade | Dense":
        config = self.config
        if config.is_sparse:
            from cai_pyserini.models.splade import Splade  # imports torch, which takes seconds

            model = Splade(
                side.folder,
                self.device,
                precision,
                activation=config.activation,
                max_active_dims=config.max_active_dims,
            )
            if side.folder != self.checkpoint and model.tokenizer.vocabulary != self.tokenizer.vocabulary:
                raise CaiError(f"{side.folder} has another vocabulary than {self.checkpoint}: no query would match")
            return model
        from cai_pyserini.models.dense import Dense

        idf = Idf.load(self._idf, self.tokenizer.vocabulary).weights(config.idf_power) if self._idf else None
        return Dense(
            side,
            self.device,
            precision,
            weights=idf,
            projection=self.projection,
            pooling=config.pooling,
            dimensions=config.dimensions,
            similarity=config.similarity,
        )
