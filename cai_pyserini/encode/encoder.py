"""An encoder with its configuration, whose model is loaded when it is first needed."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.models.checkpoint import (
    checkpoint_digest,
    checkpoint_folder,
    require_positions,
    require_projection,
    require_safetensors,
)
from cai_pyserini.models.device import Precision, resolve_device, resolve_precision
from cai_pyserini.models.idf import load_weights
from cai_pyserini.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cai_pyserini.models.dense import Dense
    from cai_pyserini.models.splade import Splade

Role = Literal["documents", "queries"]


class Encoder:
    """A Splade or Dense model, loaded only when needed: not if all vectors are already stored.

    `precision` applies to documents. Queries, which are short, are encoded in float32, so that a query has the same
    impacts on every machine and in every batch. Raises CaiError for a checkpoint, projection or device that does not
    exist.
    """

    def __init__(self, config: EncoderConfig, device: str = "auto", precision: Precision = "auto"):
        self.config = config
        self.checkpoint = checkpoint_folder(config)
        self.projection = require_projection(Path(config.projection)) if config.projection else None
        self.device = device
        self._precision = precision
        self._models: dict[str, Splade | Dense] = {}

    def require_loadable(self, *roles: Role) -> None:
        """Raise CaiError if loading the model is bound to fail, or reading texts of these roles to their length."""
        require_safetensors(self.checkpoint)
        resolve_device(self.device)
        names = {"documents": "max_document_length", "queries": "max_query_length"}
        require_positions(self.checkpoint, {names[role]: self.max_length(role) for role in roles})

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.checkpoint)

    @cached_property
    def digest(self) -> str:
        """A digest of the checkpoint, and of the projection if there is one."""
        digest = checkpoint_digest(self.checkpoint)
        return artifact.digest([digest, artifact.file_digest(self.projection)]) if self.projection else digest

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
            "checkpoint": self.digest,
            "kind": self.config.kind,
            "precision": self.precision(role),
            "idf": self.idf,
            **self.config.shaping("query vectors" if role == "queries" else "vectors"),
        }

    @property
    def idf(self) -> list[Any] | None:
        """The digest of the IDF that vectors are weighted with, and its power; only dense ones are."""
        return [artifact.require(self._idf, "idf").digest, self.config.idf_power] if self._idf else None

    def facts(self, role: Role) -> dict[str, Any]:
        """What readers of vectors have to know, for their manifest."""
        return {
            "kind": self.config.kind,
            "checkpoint": self.digest,
            "precision": self.precision(role),
            "max_length": self.max_length(role),
            "overlap": self.overlap(role),
            "idf": self.idf,
        }

    @property
    def _idf(self) -> Path | None:
        """The IDF folder that raw vectors depend on: that of dense means; SPLADE's vectors are weighted later."""
        config = self.config
        return config.idf_folder if config.kind == "dense" and config.idf_power else None

    def load(self, role: Role) -> "Splade | Dense":
        precision = self.precision(role)
        if precision not in self._models:
            if self.config.kind == "splade":
                from cai_pyserini.models.splade import Splade  # imports torch, which takes seconds

                self._models[precision] = Splade(self.checkpoint, self.device, precision)
            else:
                from cai_pyserini.models.dense import Dense

                vocabulary = self.tokenizer.vocabulary
                weights = load_weights(self._idf, self.config.idf_power, vocabulary) if self._idf else None
                self._models[precision] = Dense(self.checkpoint, self.device, precision, weights, self.projection)
        return self._models[precision]
