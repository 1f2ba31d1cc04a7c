"""Training on queries with positive and negative documents: what SPLADE and dense retrieval share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from transformers import AutoTokenizer

from cai_pyserini.core import artifact
from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.idf.idf import load_weights
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder, require_positions
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.trainer import training
from cai_pyserini.trainer.examples import Collator, Example, examples, in_epoch
from cai_pyserini.trainer.settings import PairSettings, inherited, recorded

CHUNK = {"cpu": 4_608, "cuda": 65_536}  # tokens that go through the model together


class PairTraining(ABC):
    """A training on pairs: its recipe, its run, and the duration of its steps."""

    stage: ClassVar[str]

    def __init__(self, settings: PairSettings, encoder: EncoderConfig):
        self.settings = settings
        self.encoder = encoder  # the base, with the lengths to train with

    @abstractmethod
    def trainer(self, checkpoint: Path, weights: np.ndarray | None, *arguments: Any) -> training.Trainer:
        """The trainer of a checkpoint's model with IDF weights (vocabulary,); `arguments` are those that
        transformers.Trainer takes after the model."""

    def recipe(self) -> artifact.Recipe:
        """Raises CaiError for a file or a checkpoint that is missing, and for texts longer than a checkpoint reads."""
        settings = self.settings
        self.require_positions()
        if not settings.data.is_file():
            raise CaiError(f"no file {settings.data}")
        inputs = {
            "data": file_digest(settings.data),
            "checkpoint": checkpoint_digest(checkpoint_folder(self.encoder)),
            "encoder": inherited(self.encoder),
            "idf": artifact.require(settings.idf, "idf").digest if settings.idf else None,
        }
        return artifact.recipe(self.stage, inputs, **recorded(settings, "data", "base", "idf"))

    def require_positions(self) -> None:
        """Raise CaiError for texts longer than the checkpoint reads."""
        lengths = {"--max-document-length": self.encoder.max_document_length}
        lengths["max_query_length"] = self.encoder.max_query_length
        require_positions(checkpoint_folder(self.encoder), lengths)

    def run(self, label: str | None = None) -> Path:
        """Write the trained checkpoint. `label` names it among the steps of an adaptation, which has estimated its
        duration."""
        training.require_one_gpu(self.settings.device)
        recipe = self.recipe()

        def write(output: Path) -> artifact.Stats | None:
            arguments = training.arguments(self.settings, output / training.WORK)
            training.start(arguments, recipe)
            settings = self.settings
            values = {
                "path": settings.data, "margins": settings.loss == "margin-mse", "negatives": settings.negatives
            }  # fmt: skip
            item = partial(in_epoch, negatives=settings.negatives)
            data = training.Epochs(training.dataset(examples, values, arguments), item)
            if min(len(data), settings.batch_size * arguments.world_size) * (1 + settings.negatives) == 1:
                raise CaiError("--loss in-batch: a batch has one document alone; use more examples, or --negatives")
            tokenizer = AutoTokenizer.from_pretrained(str(checkpoint_folder(self.encoder)))
            name = self.stage.removeprefix("trainer ")
            build = partial(self._build, arguments, tokenizer, data)
            return training.run(build, settings, label or name, label is None, self.encoder, tokenizer)

        return training.make(self.settings.output, recipe, write)

    def _build(self, arguments: Any, tokenizer: Any, data: Any) -> training.Trainer:
        """The trainer of the checkpoint."""
        checkpoint, weights = checkpoint_folder(self.encoder), None
        if self.settings.idf:
            weights = load_weights(self.settings.idf, self.encoder.idf_power, Tokenizer(checkpoint).vocabulary)
        lengths = self.encoder.max_query_length, self.encoder.max_document_length
        collator = Collator(tokenizer, *lengths, max(1, CHUNK[arguments.device.type] // lengths[1]))
        return self.trainer(checkpoint, weights, arguments, collator, data)

    def step_seconds(self, pool: Sequence[Example]) -> float:
        """How long a step takes on this machine, measured on batches that are drawn from `pool`."""
        tokenizer = AutoTokenizer.from_pretrained(str(checkpoint_folder(self.encoder)))
        with TemporaryDirectory() as folder:
            trainer = self._build(training.arguments(self.settings, Path(folder)), tokenizer, None)
            return training.step_seconds(trainer, pool)
