"""Dense indexes: files that Pyserini's FaissSearcher opens."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.index.__main__ import main
from cai_pyserini.index.dense import index_dense
from tests.conftest import stored_vectors

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
    assert (stats["documents"], stats["checkpoint"]) == (24, "of the encoder") and stats["bytes"] > 4 * 24 * 12


def test_made_again_only_where_the_vectors_change(tmp_path: Path) -> None:
    index = tmp_path / "index"
    vectors = stored_vectors(tmp_path / "vectors", ROWS, kind="dense")
    before = index_dense(vectors, index).stat().st_ino
    assert index_dense(vectors, index).stat().st_ino == before
    other = stored_vectors(tmp_path / "others", ROWS, kind="dense", checkpoint="other")
    assert index_dense(other, index).stat().st_ino != before


def test_sparse_vectors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="has sparse vectors: make impacts of them"):
        index_dense(stored_vectors(tmp_path / "vectors", csr_matrix(ROWS)), tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored_vectors(tmp_path / "vectors", ROWS, kind="dense")
    main(["dense", "--vectors", str(tmp_path / "vectors"), "--output", str(tmp_path / "index")])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'index'}: 3 documents, ")
