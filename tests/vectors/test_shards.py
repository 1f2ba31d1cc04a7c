"""Shards of raw vectors: they round-trip, and broken or foreign ones are refused."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.vectors.shards import (
    Matrix,
    Shard,
    ShardStats,
    Vectors,
    document_keys,
    read_shard,
    shard_path,
    shard_stats,
    text_keys,
    with_first_passage,
    write_shard,
)
from tests.conftest import stored_vectors

MATRIX = csr_matrix(np.array([[0, 0.5, 0, 2], [0, 0, 0, 0], [1e-30, 0, 3.25, 0]], np.float32))
DENSE = np.array([[0.5, -1, 0], [0, 0, 0], [1e-30, 3, 1 / 3]], np.float32)
PASSAGES = ["a#0", *[f"b#{i}" for i in range(5)], *[f"c#{i}" for i in range(11)], "d#0"]
SHARD = Shard(["007", "β/血圧", "NA"], MATRIX)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete folder of two shards."""
    ids = [[f"{number}-{id}" for id in SHARD.ids] for number in range(2)]
    return stored_vectors(tmp_path / "vectors", MATRIX, MATRIX * 2, ids=ids).folder


@pytest.mark.parametrize("rows", [0, 2, 3])  # the first two have no weights
@pytest.mark.parametrize("full, nonzeros", [(MATRIX, 4), (DENSE, 5)], ids=["sparse", "dense"])
def test_a_shard_is_read_as_written(tmp_path: Path, full: Matrix, nonzeros: int, rows: int) -> None:
    path, ids, matrix = shard_path(tmp_path, 12), SHARD.ids[:rows], full[:rows] * (rows == 3)
    assert path.name == "00012.npz"
    keys = text_keys(ids)
    write_shard(path, Shard(ids, matrix, keys), "digest", 1.5)
    shard = read_shard(path, "digest")
    assert shard and shard.ids == ids and shard.vectors.dtype == np.float32
    assert type(shard.vectors) is type(matrix) and shard.vectors.shape == matrix.shape
    assert (shard.vectors != matrix).sum() == 0 and np.array_equal(shard.keys, keys)
    stats = ShardStats(rows, nonzeros * (rows == 3), seconds=1.5, found=0, encoding=1.5)
    assert shard_stats(path, "digest") == stats
    assert read_shard(path, "another") is shard_stats(path, "another") is None
    assert shard_stats(shard_path(tmp_path, 11), "digest") is None


def test_a_shard_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted:
        def __str__(self) -> str:
            raise KeyboardInterrupt

    write_shard(tmp_path / "s.npz", SHARD, "old", 1.5)
    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path / "s.npz", Shard([Interrupted()], MATRIX), "new", 1.5)
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]
    assert shard_stats(tmp_path / "s.npz", "old")


def test_a_folder_is_its_shards_in_order(folder: Path) -> None:
    vectors = Vectors(folder)
    assert (len(vectors), vectors.shards, vectors.encoder["kind"], vectors.width) == (6, 2, "splade", 4)
    assert [shard.ids[0] for shard in vectors] == ["0-007", "1-007"]
    assert [shard.vectors.sum() for shard in vectors] == [5.75, 11.5]


def test_a_missing_shard_is_named(folder: Path) -> None:
    vectors = Vectors(folder)
    shard_path(folder, 1).unlink()
    with pytest.raises(
        CaiError, match=r"00001\.npz is broken or of other vectors: delete it and run `cai-pyserini stage e"
    ):
        list(vectors)
    with pytest.raises(CaiError, match=r"vectors is damaged \(00001\.npz is missing\): make it again with"):
        Vectors(folder)


