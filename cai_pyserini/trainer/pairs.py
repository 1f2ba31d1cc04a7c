"""Training on queries with positive and negative documents: what SPLADE and dense retrieval share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cai_pyserini import artifact
from cai_pyserini.artifact import file_digest
from cai_pyserini.cli import CaiError
from cai_pyserini.config import EncoderConfig, checkpoint_digest, checkpoint_folder
from cai_pyserini.idf import Idf
from cai_pyserini.trainer import settings

PART = {"cpu": 16, "cuda": 256}  # texts that go through the model together


@dataclass(frozen=True, kw_only=True)
class Settings(settings.Training):
    """What training on pairs can be told."""

    data: str = field(metadata={"help": 'JSONL of {"query", "positive", "negatives", "margins"}, .gz or not'})
    base: str = field(metadata={"help": "the encoder or model to train"})
    output: str = field(metadata={"help": "folder for the checkpoint"})
    loss: Literal["margin-mse", "in-batch"] = field(
        default="margin-mse", metadata={"help": "Margin-MSE with the margins, or in-batch negatives (MNRL)"}
    )
    negatives: int = field(default=1, metadata={"help": "of an example; a line with more becomes several examples"})
    idf: str | None = field(
        default=None,
        metadata={"help": "folder of the idf stage: weights documents in SPLADE's score, tokens in a mean"},
    )
    learning_rate: float = field(default=2e-5, metadata={"help": "of AdamW, at the end of the warm-up"})
    epochs: float = field(default=30, metadata={"help": "passes over the data"})


def train(
    stage: str, given: Settings, encoder: EncoderConfig, prepare: Callable[[Path, np.ndarray | None], tuple[Any, Any]]
) -> Path:
    """Write the trained checkpoint. `prepare` gives a model for a checkpoint and IDF weights (vocabulary,), and a
    function that makes its transformers.Trainer from what that takes."""
    checkpoint = checkpoint_folder(encoder)
    output = Path(given.output)
    recipe = {
        "stage": stage,
        "format": 1,
        "data": file_digest(Path(given.data)) if Path(given.data).is_file() else None,
        "checkpoint": checkpoint_digest(checkpoint),
        "idf": artifact.require_manifest(Path(given.idf), "idf")["digest"] if given.idf else None,
        "settings": settings.recipe(given, "data", "base", "idf"),
    }
    if artifact.is_fresh(output, recipe):
        return output
    from transformers import AutoTokenizer

    from cai_pyserini.trainer import run
    from cai_pyserini.trainer.data import Collator, examples

    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    weights = Idf.load(Path(given.idf)).weights(encoder.idf_power) if given.idf else None
    if weights is not None and len(weights) != len(tokenizer):
        raise CaiError(f"{given.idf} was made with another vocabulary than that of {given.base}")
    model, make_trainer = prepare(checkpoint, weights)
    arguments = run.arguments(given, output, recipe)
    wanted = {"path": given.data, "margins": given.loss == "margin-mse", "negatives": given.negatives}
    data = run.dataset(examples, wanted, arguments)
    collator = Collator(tokenizer, encoder.max_query_length, encoder.max_document_length, PART[arguments.device.type])
    trainer = make_trainer(model, arguments, collator, data)
    run.run(trainer, encoder, tokenizer, output, recipe, {"examples": len(data)})
    return output


def say(output: Path, stage: str) -> None:
    """Print what a training did."""
    facts = artifact.require_manifest(output, stage)
    settings.say(f"{output}: {facts['steps']:,} steps on {facts['examples']:,} examples, loss {facts['loss']:.4f}")
