"""SPLADE: text -> sparse vector over the vocabulary of a masked language model.

    w_v = max over tokens i of log(1 + relu(logit_iv))            (Formal et al. 2021; Iida & Okazaki 2022, eq. 3)

log1p and relu are monotonic, so the maximum is taken over the logits, and the rest is done once per vocabulary entry.
Some checkpoints were trained with log(1 + log(1 + relu(x))) in place of log(1 + relu(x)), or to keep only the largest
weights of a text.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.device import Precision
from cai_pyserini.models.head import activated, max_logits
from cai_pyserini.models.int8 import Int8Head
from cai_pyserini.models.rows import largest
from cai_pyserini.models.tokenizer import Done, TokenIds
from cai_pyserini.models.transformer import TextEncoder, Transformer, load_pretrained

REMEDY = "choose a checkpoint whose masked-language-model head ends in one, or `kind: dense`"


class Splade(TextEncoder[csr_matrix]):
    """A SPLADE encoder: any checkpoint with a masked-language-model head whose decoder is a linear layer.
    `activation` is relu or log1p_relu, `max_active_dims` the number of weights to keep."""

    def __init__(
        self,
        checkpoint: Path,
        device: str = "auto",
        precision: Precision = "auto",
        *,
        activation: str = "relu",
        max_active_dims: int | None = None,
    ):
        model, decoder = load_masked_lm(checkpoint)
        transformer = Transformer(checkpoint, model, device, precision, decoder)
        size = len(transformer.tokenizer)  # a decoder may be padded beyond the vocabulary
        super().__init__(transformer, size)
        embeddings = decoder.weight.detach()[:size]
        bias = torch.zeros(size) if decoder.bias is None else decoder.bias.detach()[:size]
        self._activation, self._max_active_dims = activation, max_active_dims
        self._pool: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
        if self.transformer.precision == "int8":
            self._pool = Int8Head(embeddings, bias)
        else:
            place = self.transformer.device, self.transformer.dtype
            self._pool = partial(max_logits, weight=embeddings.to(*place).contiguous(), bias=bias.to(*place))

    def encode_batches(
        self, tokens: TokenIds, batch_size: int | None, done: Done
    ) -> Iterator[tuple[np.ndarray, csr_matrix]]:
        for positions, vectors in super().encode_batches(tokens, batch_size, done):
            yield positions, largest(vectors, self._max_active_dims) if self._max_active_dims else vectors

    def _zero_vector(self) -> csr_matrix:
        return csr_matrix((1, self.width), dtype=np.float32)

    @torch.inference_mode()
    def _vectors(self, ids: torch.Tensor, mask: torch.Tensor) -> csr_matrix:
        hidden = self.transformer(ids, mask).logits  # the decoder is bypassed
        pooled = self._pool(hidden, mask)
        kept = pooled.le(0).logical_not_()  # keeps NaN, which the caller refuses
        weights = activated(pooled[kept], self._activation)
        columns = kept.nonzero()[:, 1].int()
        indptr = np.concatenate([[0], kept.sum(1).cumsum(0).numpy(force=True)])
        entries = weights.numpy(force=True), columns.numpy(force=True), indptr
        return csr_matrix(entries, (len(ids), self.width))


def load_masked_lm(checkpoint: Path) -> tuple[Any, torch.nn.Linear]:
    """Load a masked language model and its decoder, which is bypassed: the model's `logits` are the decoder's input.
    The transformers library provides the head of each architecture. Raises CaiError for a checkpoint without a
    masked-language-model head, or with one that does not end in a linear decoder."""
    model = load_pretrained("AutoModelForMaskedLM", checkpoint, "masked-language-model head")
    decoder = model.get_output_embeddings()
    if not isinstance(decoder, torch.nn.Linear):
        raise CaiError(f"{checkpoint}: the head of {type(model).__name__} does not end in a linear decoder: {REMEDY}")
    probe = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        logits = model(input_ids=probe).logits
        bypass_decoder(model)
        hidden = model(input_ids=probe).logits
        fits = hidden.shape[-1] == decoder.in_features and logits.shape[-1] == decoder.out_features
        expected = torch.nn.functional.linear(hidden, decoder.weight, decoder.bias) if fits else logits
    if not fits or not torch.allclose(expected, logits, atol=1e-3, rtol=1e-3):
        name = type(model).__name__
        raise CaiError(f"{checkpoint}: the head of {name} does more than a linear decoder at its end: {REMEDY}")
    return model, decoder


def bypass_decoder(model: Any) -> torch.nn.Linear:
    """Make the decoder of a masked language model return its input; `del decoder.forward` undoes it."""
    decoder = model.get_output_embeddings()
    decoder.forward = torch.nn.Identity().forward
    return decoder
