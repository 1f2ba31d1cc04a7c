"""The near stage: neighbours and their inner products, exact or approximate."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.vectors import neighbours as searching
from cai_pyserini.vectors.neighbours import build_index, find_neighbours, mapped_index, nearest, recall, write_index
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import stage_command, stored_vectors
from tests.vectors.support import interrupted_after, matrix_of

main = stage_command("near")


def expected(similarity: np.ndarray, neighbours: int) -> np.ndarray:
    """The products with the nearest other documents, document by document."""
    found = np.zeros_like(similarity)
    for i in range(len(similarity)):
        near = sorted((j for j in range(len(similarity)) if j != i), key=lambda j: -similarity[i, j])[:neighbours]
        found[i, near] = np.maximum(similarity[i, near], 0)
    return found


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
    rows, near = matrix_of(dense), found(dense, tmp_path / "near", neighbours)
    np.testing.assert_allclose(near, expected(rows @ rows.T, neighbours), rtol=1e-5)
    assert 0 < np.count_nonzero(near) <= 9 * min(neighbours, 8)
    stats = artifact.require(tmp_path / "near", "near").stats
    assert (stats["search"], stats["recall"]) == ("exact", 1.0)
    assert [shard.ids for shard in Vectors(tmp_path / "near", "near")] == [shard.ids for shard in dense]


@pytest.fixture
def clustered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vectors:
    """100 groups of 4, too many for an exact search, and two without a direction, which are nobody's neighbours."""
    monkeypatch.setattr(searching, "EXACT", 399)
    draw = np.random.default_rng(0)
    rows = np.repeat(draw.normal(size=(100, 32)), 4, axis=0) + draw.normal(scale=0.05, size=(400, 32))
    parts = np.split(np.vstack([rows, np.zeros((2, 32))]).astype(np.float32), [150, 300])
    ids = [[f"{number}-{i}" for i in range(len(part))] for number, part in enumerate(parts)]
    return stored_vectors(tmp_path / "clustered", *parts, ids=ids, kind="dense")


def test_an_approximate_search_says_what_it_finds(clustered: Vectors, tmp_path: Path) -> None:
    rows, near = matrix_of(clustered), found(clustered, tmp_path / "near", 3)
    np.testing.assert_allclose(near[:400], expected(rows @ rows.T, 3)[:400], rtol=0.05)
    assert not near[-2:].any() and not near[:, -2:].any()
    stats = artifact.require(tmp_path / "near", "near").stats
    assert (stats["search"], stats["recall"]) == ("approximate", 1.0)


def test_a_mapped_index_finds_what_one_in_memory_finds(clustered: Vectors, tmp_path: Path) -> None:
    rows, numbers = matrix_of(clustered), np.arange(402)

    def positions(label: str) -> Iterator[np.ndarray]:
        return (shard.vectors for shard in clustered)

    mapped = nearest(mapped_index(tmp_path, positions, 32, 402), rows, numbers, 5)
    for ours, theirs in zip(mapped, nearest(build_index(positions, 32, 402), rows, numbers, 5), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_index_onto_a_full_disk() -> None:
    """The fault: Faiss's error has no number, and ends the command with a traceback."""
    with pytest.raises(OSError) as full:
        write_index(faiss.IndexFlatIP(4), Path("/dev/full"))
    assert full.value.errno == errno.ENOSPC


def test_a_large_collection_has_no_more_clusters_than_a_limit(
    clustered: Vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its neighbours are not taken for those found with more."""
    usual = artifact.require(find_neighbours(clustered, tmp_path / "usual", 3), "near")
    monkeypatch.setattr(searching, "MOST_CLUSTERS", 20)
    index = mapped_index(tmp_path, lambda label: (shard.vectors for shard in clustered), 32, 402)
    assert faiss.downcast_index(index.base_index).nlist == 20
    assert artifact.require(find_neighbours(clustered, tmp_path / "limited", 3), "near").digest != usual.digest


def test_recall_of_an_approximate_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "EXACT", 1000)
    monkeypatch.setattr(searching, "SAMPLE", 2000)
    draw = np.random.default_rng(0)
    topics = draw.normal(size=(50, 22)).astype(np.float32)  # 22: not a multiple of 4
    rows = topics[draw.integers(0, 50, 2000)] + 0.3 * draw.normal(size=(2000, 22)).astype(np.float32)

    def positions(label: str) -> Iterator[np.ndarray]:
        return iter([rows[:700], rows[700:]])

    first, second = (nearest(build_index(positions, 22, 2000), rows, np.arange(2000), 10).numbers for _ in range(2))
    np.testing.assert_array_equal(first, second)
    exact = np.argsort(-np.where(np.eye(2000), -np.inf, rows @ rows.T), axis=1)[:, :10]
    found = np.mean([np.isin(true, hits).mean() for true, hits in zip(exact, first, strict=True)])
    assert recall(build_index(positions, 22, 2000), positions, 10) == pytest.approx(found) and 0.7 < found < 1


def test_an_equal_document_is_a_neighbour_but_not_the_document_itself() -> None:
    rows = np.array([[2, 0], [2, 0], [2, 0], [3, 0], [0, 1]], np.float32)  # the fourth is nearest to all but the last
    found = nearest(build_index(lambda label: [rows], 2, 5), rows, np.arange(5), 3).numbers
    assert [{*near} for near in found[:4].tolist()] == [{3, 1, 2}, {3, 0, 2}, {3, 0, 1}, {0, 1, 2}]


def test_missing_and_dissimilar_documents_are_not_neighbours() -> None:
    numbers, products = np.array([[1, -1], [2, 0]]), np.array([[0.5, -np.inf], [-0.1, 1]], np.float32)
    near = searching.Neighbours(numbers, products).matrix(3)
    np.testing.assert_array_equal(near.toarray(), [[0, 0.5, 0], [1, 0, 0]])


def test_a_single_document_has_no_neighbours(tmp_path: Path) -> None:
    vectors = stored_vectors(tmp_path / "vectors", np.ones((1, 2), np.float32), kind="dense")
    assert not found(vectors, tmp_path / "near").any()


def test_an_interrupted_stage_continues(clustered: Vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = found(clustered, tmp_path / "whole")
    with interrupted_after(2), pytest.raises(KeyboardInterrupt):
        find_neighbours(clustered, tmp_path / "resumed")
    with pytest.raises(CaiError, match="unfinished"):
        Vectors(tmp_path / "resumed", "near")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "resumed").glob("*.npz")}
    assert len(times) == 2
    monkeypatch.delattr(searching, "trained_index")  # the index of the first attempt is used
    np.testing.assert_array_equal(found(clustered, tmp_path / "resumed"), whole)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert {path.name for path in (tmp_path / "resumed").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


def test_sparse_vectors_are_refused(tmp_path: Path) -> None:
    splade = stored_vectors(tmp_path / "splade", csr_matrix(np.eye(3, dtype=np.float32)))
    with pytest.raises(CaiError, match="splade has splade vectors: choose a folder with those of a dense encoder"):
        find_neighbours(splade, tmp_path / "near")
