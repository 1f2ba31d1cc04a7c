"""SPLADE's pooled head: the largest logit of every vocabulary entry, without materializing all logits.

    m_bv = max over tokens i of <h_bi, e_v> + c_v

The forward pass computes and reduces logits in blocks of the vocabulary, in a buffer that fits the cache; the tensor
(texts, tokens, vocabulary) never exists. In the backward pass, an entry's gradient flows through its winning token, and
only if the entry is positive, since relu follows. The winner is recomputed for these few entries, so that training and
encoding share one forward pass.
"""

import torch

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
BLOCK_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}  # of logits at a time, per thread; on a CPU they fit the cache


def splade_weights(hidden: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """log(1 + relu(max_i(<h_i, e_v> + c_v))), float32 (texts, vocabulary), differentiable.

    `hidden` (texts, tokens, dimensions) is the input of a decoder with `weight` (vocabulary, dimensions) and `bias`
    (vocabulary); `mask` (texts, tokens) is true for tokens. Products have autocast's dtype, otherwise that of `weight`.
    """
    return torch.log1p(torch.relu(max_logits(hidden, mask, weight, bias)))


def activated(logits: torch.Tensor, activation: str) -> torch.Tensor:
    """log(1 + relu(x)); with the activation `log1p_relu`, log(1 + log(1 + relu(x))) (Geng et al. 2024)."""
    weights = torch.log1p(torch.relu(logits))
    return torch.log1p(weights) if activation == "log1p_relu" else weights


def max_logits(hidden: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The largest logits, float32 (texts, vocabulary); exact only where positive, otherwise some negative number."""
    # Padding must not win the maximum, so it repeats the hidden state of the first token.
    hidden = torch.where(mask[:, :, None], hidden, hidden[:, :1])
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    return _MaxLogits.apply(hidden, weight, bias, dtype)


class _MaxLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, dtype):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(hidden, weight)
        ctx.dtype = dtype
        return _forward(hidden.to(dtype), weight.to(dtype), bias.to(dtype)).float()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        hidden, weight = ctx.saved_tensors
        texts, columns = gradient.nonzero(as_tuple=True)
        winners = _winners(
            hidden.to(ctx.dtype), weight.to(ctx.dtype), columns.split(texts.bincount(minlength=len(hidden)).tolist())
        )
        indices = torch.stack([texts * hidden.shape[1] + winners, columns])
        flat = hidden.flatten(0, 1)
        values = gradient[texts, columns].float()
        scatter = torch.sparse_coo_tensor(indices, values, (len(flat), len(weight)), check_invariants=False)
        hidden_gradient = torch.sparse.mm(scatter, weight.float()).view_as(hidden).to(hidden.dtype)
        weight_gradient = torch.sparse.mm(scatter.t(), flat.float()).to(weight.dtype)
        return hidden_gradient, weight_gradient, gradient.sum(0), None


def _forward(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compare floats as integers of the same bits: several times as fast, and the same order for positive numbers."""
    texts, length, _ = hidden.shape
    flat = hidden.flatten(0, 1)
    bits = BITS[hidden.dtype]
    maxima = torch.empty(texts, len(weight), dtype=hidden.dtype, device=hidden.device)
    block = max(256, BLOCK_BYTES[hidden.device.type] // (len(flat) * hidden.dtype.itemsize) // 256 * 256)
    buffer = torch.empty(len(flat) * block, dtype=hidden.dtype, device=hidden.device)
    for start in range(0, len(weight), block):
        rows = weight[start : start + block]
        products = buffer[: len(flat) * len(rows)].view(len(flat), len(rows))
        torch.addmm(bias[start : start + block], flat, rows.T, out=products)
        out = maxima.view(bits)[:, start : start + len(rows)]
        torch.amax(products.view(bits).view(texts, length, -1), dim=1, out=out)
    return maxima


def _winners(hidden: torch.Tensor, weight: torch.Tensor, columns: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The position of the token with the largest logit, for each of each text's `columns`, concatenated."""
    block = max(256, BLOCK_BYTES[hidden.device.type] // (hidden.shape[1] * hidden.dtype.itemsize))
    winners = [
        (weight[part] @ text.T).argmax(1)
        for text, active in zip(hidden, columns, strict=True)
        for part in active.split(block)
    ]
    return torch.cat(winners)
