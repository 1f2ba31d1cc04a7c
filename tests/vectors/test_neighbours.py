"""Nearest neighbours, compared with an exhaustive search."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from cai_pyserini.vectors import neighbours
from cai_pyserini.vectors.neighbours import build_index, nearest, recall

Positions = Callable[[str], Iterator[np.ndarray]]


def in_shards(matrix: np.ndarray, *ends: int) -> Positions:
    """The rows of a matrix as shards with these ends."""
    return lambda label: (matrix[start:end] for start, end in pairwise([0, *ends, matrix.shape[0]]))


def nearest_of_all(similarity: np.ndarray, count: int) -> np.ndarray:
    """The `count` columns with the largest values of each row, without the diagonal."""
    return np.argsort(-np.where(np.eye(len(similarity)), -np.inf, similarity), axis=1)[:, :count]


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """The mean fraction of each row of `one` that is in the same row of `other`."""
    return np.mean([len({*a} & {*b}) / len(a) for a, b in zip(one, other, strict=True)])


def test_dense_vectors_are_searched_exactly() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 10)).astype(np.float32)
    positions = in_shards(rows, 100, 130)
    index = build_index(positions, 10, 300)
    found = nearest(index, rows[100:130], np.arange(100, 130), 7)
    np.testing.assert_array_equal(found.numbers, nearest_of_all(rows @ rows.T, 7)[100:130])
    products = np.take_along_axis(rows[100:130] @ rows.T, found.numbers, axis=1)
    np.testing.assert_allclose(found.products, products, rtol=1e-5)
    assert recall(index, positions, 7) == 1.0


def test_an_equal_document_is_a_neighbour_but_not_the_document_itself() -> None:
    rows = np.array([[2, 0], [2, 0], [2, 0], [3, 0], [0, 1]], np.float32)  # the fourth is nearest to all but the last
    found = nearest(build_index(in_shards(rows), 2, 5), rows, np.arange(5), 3).numbers
    assert [{*near} for near in found[:4].tolist()] == [{3, 1, 2}, {3, 0, 2}, {3, 0, 1}, {0, 1, 2}]


def test_recall_of_an_approximate_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "EXACT", 1000)
    monkeypatch.setattr(neighbours, "SAMPLE", 2000)
    draw = np.random.default_rng(0)
    topics = draw.normal(size=(50, 22)).astype(np.float32)  # 22: not a multiple of 4
    rows = topics[draw.integers(0, 50, 2000)] + 0.3 * draw.normal(size=(2000, 22)).astype(np.float32)
    positions = in_shards(rows, 700)
    first, second = (nearest(build_index(positions, 22, 2000), rows, np.arange(2000), 10).numbers for _ in range(2))
    np.testing.assert_array_equal(first, second)
    found = overlap(nearest_of_all(rows @ rows.T, 10), first)
    assert recall(build_index(positions, 22, 2000), positions, 10) == pytest.approx(found) and 0.7 < found < 1
