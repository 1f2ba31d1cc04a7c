"""Dense retrieval: text -> one vector, the mean of its token vectors, perhaps weighted with IDF.

    v = normalized sum over tokens i of idf_i^power * h_i        (Iida & Okazaki 2022, baselines; without IDF: idf = 1)

Vectors have length 1, so that a dot product is a cosine. Special tokens, which no collection contains, have weight 1,
as in idf.py. Documents and queries are pooled alike.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cai_pyserini.cli import CaiError
from cai_pyserini.splade import Precision, TextEncoder, load_pretrained


class Dense(TextEncoder):
    """A dense encoder: any checkpoint of a transformer. `weights` (vocabulary,) are those of the tokens in the mean."""

    def __init__(
        self, checkpoint: Path, device: str = "auto", precision: Precision = "auto", weights: np.ndarray | None = None
    ):
        super().__init__(checkpoint, device, precision)
        if weights is not None and len(weights) != len(self.tokenizer):
            raise CaiError(f"{checkpoint} has {len(self.tokenizer):,} tokens, the IDF {len(weights):,}; make it anew")
        model = load_transformer(checkpoint)
        self.width = model.config.hidden_size
        self._take(model)
        chosen = torch.ones(len(self.tokenizer)) if weights is None else torch.from_numpy(weights).float()
        self._weights = chosen.to(self.device)

    @torch.inference_mode()
    def _entries(self, tokens: list[list[int]]) -> tuple[np.ndarray, ...]:
        """Rows, columns and values: every column of every row."""
        ids, mask = self._padded(tokens)
        hidden = self._run(ids, mask).last_hidden_state
        vectors = pooled(hidden, self._weights[ids] * mask).numpy(force=True)
        row, column = np.indices(vectors.shape)
        return row.ravel(), column.ravel(), vectors.ravel()


def pooled(hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Means of token vectors (texts, tokens, width) weighted with (texts, tokens), brought to length 1, float32."""
    sums = (hidden.float() * weights[..., None]).sum(1)
    return torch.nn.functional.normalize(sums, dim=-1)


def load_transformer(checkpoint: Path) -> Any:
    """The transformer of a checkpoint without its pooler, which makes another vector of the first token."""
    model = load_pretrained("AutoModel", checkpoint, "transformer")
    if hasattr(model, "pooler"):
        model.pooler = None
    return model
