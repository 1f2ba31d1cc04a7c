"""What SPLADE is trained with (Iida & Okazaki 2022, Appendices A and G), over the texts of all processes.

    Margin-MSE:  mean over i of (delta_i - delta^_i)^2,  delta = score of the positive - score of the negative
    in-batch negatives (MNRL):  cross-entropy of each query's own positive among all documents of the batch
    FLOPS:  sum over v of (mean over texts of |w_v|)^2

Every process of a distributed run computes the loss of its part so that the mean of the processes' gradients, which is
what they then take, is the gradient of the loss of the whole batch.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def margin_mse(
    queries: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor, margins: torch.Tensor
) -> torch.Tensor:
    """Of queries and positives (texts, vocabulary), negatives (texts, n, vocabulary), teacher's margins (texts, n)."""
    student = ((positives[:, None] - negatives) * queries[:, None]).sum(-1)
    return F.mse_loss(student, margins)


def in_batch_negatives(queries: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    """MultipleNegativesRankingLoss (Henderson et al. 2017) of dot products: the negatives are all other documents."""
    documents = gathered(torch.cat([positives, negatives.flatten(0, 1)]))
    share = len(documents) // _processes()
    own = _rank() * share + torch.arange(len(queries), device=queries.device)
    return F.cross_entropy(queries @ documents.T, own)


def flops(weights: torch.Tensor) -> torch.Tensor:
    """The FLOPS regularizer (Paria et al. 2020) of non-negative weights (texts, vocabulary)."""
    mean = weights.mean(0)
    if _processes() > 1:
        from torch.distributed.nn.functional import all_reduce

        mean = all_reduce(mean) / _processes()
    return mean.square().sum()


def gathered(weights: torch.Tensor) -> torch.Tensor:
    """The rows of all processes, one process after the other; gradients find their way back."""
    if _processes() == 1:
        return weights
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(weights))


def _processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
