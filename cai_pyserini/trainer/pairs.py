"""Training of SPLADE and dense retrievers on queries with positive and negative documents.

The vectors of dense retrieval are those of cai_pyserini.models.dense: means of token vectors, which an IDF weights (the
paper's CAI for dense retrieval). A score is their cosine times `scale`, because a teacher's margins go far beyond 2.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, TrainingArguments

from cai_pyserini.core import artifact
from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.idf.idf import load_weights
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder, require_positions
from cai_pyserini.models.dense import load_transformer, pooled
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.trainer import loss, training
from cai_pyserini.trainer.examples import Collator, by_query, encoded, examples, in_epoch
from cai_pyserini.trainer.settings import DenseSettings, SpladeSettings, inherited, recorded
from cai_pyserini.trainer.splade import SpladeTrainer

CHUNK = {"cpu": 4_608, "cuda": 65_536}  # tokens that go through the model together


def base_encoder(settings: SpladeSettings | DenseSettings) -> EncoderConfig:
    """The encoder to train, with the lengths to train with. Raises CaiError for texts longer than it reads."""
    encoder = load_encoder(settings.base)
    if isinstance(settings, DenseSettings):
        encoder = encoder.replace(kind="dense")
    if settings.max_document_length:
        encoder = encoder.replace(max_document_length=settings.max_document_length)
    lengths = {"--max-document-length": encoder.max_document_length, "max_query_length": encoder.max_query_length}
    require_positions(checkpoint_folder(encoder), lengths)
    return encoder


def train(settings: SpladeSettings | DenseSettings) -> Path:
    """Write the trained checkpoint.

    Raises CaiError for a file or a checkpoint that is missing, and for texts longer than the checkpoint reads.
    """
    training.require_one_gpu(settings.device)
    encoder = base_encoder(settings)
    if not settings.data.is_file():
        raise CaiError(f"no file {settings.data}")
    checkpoint = checkpoint_folder(encoder)
    name = "dense" if isinstance(settings, DenseSettings) else "splade"

    def write(arguments: TrainingArguments) -> artifact.Stats | None:
        margins, negatives = settings.loss == "margin-mse", settings.negatives
        rows = training.dataset(examples, arguments, path=settings.data, margins=margins, negatives=negatives)
        data = training.Epochs(rows, partial(in_epoch, negatives=negatives))
        if min(len(data), settings.batch_size * arguments.world_size) * (1 + negatives) == 1:
            raise CaiError("--loss in-batch: a batch has one document alone; use more examples, or --negatives")
        tokenizer, idf = AutoTokenizer.from_pretrained(str(checkpoint)), None
        if settings.idf:
            idf = load_weights(settings.idf, encoder.idf_power, Tokenizer(checkpoint).vocabulary)
        chunk = max(1, CHUNK[arguments.device.type] // encoder.max_document_length)
        collator = Collator(tokenizer, encoder.max_query_length, encoder.max_document_length, chunk)
        kind: Any = DenseTrainer if name == "dense" else SpladeTrainer
        trainer = kind(checkpoint, idf, settings, arguments, collator, data)
        return training.run(name, trainer, settings, encoder, tokenizer)

    inputs = {
        "data": file_digest(settings.data),
        "checkpoint": checkpoint_digest(checkpoint),
        "encoder": inherited(encoder),
        "idf": artifact.require(settings.idf, "idf").digest if settings.idf else None,
    }
    recipe = artifact.recipe(f"trainer {name}", inputs, **recorded(settings, "data", "base", "idf"))
    return training.make(settings, recipe, write)


class DenseTrainer(training.Trainer):
    """The Trainer of a checkpoint's transformer; `idf` (vocabulary,) weights the tokens in a mean."""

    def __init__(self, checkpoint: Path, idf: np.ndarray | None, settings: DenseSettings, *more: Any):
        super().__init__(training.rebuilt(load_transformer(checkpoint), settings.dropout), *more)
        weights = torch.ones(self.model.config.vocab_size) if idf is None else torch.from_numpy(idf).float()
        self._token_weights = weights.to(self.args.device)
        self._settings = settings

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        def encode(chunk: dict[str, torch.Tensor]) -> torch.Tensor:
            weights = self._token_weights[chunk["input_ids"]] * chunk["attention_mask"]
            return pooled(model(**chunk).last_hidden_state, weights)

        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
            queries, documents = encoded(inputs["queries"], encode), encoded(inputs["documents"], encode)
        queries, documents = loss.gather(queries), loss.gather(by_query(documents, queries))
        ranking = loss.ranking(self._settings.loss, self._settings.scale * queries, documents, inputs)
        return loss.scale_for_ddp(ranking)
