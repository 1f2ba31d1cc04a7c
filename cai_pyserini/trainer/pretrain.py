"""Continual pretraining, the second half of AdaLM: masked language modelling on the texts of a domain.

15 % of the tokens are masked, as in BERT. Texts are packed: concatenated, each with its special tokens, and cut into
sequences of equal length, so that no computation is spent on padding. A share of the sequences is held out; their loss
is measured before and after.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import DataCollatorForLanguageModeling, TrainingArguments

from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import require_positions, require_safetensors
from cai_pyserini.models.folder import model_folder
from cai_pyserini.models.tokenizer import load_tokenizer, text_batches
from cai_pyserini.trainer import training
from cai_pyserini.trainer.corpus import corpus_recipe, texts
from cai_pyserini.trainer.examples import text_id
from cai_pyserini.trainer.settings import PretrainSettings

STAGE = "trainer pretrain"


def pretrain(settings: PretrainSettings) -> Path:
    """Pretrain a checkpoint, and write it. Raises CaiError for sequences longer than the base reads."""
    encoder = load_encoder(settings.base)
    checkpoint = model_folder(encoder)
    require_safetensors(checkpoint)
    require_positions(checkpoint, {"max_length": settings.max_length})

    def train(arguments: TrainingArguments) -> artifact.Stats:
        tokenizer = load_tokenizer(checkpoint)
        sequences = training.dataset(
            packed, arguments, checkpoint=str(checkpoint), corpora=settings.corpus, min_words=settings.min_words,
            length=settings.max_length,
        )  # fmt: skip
        size = max(1, round(settings.held_out * len(sequences)))
        split = sequences.train_test_split(test_size=size, seed=settings.seed)
        parts = [training.Epochs(split[name], partial(with_mask_seed, settings.seed)) for name in ("train", "test")]
        model = training.load_model(checkpoint, settings.dropout)
        collator = MaskingCollator(tokenizer, mlm_probability=settings.mask)
        trainer = MaskingTrainer(model, arguments, collator, *parts)
        torch.empty(
            (), dtype=torch.int64
        ).random_()  # as always after the first evaluation: equal recipes, equal weights
        return {"held_out": size} | training.run("pretraining", trainer, settings, encoder, tokenizer)

    return training.make(settings, corpus_recipe(STAGE, settings), train)


def packed(checkpoint: str, corpora: list[str], min_words: int, length: int) -> Iterator[dict[str, list[int]]]:
    """Yield sequences of exactly `length` tokens; the remaining tokens at the end are dropped. Raises CaiError for
    fewer than two sequences."""
    tokenizer = load_tokenizer(Path(checkpoint))  # here, because MeCab tokenizers cannot be pickled
    rest: list[int] = []
    count = 0
    for batch in text_batches(texts(corpora, min_words), len):
        encoded = tokenizer(batch, return_attention_mask=False, return_token_type_ids=False, verbose=False)
        for ids in encoded["input_ids"]:
            rest += ids
            while len(rest) >= length:
                yield {"input_ids": rest[:length]}
                rest = rest[length:]
                count += 1
    if count < 2:
        raise CaiError(
            f"the corpus yields {count} sequences of {length} tokens: use more text, or a smaller max_length"
        )


def with_mask_seed(seed: int, row: dict[str, list[int]], number: int, epoch: int) -> dict[str, Any]:
    """Add the seed of a sequence's masks in this epoch."""
    return row | {"seed": text_id(f"{seed} {epoch} {number}")}


class MaskingCollator(DataCollatorForLanguageModeling):
    """Mask each sequence by its own seed: differently in every epoch, but within an epoch always the same, in any
    batch, after a resumption, and in every measurement of the held-out loss."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        rows = []
        for example in examples:
            self.generator = torch.Generator().manual_seed(example["seed"])
            rows.append(super().torch_call([{"input_ids": example["input_ids"]}]))
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


class MaskingTrainer(training.Trainer):
    """Train a masked language model. The decoder computes the logits of masked tokens only: in a small model, those of
    all tokens are most of the work. The loss of a batch without masks is 0, where transformers returns NaN."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> Any:
        labels = inputs["labels"]
        masked = labels != -100
        decoder = self.model.get_output_embeddings()
        with decoder.register_forward_pre_hook(lambda _, hidden: (hidden[0][masked],)):
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        return F.cross_entropy(outputs.logits, labels[masked], reduction="sum") / masked.sum().clamp(min=1)
