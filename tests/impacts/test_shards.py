"""Impacts of random vectors in three shards: pruning, and writing with several processes."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.impacts.bm25 import Bm25
from cai_pyserini.impacts.weighting import open_impacts, write_impacts
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import stored_vectors
from tests.impacts.support import counted, vectors_of, words_of

ROWS = (4, 7, 5)  # of the shards
IDS = [[f"d{shard}-{row}" for row in range(rows)] for shard, rows in enumerate(ROWS)]


@pytest.fixture
def config(checkpoint: Path) -> EncoderConfig:
    return EncoderConfig(name="test", checkpoint=str(checkpoint), range=10.0)


@pytest.fixture
def vectors(checkpoint: Path, tmp_path: Path) -> Vectors:
    """Documents of up to 200 random terms, in three shards."""
    draw, width = np.random.default_rng(0), len(Tokenizer(checkpoint))
    parts = [np.zeros((rows, width), np.float32) for rows in ROWS]
    for part in parts:
        part[:, :200] = draw.exponential(2, (len(part), 200)) * (draw.random((len(part), 200)) < 0.7)
    digest = checkpoint_digest(checkpoint)
    return stored_vectors(tmp_path / "vectors", *map(csr_matrix, parts), ids=IDS, checkpoint=digest)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process needs only one shard."""
    monkeypatch.setattr("cai_pyserini.impacts.weighting.MIN_SHARDS", 1)


def two_words(folder: Path, ids: list[list[str]]) -> Bm25:
    """Two words, one in every document, one in half of them."""
    counts = [[[2, row % 2] for row in range(len(of_shard))] for of_shard in ids]
    return Bm25(counted(folder, ["fever", "cold"], *counts, ids=ids), alpha=1.0)


@pytest.mark.parametrize("settings", [{"keep_terms": 20}, {"keep_mass": 0.6}, {"keep_mass": 0.6, "keep_terms": 20}])
def test_pruning_keeps_the_largest_impacts(
    settings: dict[str, float], vectors: Vectors, config: EncoderConfig, tmp_path: Path
) -> None:
    whole = write_impacts(vectors, config, tmp_path / "whole")
    pruned = write_impacts(vectors, config.replace(**settings), tmp_path / "pruned")
    again = write_impacts(vectors, load_encoder(str(pruned)), tmp_path / "again")
    before, after = vectors_of(whole), vectors_of(pruned)
    assert vectors_of(again) == after and list(before) == list(after)
    for id, vector in before.items():
        left = after[id]
        assert list(left.items()) == [item for item in vector.items() if item[0] in left]
        assert max(impact for term, impact in vector.items() if term not in left) <= min(left.values())
        assert len(left) <= settings.get("keep_terms", 200)
        if "keep_terms" not in settings:
            assert sum(left.values()) >= 0.6 * sum(vector.values()) > sum(left.values()) - min(left.values())
    stats, unpruned = artifact.require(pruned, "impact").stats, artifact.require(whole, "impact").stats
    assert stats["nonzeros"] == sum(map(len, after.values())) < unpruned["nonzeros"]
    assert (stats["document_scale"], stats["loss"]) == (unpruned["document_scale"], unpruned["loss"])


def test_the_words_of_joint_impacts_are_not_pruned(vectors: Vectors, config: EncoderConfig, tmp_path: Path) -> None:
    bm25 = two_words(tmp_path / "words", IDS)
    output = write_impacts(vectors, config.replace(keep_terms=3), tmp_path / "impacts", bm25)
    found = vectors_of(output)
    assert [len(words_of(vector)) for vector in found.values()] == [1 + row % 2 for n in ROWS for row in range(n)]
    assert {len(vector) - len(words_of(vector)) for vector in found.values()} == {3}
    again = [shard.vectors for shard in open_impacts(vectors, load_encoder(str(output)), bm25)]
    assert np.concatenate([np.diff(matrix.indptr) for matrix in again]).tolist() == [*map(len, found.values())]


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("joint", [False, True])
def test_processes_write_the_same_as_one(joint: bool, vectors: Vectors, config: EncoderConfig, tmp_path: Path) -> None:
    bm25 = two_words(tmp_path / "words", IDS) if joint else None
    one, two = (write_impacts(vectors, config, tmp_path / str(n), bm25, threads=n) for n in (1, 2))
    files = ["00000.jsonl", "00001.jsonl", "00002.jsonl", "encoder.yaml", "manifest.json"]
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in two.iterdir()) == files
    assert [(one / name).read_bytes() for name in files[:3]] == [(two / name).read_bytes() for name in files[:3]]
    assert (b"bm25:fever" in (two / files[2]).read_bytes()) == joint
    stats = [artifact.require(folder, "impact").stats | {"seconds": 0} for folder in (one, two)]
    assert stats[0] == stats[1] and stats[0]["loss"]["relative_error"] > 0 and stats[0]["nonzeros"] > 16


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("threads", [1, 2])
def test_fewer_vectors_than_the_manifest_says_are_refused(
    threads: int, vectors: Vectors, config: EncoderConfig, tmp_path: Path
) -> None:
    manifest = vectors.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"vectors": ', '"vectors": 1'))
    with pytest.raises(CaiError, match=r"vectors has \d+ documents, its manifest says 1\d+"):
        write_impacts(Vectors(vectors.folder), config, tmp_path / "impacts", threads=threads)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_an_error_of_a_process_leaves_nothing(vectors: Vectors, config: EncoderConfig, tmp_path: Path) -> None:
    bm25 = two_words(tmp_path / "words", [*IDS[:2], [*IDS[2][:4], "other"]])
    with pytest.raises(CaiError, match=r"vectors and .*words have different documents: make both from the same"):
        write_impacts(vectors, config, tmp_path / "impacts", bm25, threads=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vectors", "words"]
