"""Continual pretraining, the second half of AdaLM: masked language modelling on the texts of a domain.

15 % of the tokens are masked as BERT masks them. The texts are packed: one after the other, each with its special
tokens, cut into sequences of equal length, so that no computation goes into padding. A part of the sequences is held
out; their loss is measured before and after.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import Any

from cai_pyserini import artifact, cli
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder
from cai_pyserini.trainer import corpus, settings


@dataclass(frozen=True, kw_only=True)
class Settings(settings.Training):
    """What pretraining can be told. The paper: batches of 32 on each of 8 GPUs, one epoch."""

    corpus: list[str] = field(metadata={"help": corpus.HELP})
    base: str = field(metadata={"help": "the encoder or masked language model to train on"})
    output: str = field(metadata={"help": "folder for the checkpoint"})
    batch_size: int = field(default=32, metadata={"help": "sequences a device and step"})
    learning_rate: float = field(default=5e-5, metadata={"help": "of AdamW, at the end of the warm-up"})
    epochs: float = field(default=1, metadata={"help": "passes over the corpus"})
    max_length: int = field(default=512, metadata={"help": "tokens a sequence"})
    mask: float = field(default=0.15, metadata={"help": "share of the tokens that are masked"})
    held_out: float = field(default=0.02, metadata={"help": "share of the sequences that measure the loss"})
    min_words: int = field(default=0, metadata={"help": "leave out shorter texts (the paper: 128)"})


def packed(tokenizer: Any, corpora: list[str], min_words: int, length: int) -> Iterator[dict[str, list[int]]]:
    """Sequences of exactly `length` tokens; what is left at the end is no whole one and is dropped."""
    rest: list[int] = []
    for part in batched(corpus.texts(corpora, min_words), 1024):
        for ids in tokenizer(list(part), return_attention_mask=False, return_token_type_ids=False, verbose=False)[
            "input_ids"
        ]:
            rest += ids
            while len(rest) >= length:
                yield {"input_ids": rest[:length]}
                rest = rest[length:]


def pretrain(given: Settings) -> Path:
    """Write the pretrained checkpoint."""
    encoder = load_encoder(given.base)
    checkpoint = checkpoint_folder(encoder)
    output = Path(given.output)
    recipe = {
        "stage": "pretrain",
        "format": 1,
        "corpus": corpus.fingerprint(given.corpus),
        "checkpoint": checkpoint_digest(checkpoint),
        "settings": settings.recipe(given, "corpus", "base"),
    }
    if artifact.is_fresh(output, recipe):
        return output
    from transformers import AutoTokenizer, Trainer

    from cai_pyserini.trainer import run

    model = run.load(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    arguments = run.arguments(given, output, recipe)
    text = {"corpora": given.corpus, "min_words": given.min_words}
    sequences = run.dataset(packed, {"tokenizer": tokenizer, "length": given.max_length} | text, arguments)
    if len(sequences) < 2:
        raise cli.CaiError(
            f"the corpus makes {len(sequences)} sequences of {given.max_length} tokens: give more, or --max-length"
        )
    parts = sequences.train_test_split(test_size=max(1, round(given.held_out * len(sequences))), seed=given.seed)
    trainer = Trainer(model, arguments, collator(tokenizer, given), parts["train"], parts["test"])
    facts = {"sequences": len(parts["train"]), "held_out": len(parts["test"])}
    run.run(trainer, encoder, tokenizer, output, recipe, facts)
    return output


def collator(tokenizer: Any, given: Settings) -> Any:
    """Masks tokens. What is masked depends on the seed and the batch alone, so that it is the same after a resumption
    and in every measurement of the held-out loss."""
    import torch
    from transformers import DataCollatorForLanguageModeling

    class Collator(DataCollatorForLanguageModeling):
        def torch_call(self, examples: list[dict[str, list[int]]]) -> dict[str, Any]:
            self.generator = torch.Generator().manual_seed(given.seed + sum(sum(e["input_ids"]) for e in examples))
            return super().torch_call(examples)

    return Collator(tokenizer, mlm_probability=given.mask, seed=given.seed)


def main() -> None:
    given = settings.parse(
        Settings,
        "Continue the pretraining of a masked language model on a corpus.",
        "python -m cai_pyserini.trainer.pretrain --corpus hpo --base models/vocabulary --output models/pretrained",
    )
    manifest = artifact.require_manifest(pretrain(given), "pretrain")
    settings.say(
        f"{given.output}: {manifest['steps']:,} steps, held-out loss {manifest['held_out_loss_before']:.3f} -> "
        f"{manifest['held_out_loss_after']:.3f}"
    )


if __name__ == "__main__":
    cli.run(main)
