"""Dense indexes: files that Pyserini opens, what they find, and what is refused."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import DenseMethod
from cai_pyserini.indexes.dense_index import graph, index_dense
from cai_pyserini.vectors.shards import Matrix, Vectors
from tests.conftest import stage_command, stored_vectors

main = stage_command("index")

ROWS = np.array([[1, 0], [0, 2], [3, 4]], np.float32)


def test_the_file_is_the_one_that_faiss_writes(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((24, 12), np.float32)
    vectors = stored_vectors(tmp_path / "vectors", rows[:20], rows[20:], kind="dense", checkpoint="of the encoder")
    expected = faiss.IndexFlatIP(12)
    expected.add(rows)
    faiss.write_index(expected, str(tmp_path / "by faiss"))
    index = index_dense(vectors, tmp_path / "index")
    assert (index / "index").read_bytes() == (tmp_path / "by faiss").read_bytes()
    assert (index / "docid").read_text().split() == [chr(ord("a") + number) for number in range(24)]
    stats = artifact.require(index, "index").stats
    assert (stats["documents"], stats["encoder"]["checkpoint"]) == (24, "of the encoder")
    assert stats["bytes"] > 4 * 24 * 12


@pytest.mark.parametrize("method", ["hnsw", "ivfpq"])
def test_one_thread_gives_the_same_index_again(many: Vectors, tmp_path: Path, method: DenseMethod) -> None:
    first, second = (index_dense(many, tmp_path / name, method, threads=1) for name in ("first", "second"))
    assert (first / "index").read_bytes() == (second / "index").read_bytes()


@pytest.mark.parametrize(
    "matrix, method, message",
    [
        (csr_matrix(ROWS), "flat", "has sparse vectors: make impacts of them"),
        (ROWS, "ivfpq", "has 3 vectors, too few to train ivfpq, which takes more than 50,000: choose hnsw or flat"),
        (ROWS * 0, "hnsw", "all vectors are zero, so that no document can be found"),
    ],
)
def test_refused(tmp_path: Path, matrix: Matrix, method: DenseMethod, message: str) -> None:
    kind = "dense" if isinstance(matrix, np.ndarray) else "splade"
    vectors = stored_vectors(tmp_path / "vectors", matrix, kind=kind)
    with pytest.raises(CaiError, match=message):
        index_dense(vectors, tmp_path / "index", method)
    assert artifact.read_manifest(tmp_path / "index") is None


def test_parameters_grow_with_the_graph() -> None:
    small, large, huge = graph(0), graph(100_001), graph(10**9)
    assert small[2] < large[2] < huge[2] and small[0] < huge[0]
