"""NaN and infinity in vectors and scores, which are refused where they arise."""

import numpy as np
from scipy.sparse import csr_matrix


def first_not_finite(values: np.ndarray | csr_matrix) -> int | None:
    """The first row of vectors (rows, width) or scores (rows,) that has NaN or infinity; None if there is none."""
    data = values if isinstance(values, np.ndarray) else values.data
    if not (wrong := ~np.isfinite(data)).any():
        return None
    if isinstance(values, np.ndarray):
        return int(wrong.nonzero()[0][0])
    return int(np.searchsorted(values.indptr, wrong.argmax(), side="right")) - 1
