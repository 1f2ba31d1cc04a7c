"""8-bit integer products on CPUs: activations are quantized for every product, weights once.

    x_i ≈ s_i (u_i - z),  w_o ≈ t_o q_o:      <x_i, w_o> + b_o ≈ s_i (t_o <u_i, q_o> - t_o z sum(q_o)) + b_o

u_i in 0..255, with a scale s_i for each token i; q_o in -127..127, with a scale t_o for each output o; z is constant.
The sums are exact. Two large products use one scale for all tokens of a batch, which is precise enough for their
inputs: the product before GELU, so that GELU can be fused into it, and the head. A vector thus depends slightly on its
batch. Between products everything is float32, except attention, which is bfloat16 where the hardware gains from it.

A layer of BERT, RoBERTa, DistilBERT or ModernBERT is replaced as a whole, by few and large operations. In other
architectures, each linear layer is replaced separately.

The loss depends on the weights more than on the architecture, so PROBES are encoded whenever a model is loaded.
"""

from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import issparse
from torch import nn
from transformers.activations import GELUActivation

from cai_pyserini.core.errors import CaiError

ROUNDING = 1.5 * 2**23  # added to a float32, it rounds it to an integer in the last bits
ZERO_POINT = 128  # the integer that stands for 0
GELU_ZERO_POINT = 32  # zero point for outputs of GELU, which are above -0.17
VOCABULARY_BLOCK = 1024  # vocabulary entries at a time; the logits of TOKEN_BLOCK tokens fit the cache
TOKEN_BLOCK = 512
MIN_COSINE = 0.98  # smallest cosine of an int8 and a float32 vector
PROBES = (
    "Fever",
    "what lowers high blood pressure?",
    "Recurrent infections of the bladder in 37 women were treated with nitrofurantoin (100 mg/day) for 6 weeks.",
    "The court held that the agreement of 12 May 2004 was void, because neither party had signed its annex.",
    "def mean(values: list[float]) -> float:\n    return sum(values) / len(values)  # raises ZeroDivisionError",
    "Die Pflegeversicherung übernimmt einen Teil der Kosten. 東京は日本の首都です。 Où est la gare ?",
    "Rice, wheat and maize feed most of the world; droughts, pests and poor soils limit their yields. " * 8,
)
BERT = {
    "heads": "attention.self.num_attention_heads",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "activation": "intermediate.intermediate_act_fn",
    "down": "output.dense",
    "last_norm": "output.LayerNorm",
}
DISTILBERT = {
    "heads": "attention.n_heads",
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "out": "attention.out_lin",
    "norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "activation": "ffn.activation",
    "down": "ffn.lin2",
    "last_norm": "output_layer_norm",
}
LAYERS = dict.fromkeys(("BertLayer", "RobertaLayer", "XLMRobertaLayer", "CamembertLayer", "ElectraLayer"), BERT)
LAYERS["TransformerBlock"] = DISTILBERT


class Quantized(NamedTuple):
    """Activations scale * (values - zero), with one scale for all tokens or one for each."""

    values: torch.Tensor  # uint8 (…, width)
    scale: torch.Tensor  # (…, 1) or (1,)


def quantize(x: torch.Tensor, by_token: bool, zero: int = ZERO_POINT, overwrite: bool = False) -> Quantized:
    """Quantize activations (…, width) around `zero`, with a scale for each token or one for all. With `overwrite`, x is
    used as working memory, because new memory costs more time than the multiplication."""
    x = x.float()
    high, low = x.amax(-1, keepdim=True), x.amin(-1, keepdim=True)
    scale = torch.maximum(high / (255 - zero), low / -zero).clamp(min=1e-20)
    if not by_token:
        scale = scale.max()[None]
    rounded = torch.mul(x, scale.reciprocal(), out=x if overwrite else None).add_(ROUNDING + zero)
    return Quantized(rounded.view(torch.int32).to(torch.uint8), scale)


