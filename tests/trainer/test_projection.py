"""The projection of dense vectors: it learns what a mixture knows."""

import numpy as np
import pytest

from cai_pyserini.models.dense import project
from cai_pyserini.trainer.mixture import Mixture, VectorSystem
from cai_pyserini.trainer.projection import interpolated, learn_projection


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_it_learns_which_dimensions_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are half signal, half noise, in 256 dimensions; the other system sees only the signal."""
    monkeypatch.setattr("cai_pyserini.trainer.projection.STEPS", 60)
    draw = np.random.default_rng(1)
    signal, noise = draw.normal(size=(700, 128)), draw.normal(size=(700, 128))
    both = unit(np.hstack([signal, noise]))
    dense, clean = VectorSystem(both[:200], both[200:]), VectorSystem(unit(signal[:200]), unit(signal[200:]))
    mixture = Mixture([clean, dense], [2.0, 1.0])
    sources = mixture.best[0, :, 0]
    inputs = (mixture, np.arange(100), sources, both[200:][sources], 1)
    projection = interpolated(learn_projection(*inputs), 0.5)

    def agreement(queries: np.ndarray, documents: np.ndarray) -> float:
        """The mean correlation with the clean scores, for queries outside the training."""
        pairs = zip((queries @ documents.T)[100:], clean.scores(np.arange(100, 200)), strict=True)
        return float(np.mean([np.corrcoef(one, other)[0, 1] for one, other in pairs]))

    before = agreement(both[:200], both[200:])
    after = agreement(project(both[:200], projection), project(both[200:], projection))
    assert after > before + 0.01
    np.testing.assert_array_equal(projection, interpolated(learn_projection(*inputs), 0.5))


def test_it_learns_to_find_sources_without_the_words_of_queries() -> None:
    """A query and what is left of its source share only dimensions that the mixture, which has the words, does not
    care for."""
    draw = np.random.default_rng(1)
    words, meaning, noise, others = draw.normal(size=(4, 400, 64))
    queries, documents = unit(np.hstack([2 * words, meaning + noise])), unit(np.hstack([2 * words, meaning]))
    remainders = unit(np.hstack([others, meaning]))
    dense, numbers = VectorSystem(queries, documents), np.arange(400)
    mixture = Mixture([dense, dense], [1, 1])
    learned = learn_projection(mixture, numbers[:300], numbers, remainders, 1)

    def found(weight: float) -> float:
        """How often the remainder of an unseen query's source is nearer to the query than all other documents."""
        of_queries, of_documents, rest = (
            project(part, interpolated(learned, weight)) for part in (queries, documents, remainders)
        )
        others = (of_queries @ of_documents.T)[300:]
        others[np.arange(100), np.arange(300, 400)] = -1
        return float(((of_queries[300:] * rest[300:]).sum(1) > others.max(1)).mean())

    assert found(1.0) > found(0.0) + 0.1
