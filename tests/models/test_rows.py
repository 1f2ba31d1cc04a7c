"""The largest entries of rows, by number and by share of the sum."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.models.rows import largest, largest_of_mass

MATRIX = csr_matrix(np.array([[1, 5, 3, 2], [0, 0, 0, 0], [4, 0, 7, 0], [2, 2, 0, 9]], np.int32))


def test_largest_keeps_a_number_of_entries_per_row() -> None:
    assert largest(MATRIX, 2).toarray().tolist() == [[0, 5, 3, 0], [0, 0, 0, 0], [4, 0, 7, 0], [2, 0, 0, 9]]


@pytest.mark.parametrize(
    "share, expected",
    [
        (1.0, MATRIX.toarray().tolist()),
        (0.9, [[0, 5, 3, 2], [0, 0, 0, 0], [4, 0, 7, 0], [2, 2, 0, 9]]),  # of 11, 11 and 13; 5 + 3 + 2 have 10/11
        (8 / 11, [[0, 5, 3, 0], [0, 0, 0, 0], [4, 0, 7, 0], [2, 0, 0, 9]]),
        (0.1, [[0, 5, 0, 0], [0, 0, 0, 0], [0, 0, 7, 0], [0, 0, 0, 9]]),
    ],
)
def test_largest_of_mass_keeps_the_fewest_entries(share: float, expected: list[list[int]]) -> None:
    assert largest_of_mass(MATRIX, share).toarray().tolist() == expected


def test_shares_of_many_rows_do_not_depend_on_each_other() -> None:
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 1024, (300, 40)) * (draw.random((300, 40)) < 0.5)
    found = largest_of_mass(csr_matrix(rows.astype(np.int32)), 0.8).toarray()
    for row, kept in zip(rows, found, strict=True):
        ordered = np.sort(row)[::-1]
        count = int(np.searchsorted(ordered.cumsum(), 0.8 * row.sum())) + 1 if row.any() else 0
        assert np.count_nonzero(kept) == count and np.sort(kept)[::-1][:count].tolist() == ordered[:count].tolist()
        assert (kept[kept > 0] == row[kept > 0]).all()
