"""Dense retrieval: text -> one vector, by default the mean of its token vectors, optionally weighted with IDF.

    v = normalized sum over tokens i of idf_i^power * h_i        (Iida & Okazaki 2022, baselines; without IDF: idf = 1)

A sentence-transformers folder may have other modules, such as pooling of the first token or a further layer; the
library's own classes run them. An adapted encoder also has a projection, a matrix W: its vector is v W, normalized.

Vectors have length 1, so that a dot product is a cosine, unless the model is made for dot products. Special tokens and
tokens that are not in the collection have weight 1. Documents and queries are pooled alike.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import PROJECTION_REMEDY, read_json, require_projection, require_safetensors
from cai_pyserini.models.device import Precision
from cai_pyserini.models.folder import Module, Side
from cai_pyserini.models.transformer import TextEncoder, Transformer, load_pretrained

ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel"}  # classes without the decoder, by model type


class Dense(TextEncoder[np.ndarray]):
    """A dense encoder: any transformer checkpoint. `weights` (vocabulary,) weight the tokens
    in the mean. `projection` is a safetensors file with the tensor `weight` (width, width) that vectors are multiplied
    by. `pooling` replaces the side's modules. Vectors are truncated to `dimensions`."""

    def __init__(
        self,
        side: Side | Path,
        device: str = "auto",
        precision: Precision = "auto",
        weights: np.ndarray | None = None,
        *,
        projection: Path | None = None,
        pooling: str | None = None,
        dimensions: int | None = None,
        similarity: Literal["cosine", "dot"] = "cosine",
    ):
        side = Side(side) if isinstance(side, Path) else side
        checkpoint = side.folder
        model = load_transformer(checkpoint)
        transformer = Transformer(checkpoint, model, device, precision)
        self._modules = torch.nn.ModuleList()
        if pooling or similarity == "dot" or side.modules:
            modules = () if pooling else side.modules
            self._modules.extend(load_modules(modules, model.config.hidden_size, pooling or "mean"))
        self._modules.eval().to(transformer.device)
        self._scaled, self._dimensions = similarity == "cosine", dimensions
        self.prompt_tokens = 0
        probe = torch.zeros(1, 1, model.config.hidden_size, device=transformer.device)
        super().__init__(transformer, self._pooled(probe, probe[..., 0] + 1).shape[1])
        if dimensions and dimensions > self.width:
            raise CaiError(f"{checkpoint} has {self.width} dimensions, fewer than `dimensions`, {dimensions}: lower it")
        if weights is not None and len(weights) != len(self.tokenizer):
            raise CaiError(
                f"{checkpoint} has {len(self.tokenizer):,} tokens, the IDF {len(weights):,}: compute the IDF with this "
                "encoder"
            )
        token_weights = torch.ones(len(self.tokenizer)) if weights is None else torch.from_numpy(weights).float()
        self._weights = token_weights.to(transformer.device)
        self._projection = load_projection(projection, self.width) if projection else None

    def _zero_vector(self) -> np.ndarray:
        return np.zeros((1, self.width), np.float32)

    def with_prompt(self, prompt: str) -> Self:
        model = super().with_prompt(prompt)
        model.prompt_tokens = self.tokenizer.prompt_tokens(prompt) if prompt else 0
        return model

    @torch.inference_mode()
    def _vectors(self, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
        hidden = self.transformer(ids, mask).last_hidden_state
        vectors = self._pooled(hidden, self._weights[ids] * mask).numpy(force=True)
        return vectors if self._projection is None else project(vectors, self._projection)

    def _pooled(self, hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Pool token vectors (texts, tokens, dimensions), weights (texts, tokens), into float32 (texts, width)."""
        if not self._modules and not self._dimensions:
            return pooled(hidden, weights)
        features: dict[str, Any] = {
            "token_embeddings": hidden.float(),
            "attention_mask": weights,
            "prompt_length": self.prompt_tokens,
        }
        if not self._modules:
            features["sentence_embedding"] = pooled(hidden, weights)
        for module in self._modules:
            features = module(features)
        vectors: torch.Tensor = features["sentence_embedding"][:, : self._dimensions]
        return torch.nn.functional.normalize(vectors, dim=-1) if self._scaled else vectors


def load_modules(modules: Sequence[Module], width: int, mode: str) -> list[torch.nn.Module]:
    """Load the modules that pool token vectors of this width; one of this `mode` if none of them is Pooling."""
    from sentence_transformers.base.modules import Dense as Layer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

    kinds: dict[str, Any] = {"Pooling": Pooling, "Dense": Layer, "LayerNorm": LayerNorm}
    loaded: list[torch.nn.Module] = []
    for module in modules:
        if module.name in ("Dense", "LayerNorm"):
            require_safetensors(module.folder)
        try:
            if module.name == "Normalize":  # its folder is often missing, because git keeps no empty folders
                loaded.append(Normalize(**module.config))
            elif module.name in kinds:  # Dropout has no effect in inference
                loaded.append(kinds[module.name].load(str(module.folder)).float())
        except Exception as error:  # of many kinds
            raise CaiError(f"{module.folder}: the module {module.name} cannot be read ({error})") from None
    pools = any(module.name == "Pooling" for module in modules)
    return loaded if pools else [Pooling(width, pooling_mode=mode), *loaded]


def pooled(hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted means of token vectors (texts, tokens, width), weights (texts, tokens), scaled to length 1, float32."""
    return torch.nn.functional.normalize((hidden.float() * weights[..., None]).sum(1), dim=-1)


def project(vectors: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Multiply vectors (texts, width) by a projection (width, width), and scale them to length 1; zero stays zero."""
    product: np.ndarray = vectors @ projection
    return product / np.maximum(np.linalg.norm(product, axis=1, keepdims=True), 1e-12)


def load_projection(path: Path, width: int) -> np.ndarray:
    """Read the tensor `weight`, float32 (width, width), of a safetensors file. Raises CaiError if there is none."""
    try:
        weight = load_file(require_projection(path))["weight"]
    except (SafetensorError, KeyError) as error:
        raise CaiError(f"{path} is not a safetensors file with `weight` ({error}): {PROJECTION_REMEDY}") from None
    if weight.dtype != torch.float32 or weight.shape != (width, width):
        found = f"{str(weight.dtype).removeprefix('torch.')} {tuple(weight.shape)}"
        raise CaiError(f"{path}: `weight` is {found}, but vectors need float32 {(width, width)}: {PROJECTION_REMEDY}")
    return weight.numpy()


def load_transformer(checkpoint: Path) -> Any:
    """Load the transformer of a checkpoint without its pooler, which is not used."""
    kind = ENCODERS.get(read_json(checkpoint / "config.json").get("model_type"), "AutoModel")
    model = load_pretrained(kind, checkpoint, "transformer")
    if hasattr(model, "pooler"):
        model.pooler = None
    return model
