"""Dense retrieval training: Margin-MSE with a teacher's margins, or in-batch negatives for labelled pairs.

Vectors are those of cai_pyserini.models.dense: means of token vectors, with an IDF weighted by it (the paper's CAI for
dense retrieval). A score is their cosine times `scale`, because a teacher's margins go far beyond 2.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cai_pyserini.core.config import load_encoder
from cai_pyserini.models.dense import load_transformer, pooled
from cai_pyserini.trainer import loss, training
from cai_pyserini.trainer.pairs import PairTraining
from cai_pyserini.trainer.settings import DenseSettings


class DenseTraining(PairTraining):
    """A training of a dense retriever."""

    stage = "trainer dense"
    settings: DenseSettings

    def __init__(self, settings: DenseSettings):
        encoder = load_encoder(settings.base)
        super().__init__(settings, encoder.replace(kind="dense", max_document_length=settings.max_document_length))

    def trainer(self, checkpoint: Path, weights: np.ndarray | None, *arguments: Any) -> training.Trainer:
        model = training.rebuilt(load_transformer(checkpoint), self.settings.dropout)
        idf = torch.ones(model.config.vocab_size) if weights is None else torch.from_numpy(weights).float()
        return DenseTrainer(model, *arguments, settings=self.settings, token_weights=idf)


class DenseTrainer(training.Trainer):
    """The Trainer of a transformer; `token_weights` (vocabulary,) are those of the tokens in a mean."""

    def __init__(self, *arguments: Any, settings: DenseSettings, token_weights: torch.Tensor):
        super().__init__(*arguments)
        self._settings = settings
        self._token_weights = token_weights

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
            queries, documents = (self._vectors(model, inputs[side]) for side in ("queries", "documents"))
        documents = documents.unflatten(0, (-1, len(queries))).transpose(0, 1)  # (texts, 1 + negatives, width)
        queries, documents = loss.gather(queries), loss.gather(documents)
        ranking = loss.ranking(self._settings.loss, self._settings.scale * queries, documents, inputs)
        return loss.scale_for_ddp(ranking)

    def _vectors(self, model: Any, texts: dict[str, Any]) -> torch.Tensor:
        """Vectors of a side of a batch, (texts, width)."""
        weights = self._token_weights.to(self.args.device)
        chunks = [
            pooled(model(**chunk).last_hidden_state, weights[chunk["input_ids"]] * chunk["attention_mask"])
            for chunk in texts["chunks"]
        ]
        return torch.cat(chunks)[texts["positions"]]
