"""Dense retrieval: text -> one vector, the mean of its token vectors, optionally weighted with IDF.

    v = normalized sum over tokens i of idf_i^power * h_i        (Iida & Okazaki 2022, baselines; without IDF: idf = 1)

An adapted encoder also has a projection, a matrix W: its vector is v W, normalized.

Vectors have length 1, so that a dot product is a cosine. Special tokens have weight 1, as every token that the
collection does not contain. Documents and queries are pooled alike. The vector of a text of several windows is the
normalized mean of theirs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import PROJECTION_REMEDY, require_projection
from cai_pyserini.models.device import Precision
from cai_pyserini.models.tokenizer import Windows
from cai_pyserini.models.transformer import TextEncoder, Transformer, load_pretrained


class Dense(TextEncoder[np.ndarray]):
    """A dense encoder: any transformer checkpoint. `weights` (vocabulary,) are those of the tokens in the mean;
    `projection` is a safetensors file with the tensor `weight` (width, width), by which each mean is multiplied."""

    def __init__(
        self,
        checkpoint: Path,
        device: str = "auto",
        precision: Precision = "auto",
        weights: np.ndarray | None = None,
        projection: Path | None = None,
    ):
        model = load_transformer(checkpoint)
        super().__init__(Transformer(checkpoint, model, device, precision), model.config.hidden_size)
        if weights is not None and len(weights) != len(self.tokenizer):
            raise CaiError(
                f"{checkpoint} has {len(self.tokenizer):,} tokens, the IDF {len(weights):,}: compute the IDF with this "
                "encoder"
            )
        chosen = torch.ones(len(self.tokenizer)) if weights is None else torch.from_numpy(weights).float()
        self._weights = chosen.to(self.transformer.device)
        self._projection = load_projection(projection, self.width) if projection else None

    def assemble(self, windows: Windows, pieces: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        sums = np.zeros((len(windows.counts), self.width), np.float32)
        for positions, found in pieces:
            np.add.at(sums, positions, found)
        return sums

    def finish(self, sums: np.ndarray, windows: Windows) -> np.ndarray:
        several = windows.counts > 1
        sums[several] /= np.linalg.norm(sums[several], axis=1, keepdims=True)
        return sums

    @torch.inference_mode()
    def _vectors(self, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
        hidden = self.transformer(ids, mask).last_hidden_state
        vectors = pooled(hidden, self._weights[ids] * mask).numpy(force=True)
        return vectors if self._projection is None else project(vectors, self._projection)


def pooled(hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Means of token vectors (texts, tokens, width) weighted with (texts, tokens), scaled to length 1, float32."""
    sums = (hidden.float() * weights[..., None]).sum(1)
    return torch.nn.functional.normalize(sums, dim=-1)


def project(vectors: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Vectors (texts, width) times a projection (width, width), scaled to length 1; zero ones stay zero."""
    product: np.ndarray = vectors @ projection
    return product / np.maximum(np.linalg.norm(product, axis=1, keepdims=True), 1e-12)


def load_projection(path: Path, width: int) -> np.ndarray:
    """The tensor `weight`, float32 (width, width), of a safetensors file. Raises CaiError if it is not there."""
    try:
        weight = load_file(require_projection(path)).get("weight")
    except SafetensorError as error:
        raise CaiError(f"{path} is not a safetensors file ({error}): {PROJECTION_REMEDY}") from None
    if weight is None:
        raise CaiError(f"{path} has no tensor `weight`: {PROJECTION_REMEDY}")
    if weight.dtype != torch.float32 or weight.shape != (width, width):
        found = f"{str(weight.dtype).removeprefix('torch.')} {tuple(weight.shape)}"
        raise CaiError(f"{path}: `weight` is {found}, but vectors need float32 {(width, width)}: {PROJECTION_REMEDY}")
    return weight.numpy()


def load_transformer(checkpoint: Path) -> Any:
    """The transformer of a checkpoint without its pooler, which computes another vector of the first token."""
    model = load_pretrained("AutoModel", checkpoint, "transformer")
    if hasattr(model, "pooler"):
        model.pooler = None
    return model
