"""The losses: worked examples, and two processes against one with the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

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
    found = loss.in_batch_negatives(torch.eye(2), documents, torch.tensor([[1, 2], [3, 4]]))
    assert float(found) == pytest.approx(float(-(scores[0, 0] + scores[1, 2]) / 2))


def test_the_positive_is_no_negative_when_it_comes_again() -> None:
    documents = torch.tensor([[[2.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [0.0, 0.0]]])
    scores = torch.tensor([[2.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).log_softmax(1)  # own, the negatives of both
    found = loss.in_batch_negatives(torch.eye(2), documents, torch.tensor([[1, 2], [1, 4]]))
    assert float(found) == pytest.approx(float(-(scores[0, 0] + scores[1, 0]) / 2))


def test_no_negatives_but_those_of_the_batch() -> None:
    alone = loss.in_batch_negatives(torch.eye(2), torch.eye(2)[:, None], torch.tensor([[1], [2]]))
    assert float(alone) == pytest.approx(float(-torch.eye(2).log_softmax(1)[0, 0]))


def test_flops_worked_example() -> None:
    assert float(loss.flops(torch.tensor([[1.0, 0.0, 4.0], [3.0, 0.0, 0.0]]))) == 2**2 + 0 + 2**2
    sample = torch.tensor([[1.0, 4.0], [3.0, 0.0]]), torch.tensor([1.0, 3.0])  # the second column stands for three
    assert float(loss.flops(*sample)) == 2**2 + 3 * 2**2


PROCESS = """
import sys, torch, torch.distributed as dist
from cai_pyserini.trainer import loss
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
torch.manual_seed(0)
mapping = torch.randn(6, 10, requires_grad=True)
texts = torch.randn(4, 3, 6)  # of a query, a positive and a negative
vectors = loss.gather(torch.relu(texts[2 * rank : 2 * rank + 2] @ mapping))
q, d = vectors[:, 0], vectors[:, 1:]
total = loss.in_batch_negatives(q, d, torch.arange(8).view(4, 2)) + loss.flops(q) + 2 * loss.flops(d.flatten(0, 1))
loss.scale_for_ddp(total).backward()
dist.all_reduce(mapping.grad)  # what DistributedDataParallel does, and divides
torch.save(mapping.grad / 2, f"{folder}/gradient-{rank}.pt")
"""


@pytest.mark.slow
def test_two_processes_take_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROCESS]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment) for rank in (0, 1)]
    assert [process.wait(120) for process in processes] == [0, 0]
    torch.manual_seed(0)
    mapping = torch.randn(6, 10, requires_grad=True)
    vectors = torch.relu(torch.randn(4, 3, 6) @ mapping)
    q, d = vectors[:, 0], vectors[:, 1:]
    ranking = loss.in_batch_negatives(q, d, torch.arange(8).view(4, 2))
    (ranking + loss.flops(q) + 2 * loss.flops(d.flatten(0, 1))).backward()
    for rank in (0, 1):
        found = torch.load(tmp_path / f"gradient-{rank}.pt", weights_only=True)
        torch.testing.assert_close(found, mapping.grad, atol=1e-5, rtol=1e-5)
