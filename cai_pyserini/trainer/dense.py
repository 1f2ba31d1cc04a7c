"""Dense retrieval training: Margin-MSE with a teacher's margins, or in-batch negatives for labelled pairs.

Vectors are those of cai_pyserini.dense: means of token vectors, weighted with IDF where one is given (the paper's CAI
for dense retrieval). Their cosines are multiplied with `scale`, because a teacher's margins go far beyond 2.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cai_pyserini import cli
from cai_pyserini.config import load_encoder
from cai_pyserini.trainer import pairs, settings


@dataclass(frozen=True, kw_only=True)
class Settings(pairs.Settings):
    """What dense training can be told. Defaults are the paper's."""

    scale: float = field(default=20, metadata={"help": "a score is so many times the cosine"})
    max_document_length: int = field(default=300, metadata={"help": "tokens"})
    batch_size: int = field(default=64, metadata={"help": "queries a device and step"})


def make_trainer(*arguments: Any, given: Settings, token_weights: Any) -> Any:
    """A transformers.Trainer of a transformer."""
    import torch
    from transformers import Trainer

    from cai_pyserini.dense import pooled
    from cai_pyserini.trainer import loss

    class DenseTrainer(Trainer):
        def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
            with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
                queries, documents = (self.vectors(model, inputs[side]) for side in ("queries", "documents"))
            documents = documents.unflatten(0, (-1, len(queries))).transpose(0, 1)  # (texts, 1 + negatives, width)
            queries, documents = loss.gathered(queries), loss.gathered(documents)
            return loss.shared(loss.ranking(given.loss, given.scale * queries, documents, inputs))

        def vectors(self, model: Any, texts: dict[str, Any]) -> torch.Tensor:
            weights = token_weights.to(self.args.device)
            parts = [
                pooled(model(**part).last_hidden_state, weights[part["input_ids"]] * part["attention_mask"])
                for part in texts["parts"]
            ]
            return torch.cat(parts)[texts["places"]]

    return DenseTrainer(*arguments)


def train(given: Settings) -> Path:
    """Write the trained checkpoint."""
    encoder = replace(load_encoder(given.base), kind="dense", max_document_length=given.max_document_length)

    def prepare(checkpoint: Path, weights: Any) -> tuple[Any, Any]:
        import torch

        from cai_pyserini.dense import load_transformer
        from cai_pyserini.trainer import run

        model = run.anew(load_transformer(checkpoint))
        idf = torch.ones(model.config.vocab_size) if weights is None else torch.from_numpy(weights).float()
        return model, partial(make_trainer, given=given, token_weights=idf)

    return pairs.train("dense", given, encoder, prepare)


def main() -> None:
    given = settings.parse(
        Settings,
        "Train a dense retriever on queries with positive and negative documents.",
        "python -m cai_pyserini.trainer.dense --data triples.jsonl --base minilm --output models/dense",
    )
    pairs.say(train(given), "dense")


if __name__ == "__main__":
    cli.run(main)
