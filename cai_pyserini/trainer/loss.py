"""The losses of SPLADE and dense training (Iida & Okazaki 2022, Appendices A and G).

    Margin-MSE:  mean over i of (delta_i - delta^_i)^2,  delta = score of the positive - score of the negative
    in-batch negatives (MNRL):  cross-entropy of each query's own positive among all documents of the batch
    FLOPS:  sum over v of (mean over texts of |w_v|)^2

Margin-MSE is from Hofstätter et al. 2020, "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
Distillation"; delta^ are the teacher's margins.

All losses are computed over the whole batch. With several processes, each gathers the vectors of all, of which only its
own have gradients, so that its gradient is its share of the whole batch's. DDP averages the shares where their sum is
needed, which `scale_for_ddp` corrects.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F


def margin_mse(queries: torch.Tensor, documents: torch.Tensor, margins: torch.Tensor) -> torch.Tensor:
    """Margin-MSE of dot products: queries (texts, dimensions), documents (texts, 1 + n, dimensions) with the positive
    first, and the teacher's margins (texts, n)."""
    scores = (documents * queries[:, None]).sum(-1)
    return F.mse_loss(scores[:, :1] - scores[:, 1:], margins)


def in_batch_negatives(queries: torch.Tensor, documents: torch.Tensor, document_ids: torch.Tensor) -> torch.Tensor:
    """MultipleNegativesRankingLoss (Henderson et al. 2017) of dot products.

    `documents` (texts, 1 + n, dimensions) has the positive of each query (texts, dimensions) first. Negatives are all
    other documents of the batch, except those that share one of the `document_ids` (texts, 1 + n, ids) with the
    positive.
    """
    positives = torch.arange(len(queries), device=queries.device) * documents.shape[1]
    copies = (document_ids[:, :1] == document_ids.flatten(0, 1)).any(-1)
    copies[torch.arange(len(queries)), positives] = False
    scores = (queries @ documents.flatten(0, 1).T).masked_fill(copies, -torch.inf)
    return F.cross_entropy(scores, positives)


def ranking(
    name: Literal["margin-mse", "in-batch"], queries: torch.Tensor, documents: torch.Tensor, batch: dict[str, Any]
) -> torch.Tensor:
    """The ranking loss `name` of gathered vectors, with labels from this process's `batch`."""
    if name == "margin-mse":
        return margin_mse(queries, documents, gather(batch["margins"]))
    return in_batch_negatives(queries, documents, gather(batch["document_ids"]))


def flops(weights: torch.Tensor, multiplicity: torch.Tensor | float = 1.0) -> torch.Tensor:
    """The FLOPS regularizer (Paria et al. 2020) of non-negative weights (texts, vocabulary), or of a sample of columns
    that each represent `multiplicity` (columns,) columns."""
    return (weights.mean(0).square() * multiplicity).sum()


def gather(rows: torch.Tensor) -> torch.Tensor:
    """The rows of all processes in the order of their ranks; only those of this process have gradients."""
    if _world_size() == 1:
        return rows
    shards = [torch.empty_like(rows) for _ in range(_world_size())]
    dist.all_gather(shards, rows.detach().contiguous())
    shards[dist.get_rank()] = rows
    return torch.cat(shards)


def scale_for_ddp(loss: torch.Tensor) -> torch.Tensor:
    """Scale the gradient, not the value, by the world size, to undo DDP's averaging."""
    return loss + (_world_size() - 1) * (loss - loss.detach())


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
