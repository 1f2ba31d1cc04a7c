"""What SPLADE is trained with (Iida & Okazaki 2022, Appendices A and G).

    Margin-MSE:  mean over i of (delta_i - delta^_i)^2,  delta = score of the positive - score of the negative
    in-batch negatives (MNRL):  cross-entropy of each query's own positive among all documents of the batch
    FLOPS:  sum over v of (mean over texts of |w_v|)^2

All are of the whole batch. On several processes each gathers the vectors of all, of which its own have gradients, and
computes the loss of the whole; its gradient is then its share of the whole gradient, and the shares add up. Processes
take the mean of their gradients, so each share counts as often as there are processes: see `shared`.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F


def margin_mse(queries: torch.Tensor, documents: torch.Tensor, margins: torch.Tensor) -> torch.Tensor:
    """Of queries (texts, vocabulary), of documents (texts, 1 + n, vocabulary), the positive first, and of the teacher's
    margins (texts, n)."""
    scores = (documents * queries[:, None]).sum(-1)
    return F.mse_loss(scores[:, :1] - scores[:, 1:], margins)


def in_batch_negatives(queries: torch.Tensor, documents: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
    """MultipleNegativesRankingLoss (Henderson et al. 2017) of dot products.

    Of `documents` (texts, 1 + n, vocabulary) the first of each text is its positive. Negatives are all other documents
    of the batch, except those that are the positive once more, by their `names` (texts, 1 + n).
    """
    own = torch.arange(len(queries), device=queries.device) * documents.shape[1]
    again = names[:, :1] == names.flatten()
    again[torch.arange(len(queries)), own] = False
    scores = (queries @ documents.flatten(0, 1).T).masked_fill(again, -torch.inf)
    return F.cross_entropy(scores, own)


def ranking(
    name: Literal["margin-mse", "in-batch"], queries: torch.Tensor, documents: torch.Tensor, inputs: dict[str, Any]
) -> torch.Tensor:
    """The ranking loss of this name of gathered vectors; `inputs` have this process's margins and names."""
    if name == "margin-mse":
        return margin_mse(queries, documents, gathered(inputs["margins"]))
    return in_batch_negatives(queries, documents, gathered(inputs["names"]))


def flops(weights: torch.Tensor) -> torch.Tensor:
    """The FLOPS regularizer (Paria et al. 2020) of non-negative weights (texts, vocabulary)."""
    return weights.mean(0).square().sum()


def gathered(rows: torch.Tensor) -> torch.Tensor:
    """The rows of all processes, one process after the other; those of this one keep their gradients."""
    if _processes() == 1:
        return rows
    parts = [torch.empty_like(rows) for _ in range(_processes())]
    dist.all_gather(parts, rows.detach().contiguous())
    parts[dist.get_rank()] = rows
    return torch.cat(parts)


def shared(loss: torch.Tensor) -> torch.Tensor:
    """A loss of gathered rows with its gradient times the number of processes, so that their mean is their sum."""
    return loss + (_processes() - 1) * (loss - loss.detach())


def _processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
