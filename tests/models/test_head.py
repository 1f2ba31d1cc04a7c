"""The pooled head compared with the definition, log(1 + relu(logits)).max over tokens, and its gradients."""

import pytest
import torch
from torch.nn.functional import linear

from cai_pyserini.models import head


def plain(hidden: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    logits = linear(hidden, weight, bias).masked_fill(~mask[:, :, None], -torch.inf)
    return torch.log1p(torch.relu(logits)).amax(1)


def problem(vocabulary: int, shift: float) -> list[torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(4, 9, 16)
    hidden[:, 5:] *= 3  # padding would win
    mask = torch.arange(9) < torch.tensor([9, 5, 1, 7])[:, None]
    tensors = [hidden, torch.randn(vocabulary, 16), torch.randn(vocabulary) + shift]
    return [mask, *(tensor.requires_grad_() for tensor in tensors)]


@pytest.mark.parametrize("vocabulary", [1, 257, 1000])
@pytest.mark.parametrize("shift", [-1000.0, -6.0, 0.0, 6.0])  # no entry is active, some, most, all
def test_weights_and_gradients_are_the_plain_ones(
    vocabulary: int, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "BLOCK_BYTES", {"cpu": 1})  # the smallest block: several, the last one cut short
    mask, *inputs = problem(vocabulary, shift)
    target = torch.randn(4, vocabulary)
    found, expected = head.splade_weights(inputs[0], mask, *inputs[1:]), plain(inputs[0], mask, *inputs[1:])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad((w * target).sum() + w.square().sum(), inputs) for w in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_autocast_makes_products_in_bfloat16_and_gradients_in_float32() -> None:
    mask, *inputs = problem(300, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        weights = head.splade_weights(inputs[0], mask, *inputs[1:])
    exact = head.splade_weights(inputs[0], mask, *inputs[1:])
    assert weights.dtype == torch.float32
    assert not torch.equal(weights, exact)
    torch.testing.assert_close(weights, exact, atol=0.1, rtol=0.02)
    mine, theirs = (torch.autograd.grad(w.square().sum(), inputs[1])[0] for w in (weights, exact))
    assert mine.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0) > 0.99
