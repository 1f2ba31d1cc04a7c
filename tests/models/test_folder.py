"""Folders of all kinds give the vectors of their own library, or are refused."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import load_encoder
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.encode.queries import encode_queries
from tests.models.kinds import KINDS, TEXTS, build, encoded


@pytest.mark.parametrize("name", KINDS)
def test_vectors_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    spec = build(name, tmp_path)
    expected = encoded(name, tmp_path / "folder")
    made = Encoder(load_encoder(str(spec)), "cpu", "float32")
    length = made.config.max_document_length
    for batch_size in (1, 3):
        documents = made.load("documents").encode(TEXTS, length, batch_size)
        for found, vectors in zip((documents, encode_queries(made, TEXTS)), expected, strict=True):
            found = found.toarray() if isinstance(found, csr_matrix) else found
            np.testing.assert_allclose(found, vectors, atol=1e-5)