class Int8Linear(nn.Module):
    """A linear layer with `weight` (outputs, inputs) and `bias` (outputs), optionally followed by GELU. `zero` is the
    integer that stands for an input of 0: ZERO_POINT for inputs that are symmetric around 0."""

    @torch.no_grad()
    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype = torch.float32,
        gelu: bool = False,
        zero: int = ZERO_POINT,
    ):
        super().__init__()
        self.scales = torch.linalg.vector_norm(weight, torch.inf, 1).clamp(min=1e-20) / 127
        integers = torch.empty_like(weight, dtype=torch.int8)
        for row, scale, out in zip(weight, self.scales, integers, strict=True):  # a large copy fragments memory
            out.copy_((row / scale).round_())
        self.packed = torch.ops.onednn.qlinear_prepack(integers, [TOKEN_BLOCK, weight.shape[1]])
        self.offset = -zero * integers.sum(1) * self.scales
        self.bias = torch.zeros(len(weight)) if bias is None else bias.detach()
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.dtype, self.gelu, self.zero = dtype, gelu, zero

    def forward(self, x: torch.Tensor, overwrite: bool = False) -> torch.Tensor:
        """With `overwrite`, the contents of x are lost."""
        by_token = not self.gelu  # fused GELU needs a single scale
        return self.product(quantize(x, by_token, self.zero, overwrite))

    def product(self, x: Quantized) -> torch.Tensor:
        """The outputs (…, outputs) for quantized inputs (…, inputs)."""
        if x.scale.ndim == 1:
            scale = x.scale.item()
            return self._multiply(x.values, scale, self.bias + scale * self.offset, self.dtype)
        product = self._multiply(x.values, 1.0, self.offset, torch.float32)
        return torch.addcmul(self.bias, product, x.scale).to(self.dtype)

    def _multiply(self, values: torch.Tensor, scale: float, bias: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        post = "gelu" if self.gelu else "none"
        return torch.ops.onednn.qlinear_pointwise(
            values, scale, 0, self.packed, self.scales, self.zeros, bias, 1.0, 0, dtype, post, [], "none"
        )


class Int8Layer(nn.Module):
    """A layer of BERT, RoBERTa or DistilBERT; `names` are the paths of its parts, `dtype` is attention's."""

    def __init__(self, layer: nn.Module, names: dict[str, str], dtype: torch.dtype):
        super().__init__()
        part = {name: attrgetter(path)(layer) for name, path in names.items()}
        self.heads = part["heads"]
        weight, bias = (
            torch.cat([getattr(part[name], kind) for name in ("query", "key", "value")]) for kind in ("weight", "bias")
        )
        self.qkv = _int8_qkv(weight, bias, self.heads, dtype)
        self.out, self.norm = Int8Linear(part["out"].weight, part["out"].bias), part["norm"]
        self.up = Int8Linear(part["up"].weight, part["up"].bias, gelu=True)
        self.down = Int8Linear(part["down"].weight, part["down"].bias, zero=GELU_ZERO_POINT)
        self.last_norm = part["last_norm"]

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None, *_: Any, **__: Any) -> torch.Tensor:
        """`x` is (texts, tokens, width); `attention_mask`, if any, (texts, 1, tokens, tokens), is true for tokens."""
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        x = self.norm(self.out(attention(self.qkv(x), self.heads, mask), overwrite=True).add_(x))
        return self.last_norm(self.down(self.up(x), overwrite=True).add_(x))


class Int8ModernBertLayer(nn.Module):
    """A layer of ModernBERT: rotary positions, local or global attention, and GELU(a) * b with a gate b."""

    def __init__(self, layer: Any, dtype: torch.dtype):
        super().__init__()
        self.attention_type, self.attn_norm, self.mlp_norm = layer.attention_type, layer.attn_norm, layer.mlp_norm
        attention = layer.attn
        self.heads = attention.Wqkv.in_features // attention.head_dim
        self.qkv = _int8_qkv(attention.Wqkv.weight, attention.Wqkv.bias, self.heads, dtype)
        self.out = _int8(attention.Wo)
        weights = layer.mlp.Wi.weight.chunk(2)
        biases = (None, None) if layer.mlp.Wi.bias is None else layer.mlp.Wi.bias.chunk(2)
        self.up, self.gate = Int8Linear(weights[0], biases[0], gelu=True), Int8Linear(weights[1], biases[1])
        self.down = _int8(layer.mlp.Wo)

    def forward(
        self,
        x: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] = (torch.ones(1), torch.zeros(1)),
        **_: Any,
    ) -> torch.Tensor:
        """See Int8Layer.forward; position_embeddings are cosines and sines of rotations, (1, tokens, width / heads)."""
        context = attention(self.qkv(self.attn_norm(x)), self.heads, attention_mask, position_embeddings)
        x = self.out(context, overwrite=True).add_(x)
        values = quantize(self.mlp_norm(x), by_token=False, overwrite=True)
        return self.down(self.up.product(values).mul_(self.gate.product(values)), overwrite=True).add_(x)


