"""Weighting, quantization and pruning by hand, and quantization compared with Pyserini's."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.rows import largest_of_mass
from cai_pyserini.models.splade import Splade
from cai_pyserini.plugin.export import export_encoder
from cai_pyserini.vectors.quantization import Quantizer, loss_stats, prune, weighted
from cai_pyserini.vectors.queries import as_terms

WEIGHTS = [[0, 0.2, 0.25, 0.75], [1, 3.5, 9, 0]]


def sparse(rows: list[list[float]]) -> csr_matrix:
    return csr_matrix(np.array(rows, np.float32))


def test_weighting_is_elementwise() -> None:
    vectors = sparse([[1, 0, 2], [0, 3, 4]])
    assert weighted(vectors, np.array([2.0, 10.0, 0.5])).toarray().tolist() == [[2, 0, 1], [0, 30, 2]]
    assert weighted(vectors, None) is vectors and vectors.toarray().tolist() == [[1, 0, 2], [0, 3, 4]]


def test_quantizer_worked_example() -> None:
    quantizer, weights = Quantizer.of(bits=3, range=3.5), sparse(WEIGHTS)
    assert quantizer.scale == 2.0
    impacts = quantizer.impacts(weights)
    # 0.4 and 0.5 become 0 and go; 1.5 is rounded to even; 18 is cut to 2^3 - 1
    assert impacts.toarray().tolist() == [[0, 0, 0, 2], [2, 7, 7, 0]]
    assert (impacts.dtype, impacts.nnz) == (np.int32, 4)
    assert weights.toarray().tolist() == sparse(WEIGHTS).toarray().tolist() and weights.nnz == 6  # unchanged


@pytest.mark.slow
def test_at_scale_51_2_impacts_equal_pyserinis(java: None, tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    from pyserini.encode import SpladeDocumentEncoder

    stock = SpladeDocumentEncoder(str(export_encoder(load_encoder("splade-tiny"), tmp_path / "splade")), device="cpu")
    texts = [document.contents for document in BeirFolder(tiny, "tiny").documents()]
    expected = [{term: impact for term, impact in vector.items() if impact} for vector in stock.encode(texts)]
    splade = Splade(checkpoint, "cpu", "float32")
    impacts = Quantizer(51.2, bits=24).impacts(splade.encode(texts, 512))
    ours = as_terms(impacts, splade.tokenizer.terms)
    assert sum(map(len, ours)) > 500
    differ = [
        (term, ours[i].get(term, 0), expected[i].get(term, 0))
        for i in range(len(texts))
        for term in ours[i].keys() | expected[i].keys()
        if ours[i].get(term, 0) != expected[i].get(term, 0)
    ]
    # A weight within float error of a half is rounded either way.
    assert len(differ) <= 2 and all(abs(a - b) == 1 for _, a, b in differ), differ


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused(value: float) -> None:
    weights = sparse([[1, 0, 2], [0, 0, 0], [3, value, 4]])
    with pytest.raises(CaiError, match="document 'c' has a weight that is NaN or infinite"):
        Quantizer.of(8, 5.0).impacts(weights, ["a", "b", "c"])
    with pytest.raises(CaiError, match="document number 2 has"):
        Quantizer.of(8, 5.0).impacts(weights)


def test_loss_worked_example() -> None:
    quantizer = Quantizer.of(bits=3, range=3.5)  # scale 2
    shards = [sparse([row]) for row in WEIGHTS]
    stats = loss_stats(sum(quantizer.loss(shard, quantizer.impacts(shard)) for shard in shards))
    # Differences: 0.2, 0.25, 0.75 - 1 = -0.25; 0, 0, 9 - 3.5 = 5.5
    error = 0.2**2 + 0.25**2 + 0.25**2 + 5.5**2
    square = 0.2**2 + 0.25**2 + 0.75**2 + 1 + 3.5**2 + 9**2
    assert stats["relative_error"] == pytest.approx((error / square) ** 0.5, rel=1e-6)
    assert (stats["dropped"], stats["clipped"]) == (2 / 6, 1 / 6)
    weights = sparse([[3.5, 3.74, 3.76]])  # 7, 7.48 and 7.52, of which the last would round beyond the largest impact
    assert loss_stats(quantizer.loss(weights, quantizer.impacts(weights)))["clipped"] == 1 / 3
    assert loss_stats(np.zeros(5)) == {"relative_error": 0, "dropped": 0, "clipped": 0}


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [[3, 9, 3, 1], [0, 0, 0, 0], [4, 0, 0, 4]]),
        ({"keep_terms": 2}, [[3, 9, 0, 0], [0, 0, 0, 0], [4, 0, 0, 4]]),
        ({"keep_terms": 0}, [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]),
        ({"keep_terms": 1}, [[0, 9, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0]]),
        ({"keep_mass": 0.75}, [[3, 9, 0, 0], [0, 0, 0, 0], [4, 0, 0, 4]]),
        ({"keep_mass": 0.5}, [[0, 9, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0]]),
        ({"keep_mass": 0.9, "keep_terms": 2}, [[3, 9, 0, 0], [0, 0, 0, 0], [4, 0, 0, 4]]),
    ],
)
def test_pruning_worked_example(settings: dict[str, float], expected: list[list[int]]) -> None:
    impacts = csr_matrix(np.array([[3, 9, 3, 1], [0, 0, 0, 0], [4, 0, 0, 4]], np.int32))
    config = EncoderConfig(name="test", checkpoint="nowhere").replace(**settings)
    assert prune(impacts, config).toarray().tolist() == expected


def test_shares_of_many_rows_do_not_depend_on_each_other() -> None:
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 1024, (300, 40)) * (draw.random((300, 40)) < 0.5)
    found = largest_of_mass(csr_matrix(rows.astype(np.int32)), 0.8).toarray()
    for row, kept in zip(rows, found, strict=True):
        ordered = np.sort(row)[::-1]
        count = int(np.searchsorted(ordered.cumsum(), 0.8 * row.sum())) + 1 if row.any() else 0
        assert np.count_nonzero(kept) == count and np.sort(kept)[::-1][:count].tolist() == ordered[:count].tolist()
        assert (kept[kept > 0] == row[kept > 0]).all()
