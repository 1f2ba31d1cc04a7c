"""Continual pretraining, the second half of AdaLM: masked language modelling on the texts of a domain.

15 % of the tokens are masked as BERT masks them. The texts are packed: one after the other, each with its special
tokens, cut into sequences of equal length, so that no computation goes into padding. A share of the sequences is held
out; their loss is measured before and after.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import batched, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_folder, require_positions
from cai_pyserini.trainer import training
from cai_pyserini.trainer.examples import text_id
from cai_pyserini.trainer.settings import PretrainSettings
from cai_pyserini.trainer.texts import corpus_recipe, texts

STAGE = "trainer pretrain"


def recipe(settings: PretrainSettings) -> artifact.Recipe:
    """What the pretrained checkpoint depends on. Raises CaiError for sequences longer than the base reads."""
    require_positions(checkpoint_folder(load_encoder(settings.base)), {"--max-length": settings.max_length})
    return corpus_recipe(STAGE, settings)


def pretrain(settings: PretrainSettings, label: str | None = None) -> Path:
    """Write the pretrained checkpoint. `label` names the step in an adaptation, which has estimated its duration."""
    training.require_one_gpu(settings.device)
    encoder = load_encoder(settings.base)
    made_by = recipe(settings)

    def write(output: Path) -> artifact.Stats | None:
        arguments = training.arguments(settings, output / training.WORK)
        training.start(arguments, made_by)
        checkpoint = checkpoint_folder(encoder)
        tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
        values = {
            "tokenizer": tokenizer, "corpora": settings.corpus, "min_words": settings.min_words,
            "length": settings.max_length,
        }  # fmt: skip
        sequences = training.dataset(packed, values, arguments)
        if len(sequences) < 2:
            raise CaiError(
                f"the corpus makes {len(sequences)} sequences of {settings.max_length} tokens: use more text, or "
                "a smaller --max-length"
            )
        size = max(1, round(settings.held_out * len(sequences)))
        split = sequences.train_test_split(test_size=size, seed=settings.seed)
        train, held_out = (training.Epochs(split[name], partial(drawn, settings.seed)) for name in ("train", "test"))

        def build() -> training.Trainer:
            model = training.load_model(checkpoint, settings.dropout)
            return MaskingTrainer(model, arguments, collator(tokenizer, settings), train, held_out)

        stats = training.run(build, settings, label or "pretraining", label is None, encoder, tokenizer)
        return None if stats is None else {"held_out": size} | stats

    return training.make(settings.output, made_by, write)


def packed(tokenizer: Any, corpora: list[str], min_words: int, length: int) -> Iterator[dict[str, list[int]]]:
    """Sequences of exactly `length` tokens; what is left at the end is dropped."""
    yield from _packed(tokenizer, texts(corpora, min_words), length)


def _packed(tokenizer: Any, texts: Iterator[str], length: int) -> Iterator[dict[str, list[int]]]:
    rest: list[int] = []
    for batch in batched(texts, 1024):
        encoded = tokenizer(list(batch), return_attention_mask=False, return_token_type_ids=False, verbose=False)
        for ids in encoded["input_ids"]:
            rest += ids
            while len(rest) >= length:
                yield {"input_ids": rest[:length]}
                rest = rest[length:]


def drawn(seed: int, row: dict[str, list[int]], number: int, epoch: int) -> dict[str, Any]:
    """A sequence with the seed of its masks in this epoch."""
    return row | {"seed": text_id(f"{seed} {epoch} {number}")}


class MaskingCollator(DataCollatorForLanguageModeling):
    """Masks each sequence by its own seed: others in every epoch, the same after a resumption, in any batch, and in
    every measurement of the held-out loss."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        rows = []
        for example in examples:
            self.generator = torch.Generator().manual_seed(example["seed"])
            rows.append(super().torch_call([{"input_ids": example["input_ids"]}]))
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


class MaskingTrainer(training.Trainer):
    """The Trainer of a masked language model. The loss of a batch without a mask is 0; that of transformers is NaN."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, *_: Any, **__: Any) -> Any:
        labels = inputs["labels"]
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        total = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = total / (labels != -100).sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss


def collator(tokenizer: Any, settings: PretrainSettings) -> MaskingCollator:
    """The collator that makes batches of sequences."""
    return MaskingCollator(tokenizer, mlm_probability=settings.mask)


def measure(settings: PretrainSettings, sample: Sequence[str], size: int) -> tuple[int, float]:
    """The number of steps on a corpus of `size` texts like those of the sample, and the seconds that one takes."""
    checkpoint = checkpoint_folder(load_encoder(settings.base))
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    tokens = sum(map(len, tokenizer(list(sample))["input_ids"])) / len(sample)
    sequences = round((1 - settings.held_out) * size * tokens / settings.max_length)
    with TemporaryDirectory() as folder:
        arguments = training.arguments(settings, Path(folder))
        model = training.load_model(checkpoint, settings.dropout)
        trainer = MaskingTrainer(model, arguments, collator(tokenizer, settings))
        rows = list(islice(_packed(tokenizer, cycle(sample), settings.max_length), settings.batch_size))
        seconds = training.step_seconds(trainer, training.Epochs(rows, partial(drawn, settings.seed)))
    return training.total_steps(settings, sequences), seconds