def _int8(layer: nn.Linear) -> Int8Linear:
    return Int8Linear(layer.weight, layer.bias)


def _int8_qkv(weight: torch.Tensor, bias: torch.Tensor | None, heads: int, dtype: torch.dtype) -> Int8Linear:
    """Attention's queries, keys and values in one layer; queries include the scale of attention scores."""
    scale = torch.ones(len(weight))
    scale[: len(weight) // 3] = (len(weight) // 3 // heads) ** -0.5
    return Int8Linear(scale[:, None] * weight, None if bias is None else scale * bias, dtype)


def attention(
    qkv: torch.Tensor,
    heads: int,
    mask: torch.Tensor | None,
    rotation: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """The context (texts, tokens, width) of scaled queries, keys and values (texts, tokens, 3 * width); `mask` (texts,
    1, tokens or 1, tokens) is true for attention. Twice as fast on a CPU as scaled_dot_product_attention."""
    texts, length, _ = qkv.shape
    parts = qkv.view(texts, length, 3, heads, -1)
    if rotation is not None:
        rotate(parts[:, :, :2], *rotation)
    # (texts * heads, tokens, width / heads) each
    query, key, value = parts.permute(2, 0, 3, 1, 4).flatten(1, 2)
    scores = torch.bmm(query, key.transpose(1, 2))
    if mask is not None:
        scores.view(texts, heads, length, length).add_(torch.where(mask, 0.0, -1e4).to(scores.dtype))
    context = torch.bmm(scores.softmax(-1), value).view(texts, heads, length, -1)
    return context.transpose(1, 2).reshape(texts, length, -1)


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """Rotate the pairs (x_j, x_j+half) of x (texts, tokens, 2, heads, 2 * half) by each token's angles, in place."""
    first, second = x.chunk(2, -1)
    half = first.shape[-1]
    cos, sin = (part[:, :, None, None, :half].to(x.dtype) for part in (cosines, sines))
    rotated = torch.addcmul(first * cos, second, sin, value=-1)
    second.mul_(cos).addcmul_(first, sin)
    first.copy_(rotated)


class Int8Head:
    """head.max_logits in int8, of a decoder with `weight` (vocabulary, width) and `bias` (vocabulary)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor):
        pairs = zip(weight.split(VOCABULARY_BLOCK), bias.split(VOCABULARY_BLOCK), strict=True)
        self._blocks = [Int8Linear(*pair, torch.bfloat16) for pair in pairs]

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        values, scale = quantize(hidden, by_token=False)
        values = torch.where(mask[:, :, None], values, values[:, :1])
        rows = max(1, TOKEN_BLOCK // hidden.shape[1])
        maxima = [
            torch.cat([block.product(Quantized(part, scale)).view(torch.int16).amax(1) for part in values.split(rows)])
            for block in self._blocks
        ]
        return torch.cat(maxima, 1).view(torch.bfloat16).float()


def replace_linears(model: nn.Module, exclude: nn.Module | None, dtype: torch.dtype) -> None:
    """Replace a model's known layers and its linear layers, except `exclude`, in place; `dtype` is attention's."""
    for name, child in list(model.named_children()):
        kind = type(child).__name__
        if (
            (paths := LAYERS.get(kind))
            and not getattr(child, "is_decoder", False)
            and _is_gelu(child, paths["activation"])
        ):
            setattr(model, name, Int8Layer(child, paths, dtype))
        elif kind == "ModernBertEncoderLayer" and _is_gelu(child, "mlp.act"):
            setattr(model, name, Int8ModernBertLayer(child, dtype))
        elif type(child) is nn.Linear and child is not exclude:
            setattr(model, name, _int8(child))
        else:
            replace_linears(child, exclude, dtype)


def _is_gelu(layer: nn.Module, path: str) -> bool:
    return isinstance(attrgetter(path)(layer), GELUActivation)


def require_close(checkpoint: Path, found: Any, expected: Any) -> None:
    """Raise CaiError if the cosine of a vector and its float32 vector, (texts, width) each, is below MIN_COSINE."""
    found, expected = (vectors.toarray() if issparse(vectors) else vectors for vectors in (found, expected))
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    cosines = (found * expected).sum(1)[expected.any(1)] / norms[expected.any(1)].clip(1e-20)
    if cosines.min(initial=1) < MIN_COSINE:
        raise CaiError(
            f"{checkpoint}: precision int8 loses too much quality (a cosine of {cosines.min():.3f} with a float32 "
            f"vector, below {MIN_COSINE}): choose bfloat16 or float32"
        )
