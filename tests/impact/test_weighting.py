"""IDF weighting by hand."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.idf.idf import idf_weights
from cai_pyserini.impact.quantization import weighted
from tests.conftest import stored_idf


def sparse(rows: list[list[float]]) -> csr_matrix:
    return csr_matrix(np.array(rows, np.float32))


@pytest.fixture
def idf(tmp_path: Path) -> Path:
    """The IDF of 8 documents: 2 have the first token, none the second, all the third."""
    return stored_idf(tmp_path / "idf", 8, [2, 0, 8], "of the encoder")


def test_weighting_is_elementwise() -> None:
    vectors = sparse([[1, 0, 2], [0, 3, 4]])
    assert weighted(vectors, np.array([2.0, 10.0, 0.5])).toarray().tolist() == [[2, 0, 1], [0, 30, 2]]
    assert weighted(vectors, None) is vectors


def test_weighting_leaves_the_vectors_as_they_are() -> None:
    vectors = sparse([[1, 0, 2]])
    weighted(vectors, np.array([2.0, 10.0, 0.5]))
    assert vectors.toarray().tolist() == [[1, 0, 2]]


@pytest.mark.parametrize("power, expected", [(1.0, [np.log(4), 1, 0]), (0.5, [np.log(4) ** 0.5, 1, 0])])
def test_weights_of_an_encoder(idf: Path, power: float, expected: list[float]) -> None:
    config = EncoderConfig(name="test", checkpoint="nowhere", idf=str(idf), idf_power=power)
    assert idf_weights(config, "of the encoder") == pytest.approx(expected)
    with pytest.raises(
        CaiError, match="idf has the IDF of another vocabulary than the encoder's: compute it with this"
    ):
        idf_weights(config, "of another")


def test_without_an_idf_or_with_power_0_there_are_no_weights(idf: Path) -> None:
    config = EncoderConfig(name="test", checkpoint="nowhere")
    assert idf_weights(config, "any") is None
    assert idf_weights(config.replace(idf=str(idf), idf_power=0.0), "any") is None
