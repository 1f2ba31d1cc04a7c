"""Read all vectors of a folder."""

from typing import Any

import numpy as np

from cai_pyserini.vectors.shards import Vectors


def matrix_of(vectors: Vectors) -> np.ndarray:
    """All vectors (documents, width)."""
    matrices: list[Any] = [shard.vectors for shard in vectors]
    return np.vstack([matrix if isinstance(matrix, np.ndarray) else matrix.toarray() for matrix in matrices])
