"""The near stage: neighbours and their inner products, by dense or SPLADE vectors, exact or approximate."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from cai_pyserini.cli.near import main
from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.vectors import near as stage
from cai_pyserini.vectors import neighbours as searching
from cai_pyserini.vectors.near import find_neighbours
from cai_pyserini.vectors.neighbours import search_vectors
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import stored_idf, stored_vectors
from tests.vectors.interruption import interrupted_after
from tests.vectors.matrices import matrix_of

WIDTH = 30522  # of splade-tiny


def expected(similarity: np.ndarray, neighbours: int) -> np.ndarray:
    """The products with the nearest other documents, document by document."""
    found = np.zeros_like(similarity)
    for i in range(len(similarity)):
        near = sorted((j for j in range(len(similarity)) if j != i), key=lambda j: -similarity[i, j])[:neighbours]
        found[i, near] = np.maximum(similarity[i, near], 0)
    return found


def hashed_similarity(rows: np.ndarray) -> np.ndarray:
    """The inner products of hashed vectors."""
    hashed = search_vectors(csr_matrix(rows))
    return hashed @ hashed.T


def found(vectors: Vectors, output: Path, *arguments: Any) -> np.ndarray:
    return matrix_of(Vectors(find_neighbours(vectors, output, *arguments), "near"))


@pytest.fixture
def dense(tmp_path: Path) -> Vectors:
    rows = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    parts = [slice(0, 4), slice(4, 8), slice(8, 9)]
    ids = [[f"d{i}" for i in range(9)][part] for part in parts]
    return stored_vectors(tmp_path / "dense", *(rows[part] for part in parts), ids=ids, kind="dense")


@pytest.mark.parametrize("neighbours", [1, 3, 20])
def test_by_dense_vectors(dense: Vectors, tmp_path: Path, neighbours: int) -> None:
    rows, near = matrix_of(dense), found(dense, tmp_path / "near", None, neighbours)
    np.testing.assert_allclose(near, expected(rows @ rows.T, neighbours), rtol=1e-5)
    assert 0 < np.count_nonzero(near) <= 9 * min(neighbours, 8)
    stats = artifact.require(tmp_path / "near", "near").stats
    assert (stats["near_by"], stats["search"], stats["recall"]) == ("dense", "exact", 1.0)
    assert [shard.ids for shard in Vectors(tmp_path / "near", "near")] == [shard.ids for shard in dense]


def groups(draw: np.random.Generator, count: int, size: int) -> csr_matrix:
    """Documents (count * size, WIDTH): consecutive ones form groups with almost equal vectors."""
    centres = random_array((count, WIDTH), density=100 / WIDTH, rng=draw, format="csr", dtype=np.float32)
    documents = centres[np.repeat(np.arange(count), size)]
    documents.data *= draw.uniform(0.8, 1.2, documents.nnz).astype(np.float32)
    return csr_matrix(documents)


@pytest.mark.parametrize("count, search", [(20, "exact"), pytest.param(100, "approximate", marks=pytest.mark.slow)])
def test_by_splade_vectors(count: int, search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "EXACT", 399)
    documents = groups(np.random.default_rng(0), count, 4)
    blank = csr_matrix((2, WIDTH), dtype=np.float32)  # no neighbours, and not part of the recall
    ids = [[str(i) for i in range(4 * count)], ["x", "y"]]
    vectors = stored_vectors(tmp_path / "vectors", documents, blank, ids=ids)
    near = found(vectors, tmp_path / "near", None, 3)
    rows = np.vstack([documents.toarray(), blank.toarray()])
    rounding = 1e-5 if search == "exact" else 1e-2  # of inner products with 8 bits
    np.testing.assert_allclose(near, expected(hashed_similarity(rows), 3), rtol=rounding)
    assert not near[-2:].any() and not near[:, -2:].any()
    stats = artifact.require(tmp_path / "near", "near").stats
    assert (stats["near_by"], stats["search"], stats["recall"]) == ("splade", search, 1.0)


def test_idf_weights_the_compared_vectors(tmp_path: Path) -> None:
    # b shares a frequent term with a, and c a rare one.
    rows = np.array([[3, 1, 0, 0], [3, 0, 1, 0], [0, 1, 0, 3]], np.float32)
    vectors = stored_vectors(tmp_path / "vectors", csr_matrix(rows))
    idf = stored_idf(tmp_path / "idf", 100, [99, 2, 2, 99])
    assert found(vectors, tmp_path / "near", None, 1)[0].nonzero()[0] == [1]
    assert found(vectors, tmp_path / "near", idf, 1)[0].nonzero()[0] == [2]
    other = stored_idf(tmp_path / "other", 100, [99, 2, 2, 99], "another vocabulary")
    with pytest.raises(CaiError, match="other has the IDF of another vocabulary than the encoder's"):
        find_neighbours(vectors, tmp_path / "refused", other)


def test_missing_and_dissimilar_documents_are_not_neighbours() -> None:
    numbers, products = np.array([[1, -1], [2, 0]]), np.array([[0.5, -np.inf], [-0.1, 1]], np.float32)
    near = searching.Neighbours(numbers, products).matrix(3)
    np.testing.assert_array_equal(near.toarray(), [[0, 0.5, 0], [1, 0, 0]])


def test_a_single_document_has_no_neighbours(tmp_path: Path) -> None:
    vectors = stored_vectors(tmp_path / "vectors", np.ones((1, 2), np.float32), kind="dense")
    assert not found(vectors, tmp_path / "near").any()


def test_vectors_without_any_weight_are_refused(tmp_path: Path) -> None:
    vectors = stored_vectors(tmp_path / "vectors", csr_matrix((3, 2), dtype=np.float32))
    with pytest.raises(CaiError, match="vectors: no document has any weight; is this a SPLADE checkpoint"):
        find_neighbours(vectors, tmp_path / "near")


def test_an_interrupted_stage_continues(dense: Vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = found(dense, tmp_path / "whole")
    with interrupted_after(2), pytest.raises(KeyboardInterrupt):
        find_neighbours(dense, tmp_path / "resumed")
    with pytest.raises(CaiError, match="unfinished"):
        Vectors(tmp_path / "resumed", "near")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "resumed").glob("*.npz")}
    assert len(times) == 2
    monkeypatch.delattr(stage, "build_index")  # the index of the first attempt is used
    np.testing.assert_array_equal(found(dense, tmp_path / "resumed"), whole)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert {path.name for path in (tmp_path / "resumed").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


def test_command(dense: Vectors, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--vectors", str(dense.folder), "--output", str(tmp_path / "near")]
    main([*arguments, "--neighbours", "2"])
    assert capsys.readouterr().out == (
        f"{tmp_path / 'near'}: 9 documents, 2.0 neighbours each, by dense vectors, exact search, recall 1.00\n"
    )
    idf = stored_idf(tmp_path / "idf", 100, [99, 2, 2])
    with pytest.raises(CaiError, match="dense has dense vectors: leave out the IDF, which weights SPLADE vectors"):
        main([*arguments, "--idf", str(idf)])
