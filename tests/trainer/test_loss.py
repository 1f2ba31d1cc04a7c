"""The losses: worked examples."""

import pytest
import torch

from cai_pyserini.trainer import loss


def test_margin_mse_worked_example() -> None:
    queries = torch.tensor([[1.0, 2.0]])
    documents = torch.tensor([[[3.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])  # scores 3, 2 and 1: margins 1 and 2
    assert float(loss.margin_mse(queries, documents, torch.tensor([[1.0, 5.0]]))) == (0 + 9) / 2


def test_in_batch_negatives_worked_example() -> None:
    documents = torch.tensor([[[2.0, 1.0], [1.0, 0.0]], [[0.0, 3.0], [0.0, 0.0]]])
    scores = torch.tensor([[2.0, 1.0, 0.0, 0.0], [1.0, 0.0, 3.0, 0.0]]).log_softmax(1)
    found = loss.in_batch_negatives(torch.eye(2), documents, torch.tensor([[[1], [2]], [[3], [4]]]))
    assert float(found) == pytest.approx(float(-(scores[0, 0] + scores[1, 2]) / 2))


def test_the_positive_is_no_negative_when_it_comes_again() -> None:
    documents = torch.tensor([[[2.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [0.0, 0.0]]])
    scores = torch.tensor([[2.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).log_softmax(1)  # own, the negatives of both
    for ids in ([[[1, 5], [2, 6]], [[1, 7], [4, 8]]], [[[1, 5], [2, 6]], [[3, 5], [4, 8]]]):  # of documents, or texts
        found = loss.in_batch_negatives(torch.eye(2), documents, torch.tensor(ids))
        assert float(found) == pytest.approx(float(-(scores[0, 0] + scores[1, 0]) / 2))


def test_no_negatives_but_those_of_the_batch() -> None:
    alone = loss.in_batch_negatives(torch.eye(2), torch.eye(2)[:, None], torch.tensor([[[1]], [[2]]]))
    assert float(alone) == pytest.approx(float(-torch.eye(2).log_softmax(1)[0, 0]))


def test_flops_worked_example() -> None:
    assert float(loss.flops(torch.tensor([[1.0, 0.0, 4.0], [3.0, 0.0, 0.0]]))) == 2**2 + 0 + 2**2
    sample = torch.tensor([[1.0, 4.0], [3.0, 0.0]]), torch.tensor([1.0, 3.0])  # the second column represents three
    assert float(loss.flops(*sample)) == 2**2 + 3 * 2**2
