"""Dense retrieval training: Margin-MSE with a teacher's margins, or in-batch negatives for labelled pairs.

Vectors are those of cai_pyserini.dense: means of token vectors, weighted with IDF where one is given (the paper's CAI
for dense retrieval). Their cosines are multiplied with `scale`, because a teacher's margins go far beyond 2.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cai_pyserini import artifact, cli
from cai_pyserini.artifact import file_digest
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder
from cai_pyserini.trainer import settings

PART = {"cpu": 16, "cuda": 256}  # texts that go through the model together


@dataclass(frozen=True, kw_only=True)
class Settings(settings.Training):
    """What dense training can be told. Defaults are the paper's."""

    data: str = field(metadata={"help": 'JSONL of {"query", "positive", "negatives", "margins"}, .gz or not'})
    base: str = field(metadata={"help": "the encoder or transformer to train"})
    output: str = field(metadata={"help": "folder for the checkpoint"})
    loss: Literal["margin-mse", "in-batch"] = field(
        default="margin-mse", metadata={"help": "Margin-MSE with the margins, or in-batch negatives (MNRL)"}
    )
    negatives: int = field(default=1, metadata={"help": "of an example; a line with more becomes several examples"})
    idf: str | None = field(default=None, metadata={"help": "folder of the idf stage: weights tokens in the mean"})
    scale: float = field(default=20, metadata={"help": "a score is so many times the cosine"})
    max_document_length: int = field(default=300, metadata={"help": "tokens"})
    batch_size: int = field(default=64, metadata={"help": "queries a device and step"})
    learning_rate: float = field(default=2e-5, metadata={"help": "of AdamW, at the end of the warm-up"})
    epochs: float = field(default=30, metadata={"help": "passes over the data"})


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
    checkpoint = checkpoint_folder(encoder)
    output = Path(given.output)
    recipe = {
        "stage": "dense",
        "format": 1,
        "data": file_digest(Path(given.data)) if Path(given.data).is_file() else None,
        "checkpoint": checkpoint_digest(checkpoint),
        "idf": artifact.require_manifest(Path(given.idf), "idf")["digest"] if given.idf else None,
        "settings": settings.recipe(given, "data", "base", "idf"),
    }
    if artifact.is_fresh(output, recipe):
        return output
    import torch
    from transformers import AutoTokenizer

    from cai_pyserini.dense import load_transformer
    from cai_pyserini.idf import Idf
    from cai_pyserini.trainer import run
    from cai_pyserini.trainer.data import Collator, examples

    model = run.anew(load_transformer(checkpoint))
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    weights = torch.ones(len(tokenizer))
    if given.idf:
        weights = torch.from_numpy(Idf.load(Path(given.idf)).weights(encoder.idf_power)).float()
    arguments = run.arguments(given, output, recipe)
    wanted = {"path": given.data, "margins": given.loss == "margin-mse", "negatives": given.negatives}
    data = run.dataset(examples, wanted, arguments)
    collator = Collator(tokenizer, encoder.max_query_length, encoder.max_document_length, PART[arguments.device.type])
    trainer = make_trainer(model, arguments, collator, data, given=given, token_weights=weights)
    run.run(trainer, encoder, tokenizer, output, recipe, {"examples": len(data)})
    return output


def main() -> None:
    given = settings.parse(
        Settings,
        "Train a dense retriever on queries with positive and negative documents.",
        "python -m cai_pyserini.trainer.dense --data triples.jsonl --base minilm --output models/dense",
    )
    manifest = artifact.require_manifest(train(given), "dense")
    if os.environ.get("RANK", "0") != "0":
        return  # one of several processes speaks
    print(
        f"{given.output}: {manifest['steps']:,} steps on {manifest['examples']:,} examples, loss {manifest['loss']:.4f}"
    )


if __name__ == "__main__":
    cli.run(main)