DAMAGES = {
    "empty": lambda data: b"",  # as after a power cut
    "truncated": lambda data: data[: len(data) // 2],
    "garbled": lambda data: data[:100] + b"x" * 40 + data[140:],
    "zeros": lambda data: bytes(len(data)),
    "another file": lambda data: b"text",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_shard_counts_as_missing(folder: Path, damage: str) -> None:
    path, digest = shard_path(folder, 1), Vectors(folder).manifest.digest
    vectors = Vectors(folder)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert read_shard(path, digest) is None
    assert damage == "garbled" or shard_stats(path, digest) is None
    with pytest.raises(CaiError, match=r"00001\.npz is broken or of other vectors: delete it and run"):
        list(vectors)


@pytest.mark.slow
def test_a_garbled_shard_is_read_correctly_or_not_at_all(tmp_path: Path) -> None:
    path, draw = tmp_path / "s.npz", random.Random(0)
    write_shard(path, SHARD, "digest", 1.5)
    data = path.read_bytes()
    for _ in range(400):
        garbled = bytearray(data)
        for place in draw.choices(range(len(data)), k=draw.choice([1, 2, 8])):
            garbled[place] = draw.randrange(256)
        path.write_bytes(garbled)
        shard_stats(path, "digest")
        if shard := read_shard(path, "digest"):
            assert shard.ids == SHARD.ids and abs(shard.vectors - MATRIX).max() == 0


def test_shards_of_another_recipe_or_number_are_refused(folder: Path, tmp_path: Path) -> None:
    """They have the same size, so only their contents tell."""
    ids = [[f"{number}-{id}" for id in SHARD.ids] for number in range(2)]
    other = stored_vectors(tmp_path / "other", MATRIX, MATRIX * 2, ids=ids, max_length=128).folder
    for source in (shard_path(other, 1), shard_path(folder, 0)):
        shutil.copy(source, shard_path(folder, 1))
        vectors = Vectors(folder)
        vectors.shard(0)
        with pytest.raises(CaiError, match=r"00001\.npz is broken or of other vectors"):
            vectors.shard(1)


def test_the_number_of_vectors_must_match_the_manifest(folder: Path) -> None:
    manifest = artifact.manifest_path(folder)
    manifest.write_text(manifest.read_text().replace('"vectors": 6', '"vectors": 7'))
    with pytest.raises(CaiError, match="vectors has 6 documents, its manifest says 7"):
        list(Vectors(folder))


def test_keys_identify_the_encoded_texts() -> None:
    """Different texts have different keys, and a key does not depend on its row."""
    keys = text_keys(["fever", "fever ", "fever"])
    assert keys.shape == (3, 16) and keys.dtype == np.uint8
    assert (keys[0] == keys[2]).all() and (keys[0] != keys[1]).any() and text_keys([]).shape == (0, 16)


def test_keys_of_documents_are_read_or_refused(folder: Path) -> None:
    vectors = Vectors(folder)
    with pytest.raises(CaiError, match=r"00000\.npz is broken or of other vectors: delete it and run"):
        list(document_keys(vectors))  # encoded before shards had keys
    for number in range(2):
        path, keys = shard_path(folder, number), text_keys([f"{number}", "same", ""])
        write_shard(path, vectors.shard(number)._replace(keys=keys), vectors.manifest.digest, 1.5)
    found = list(document_keys(vectors))
    assert [ids[0] for ids, _ in found] == ["0-007", "1-007"]
    np.testing.assert_array_equal(found[1][1], text_keys(["1", "same", ""]))
    shutil.copy(shard_path(folder, 0), shard_path(folder, 1))
    with pytest.raises(CaiError, match=r"00001\.npz is broken or of other vectors"):
        list(document_keys(vectors))


@pytest.mark.parametrize("kind", [csr_matrix, np.asarray])
@pytest.mark.parametrize("size", [1, 2, 5, 18])
def test_passages_of_a_document_may_be_in_several_shards(kind: type[Matrix], size: int) -> None:
    vectors = np.random.default_rng(0).random((len(PASSAGES), 4)).astype(np.float32)
    shards = [Shard(PASSAGES[i : i + size], kind(vectors[i : i + size])) for i in range(0, len(PASSAGES), size)]
    found = [with_first_passage(shard, reversed(shards[:i]), 0.5) for i, shard in enumerate(shards)]
    first = [PASSAGES.index(f"{id[0]}#0") for id in PASSAGES]
    mixed = np.vstack([csr_matrix(shard.vectors).toarray() for shard in found])
    np.testing.assert_allclose(mixed, (vectors + vectors[first] / 2) / 1.5, rtol=1e-6)
    assert [id for shard in found for id in shard.ids] == PASSAGES and found[0].vectors.dtype == np.float32
    assert with_first_passage(shards[-1], shards, 0.0) is shards[-1]
