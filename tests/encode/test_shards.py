"""Shards of raw vectors: what is written is what is read, and nothing else is."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini import artifact
from cai_pyserini.cli import CaiError
from cai_pyserini.vectors import Shard, Vectors, read_shard, shard_facts, shard_path, write_shard

MATRIX = csr_matrix(np.array([[0, 0.5, 0, 2], [0, 0, 0, 0], [1e-30, 0, 3.25, 0]], np.float32))
SHARD = Shard(["007", "β/血圧", "NA"], MATRIX)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete folder of two shards."""
    recipe = {"stage": "encode"}
    for number in range(2):
        ids = [f"{number}-{id}" for id in SHARD.ids]
        write_shard(shard_path(tmp_path, number), Shard(ids, MATRIX * (number + 1)), artifact.digest(recipe), 0.5)
    artifact.write_manifest(tmp_path, recipe, {"shards": 2, "vectors": 6, "nonzeros": 8})
    return tmp_path


def test_a_shard_is_read_as_written(tmp_path: Path) -> None:
    path = shard_path(tmp_path, 12)
    write_shard(path, SHARD, "digest", 1.5)
    assert path.name == "00012.npz"
    shard = read_shard(path)
    assert shard.ids == SHARD.ids
    assert shard.matrix.dtype == np.float32
    assert shard.matrix.shape == (3, 4)
    np.testing.assert_array_equal(shard.matrix.toarray(), MATRIX.toarray())


@pytest.mark.parametrize("rows", [0, 2])
def test_a_shard_may_have_no_weights(tmp_path: Path, rows: int) -> None:
    write_shard(tmp_path / "s.npz", Shard(["a", "b"][:rows], csr_matrix((rows, 5), dtype=np.float32)), "digest", 0)
    shard = read_shard(tmp_path / "s.npz")
    assert (shard.ids, shard.matrix.shape, shard.matrix.nnz) == (["a", "b"][:rows], (rows, 5), 0)


def test_the_facts_of_a_shard(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.npz", SHARD, "digest", 1.5)
    assert shard_facts(tmp_path / "s.npz", "digest") == {"rows": 3, "nonzeros": 4, "seconds": 1.5}


def test_a_shard_of_another_recipe_is_none(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.npz", SHARD, "digest", 1.5)
    assert shard_facts(tmp_path / "s.npz", "another") is None
    assert shard_facts(tmp_path / "t.npz", "digest") is None


def test_a_shard_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted:
        def __str__(self) -> str:
            raise KeyboardInterrupt

    write_shard(tmp_path / "s.npz", SHARD, "old", 1.5)
    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path / "s.npz", Shard([Interrupted()], MATRIX), "new", 1.5)
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]
    assert shard_facts(tmp_path / "s.npz", "old")


def test_a_folder_is_its_shards_in_order(folder: Path) -> None:
    vectors = Vectors(folder)
    assert (len(vectors), vectors.shards) == (6, 2)
    assert [shard.ids[0] for shard in vectors] == ["0-007", "1-007"]
    assert [shard.matrix.sum() for shard in vectors] == [5.75, 11.5]


def test_an_unfinished_folder_is_refused(folder: Path) -> None:
    artifact.manifest_path(folder).unlink()
    with pytest.raises(CaiError, match=r"is missing or unfinished: make it with `python -m cai_pyserini\.encode`"):
        Vectors(folder)


def test_a_folder_of_another_stage_is_refused(tmp_path: Path) -> None:
    artifact.write_manifest(tmp_path, {"stage": "impact"}, {"shards": 0, "vectors": 0})
    with pytest.raises(CaiError, match="was made by stage 'impact', not by 'encode'"):
        Vectors(tmp_path)


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard_path(folder, 1).unlink()
    with pytest.raises(CaiError, match=r"00001\.npz is missing; run the encode stage again"):
        list(Vectors(folder))
