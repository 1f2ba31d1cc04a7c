"""The projection of dense vectors: it learns what a mixture knows."""

import numpy as np

from cai_pyserini.adapt.mixture import Mixture, Products
from cai_pyserini.adapt.projection import learn_projection
from cai_pyserini.models.dense import project


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_it_learns_which_dimensions_matter() -> None:
    """Vectors are half signal, half noise, in 256 dimensions; the other system sees the signal alone."""
    draw = np.random.default_rng(1)
    signal, noise = draw.normal(size=(700, 128)), draw.normal(size=(700, 128))
    both = unit(np.hstack([signal, noise]))
    dense, clean = Products(both[:200], both[200:]), Products(unit(signal[:200]), unit(signal[200:]))
    mixture = Mixture([clean, dense], [2.0, 1.0], 200, 500)
    projection = learn_projection(mixture, dense, np.arange(100), seed=1)

    def agreement(queries: np.ndarray, documents: np.ndarray) -> float:
        """The mean correlation with the clean scores, for queries that did not train."""
        pairs = zip((queries @ documents.T)[100:], clean.scores(np.arange(100, 200)), strict=True)
        return float(np.mean([np.corrcoef(one, other)[0, 1] for one, other in pairs]))

    before = agreement(both[:200], both[200:])
    after = agreement(project(both[:200], projection), project(both[200:], projection))
    assert after > before + 0.01
    np.testing.assert_array_equal(projection, learn_projection(mixture, dense, np.arange(100), seed=1))


def test_projected_vectors_have_length_one_or_zero() -> None:
    vectors = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(project(vectors, np.eye(2, dtype=np.float32)), np.array([[0.6, 0.8], [0, 0]]))
