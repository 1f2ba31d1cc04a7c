"""The smooth stage equals the plain formula, despite blank documents, ties and interruptions."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from cai_pyserini.core.errors import CaiError
from cai_pyserini.vectors import near_documents as stage
from cai_pyserini.vectors.near_documents import mix
from cai_pyserini.vectors.neighbours import NEIGHBOURS, find_neighbours
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import stage_command, stored_vectors
from tests.vectors.support import interrupted_after, matrix_of

main = stage_command("near-documents")

BLANK = [1, 6]  # documents of `inputs`


def smooth(
    vectors: Vectors, output: Path, dense: Vectors, neighbours: int = NEIGHBOURS, weight: float = stage.WEIGHT
) -> Path:
    """Smooth vectors with the neighbours by dense vectors."""
    near = find_neighbours(dense, output.with_name(f"{output.name}-near"), neighbours)
    return stage.mix_near(vectors, Vectors(near, "near"), output, weight)


def expected(raw: np.ndarray, similarity: np.ndarray, neighbours: int, weight: float) -> np.ndarray:
    """The formula, document by document."""
    smoothed = np.zeros_like(raw)
    has_weights = raw.any(1)
    for i in np.flatnonzero(has_weights):
        nearest = sorted((j for j in range(len(raw)) if j != i), key=lambda j: -similarity[i, j])[:neighbours]
        near = [j for j in nearest if has_weights[j]]
        shares = np.array([max(similarity[i, j], 0) ** 4 for j in near])
        mixed = (1 - weight) * raw[i] + weight * shares @ raw[near] / shares.sum() if shares.any() else raw[i]
        kept = np.argsort(-mixed)[: np.count_nonzero(raw[i])]
        smoothed[i, kept] = mixed[kept]
    return smoothed


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SPLADE and dense vectors of 9 documents, 2 of them blank, in three shards."""
    folder = tmp_path_factory.mktemp("inputs")
    draw = np.random.default_rng(0)
    sparse = random_array((9, 40), density=0.3, rng=draw, format="csr", dtype=np.float32).tolil()
    sparse[BLANK] = 0
    dense = draw.normal(size=(9, 3)).astype(np.float32)
    parts = [slice(0, 4), slice(4, 8), slice(8, 9)]
    ids = [[f"d{i}" for i in range(9)][part] for part in parts]
    sparse = csr_matrix(sparse)
    stored_vectors(folder / "splade", *(sparse[part] for part in parts), ids=ids, precision="float32")
    stored_vectors(folder / "dense", *(dense[part] for part in parts), ids=ids, kind="dense")
    return folder


@pytest.fixture
def splade(inputs: Path) -> Vectors:
    return Vectors(inputs / "splade")


@pytest.fixture
def dense(inputs: Path) -> Vectors:
    return Vectors(inputs / "dense")


@pytest.mark.parametrize("neighbours, weight", [(1, 0.5), (3, 0.3), (20, 0.4), (2, 1.0), (3, 0.0)])
def test_equal_to_the_formula_with_dense_vectors(
    splade: Vectors, dense: Vectors, tmp_path: Path, neighbours: int, weight: float
) -> None:
    smoothed = Vectors(smooth(splade, tmp_path / "smoothed", dense, neighbours, weight))
    raw, positions = matrix_of(splade), matrix_of(dense)
    formula = expected(raw, positions @ positions.T, neighbours, weight)
    np.testing.assert_allclose(matrix_of(smoothed), formula, rtol=1e-5, atol=1e-6)
    assert not formula[BLANK].any() and np.count_nonzero(formula) == smoothed.manifest.stats["nonzeros"] > 50
    assert (np.count_nonzero(formula[raw == 0]) > 10) == (weight > 0)  # terms of neighbours
    assert all((np.diff(row.indices) > 0).all() for shard in smoothed for row in shard.vectors)
    assert [shard.ids for shard in smoothed] == [shard.ids for shard in splade]


def test_a_shard_without_any_weight(tmp_path: Path) -> None:
    rows = csr_matrix(np.array([[1, 0], [2, 1]], np.float32))
    vectors = stored_vectors(tmp_path / "vectors", rows, csr_matrix((2, 2), dtype=np.float32), rows)
    positions = np.ones((2, 3), np.float32)
    dense = stored_vectors(tmp_path / "dense", positions, positions, positions, kind="dense")
    smoothed = matrix_of(Vectors(smooth(vectors, tmp_path / "smoothed", dense)))
    assert np.isfinite(smoothed).all() and not smoothed[2:4].any()
    assert (smoothed[[0, 1, 4, 5]] > 0).sum() == 6


def test_documents_without_weights_are_nobodys_neighbours() -> None:
    """They have neighbours by their dense vectors."""
    raw = csr_matrix(np.array([[4, 1, 0], [0, 0, 0], [0, 1, 6]], np.float32))
    near = csr_matrix(np.array([[0, 1, 0.5], [1, 0, 0], [0, 1, 0]], np.float32))
    smoothed = mix(raw, raw, near, 0.5)
    np.testing.assert_allclose(smoothed.toarray(), np.array([[2, 0, 3], [0, 0, 0], [0, 1, 6]]), rtol=1e-6)


def test_unfinished_work_of_another_recipe_is_not_used(splade: Vectors, dense: Vectors, tmp_path: Path) -> None:
    near = Vectors(find_neighbours(dense, tmp_path / "near"), "near")
    with interrupted_after(2), pytest.raises(KeyboardInterrupt):
        stage.mix_near(splade, near, tmp_path / "smoothed", weight=0.9)
    small = stored_vectors(tmp_path / "small", csr_matrix(np.eye(3, dtype=np.float32) + 1))
    few = stored_vectors(tmp_path / "few", np.ones((3, 2), np.float32), kind="dense")
    smoothed, fresh = (Vectors(smooth(small, tmp_path / name, few, weight=0.5)) for name in ("smoothed", "fresh"))
    np.testing.assert_array_equal(matrix_of(smoothed), matrix_of(fresh))
    assert sorted(path.name for path in smoothed.folder.iterdir()) == ["00000.npz", "manifest.json"]


@pytest.mark.parametrize("ids", [[["d0", "d1"], ["x"]], [["d0", "d1"]], [["d0", "d1"], ["d2"], ["d3"]]])
def test_dense_vectors_of_other_documents_are_refused(tmp_path: Path, ids: list[list[str]]) -> None:
    sparse, rows = csr_matrix(np.eye(2, dtype=np.float32)), np.eye(2, dtype=np.float32)
    splade = stored_vectors(tmp_path / "splade", sparse, sparse[:1], ids=[["d0", "d1"], ["d2"]])
    dense = stored_vectors(tmp_path / "dense", *(rows[: len(shard)] for shard in ids), ids=ids, kind="dense")
    with pytest.raises(
        CaiError, match=r"splade and .*smoothed-near have different documents: make both from the same collection"
    ):
        smooth(splade, tmp_path / "smoothed", dense)


def test_vectors_of_the_wrong_kind_are_refused(dense: Vectors, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="dense has dense vectors: choose a folder with splade ones"):
        smooth(dense, tmp_path / "smoothed", dense)
