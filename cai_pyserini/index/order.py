"""The places of documents in an index, chosen so that alike ones are near each other."""

from array import array
from heapq import nlargest
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core import jsonl
from cai_pyserini.core.terminal import progress
from cai_pyserini.index.bisection import bisect
from cai_pyserini.index.json_vectors import parse_vector

TERMS = 64  # of a document that are compared, the largest: this bounds the memory


def places(files: list[Path], total: int | None) -> list[int]:
    """The place of every document of JSON vectors, in the order of the files."""
    columns: dict[str, int] = {}
    indices, ends = array("i"), array("q", [0])
    lines = (line for file in files for line in jsonl.read_lines(file))
    for where, line in progress(lines, total, "order documents"):
        _, vector = parse_vector(line, where)
        terms = nlargest(TERMS, vector, vector.__getitem__) if len(vector) > TERMS else vector
        indices.extend([columns.setdefault(term, len(columns)) for term in terms])
        ends.append(len(indices))
    data = np.ones(len(indices), np.float32)
    shape = (len(ends) - 1, len(columns))
    documents = csr_matrix((data, np.frombuffer(indices, np.int32), np.frombuffer(ends, np.int64)), shape)
    return np.argsort(bisect(documents)).tolist()
