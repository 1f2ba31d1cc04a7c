"""Batches, devices and precisions."""

import random

import pytest
import torch

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.device import resolve_device, resolve_precision
from cai_pyserini.models.splade import Splade
from cai_pyserini.models.transformer import Transformer, batches


@pytest.mark.parametrize("seed", range(5))
def test_batches_keep_their_budget(seed: int) -> None:
    assert list(batches([3, 9, 1, 5, 2], max_tokens=10, max_rows=2)) == [[1], [3, 0], [4, 2]]
    assert list(batches([4, 4, 4], max_tokens=3, max_rows=8)) == [[0], [1], [2]]  # one text is the least
    draw = random.Random(seed)
    lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 200))]
    max_tokens, max_rows = draw.randint(60, 300), draw.randint(1, 40)
    made = list(batches(lengths, max_tokens, max_rows))
    order = [i for batch in made for i in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    assert all(0 < len(batch) <= max_rows for batch in made)
    assert all(len(batch) * lengths[batch[0]] <= max_tokens for batch in made)


@pytest.mark.parametrize("device", ["gpu", "mps", "meta", "", "cuda:99"])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(CaiError, match=f"no device '{device}'"):
        resolve_device(device)


def test_a_named_precision_is_kept_and_auto_is_one_of_the_two() -> None:
    cpu = torch.device("cpu")
    assert (resolve_precision("float32", cpu), resolve_precision("bfloat16", cpu)) == ("float32", "bfloat16")
    assert resolve_precision("auto", cpu) in ("float32", "bfloat16")


@pytest.fixture(scope="module")
def transformer(checkpoint) -> Transformer:
    return Splade(checkpoint, "cpu", "float32").transformer


def test_a_batch_has_texts_of_one_padded_length(transformer: Transformer) -> None:
    texts, counted = ["fever", " ", "colon cancer of the colon and salt " * 2, "salt", "colon"], list[int]()
    tokens = transformer.tokenizer.token_ids(texts, 16)
    batches = transformer.map_batches(lambda ids, mask: mask.sum(1).tolist(), tokens, 1, counted.append)
    found = [(batch.tolist(), lengths) for batch, lengths in batches]
    assert found == [([2], [16]), ([0, 3], [3, 3]), ([4], [3])]  # twice as many of half the length
    assert counted == [1, 1, 2, 1]  # first of the blank text


def test_mapping_leaves_the_number_of_threads(transformer: Transformer) -> None:
    threads = torch.get_num_threads()
    assert list(transformer.map(lambda n: n * n, range(20))) == [n * n for n in range(20)]

    def fail(n: int) -> int:
        raise CaiError("no")

    with pytest.raises(CaiError, match="no"):
        list(transformer.map(fail, range(20)))
    assert torch.get_num_threads() == threads
