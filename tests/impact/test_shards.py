"""Impacts written by several processes."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.impact.bm25 import Bm25
from cai_pyserini.impact.impacts import write_impacts
from cai_pyserini.models.checkpoint import checkpoint_digest
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import stored_vectors
from tests.impact.support import counted

ROWS = (4, 7, 5)  # of the shards
IDS = [[f"d{shard}-{row}" for row in range(rows)] for shard, rows in enumerate(ROWS)]


@pytest.fixture
def config(checkpoint: Path) -> EncoderConfig:
    return EncoderConfig(name="test", checkpoint=str(checkpoint))


@pytest.fixture
def vectors(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vectors:
    """Vectors in three shards, each of which is enough for a process."""
    monkeypatch.setattr("cai_pyserini.impact.impacts.LEAST_SHARDS", 1)
    parts = [csr_matrix(random_array((rows, 30522), density=0.001, rng=rows, dtype=np.float32)) for rows in ROWS]
    return stored_vectors(tmp_path / "vectors", *parts, ids=IDS, checkpoint=checkpoint_digest(checkpoint))


def two_words(folder: Path, ids: list[list[str]]) -> Bm25:
    """Two words, one in every document and one in half of them."""
    counts = [[[2, row % 2] for row in range(len(of_shard))] for of_shard in ids]
    return Bm25(counted(folder, ["fever", "cold"], *counts, ids=ids), alpha=1.0)


@pytest.mark.parametrize("joint", [False, True])
def test_processes_write_what_one_writes(joint: bool, vectors: Vectors, config: EncoderConfig, tmp_path: Path) -> None:
    bm25 = two_words(tmp_path / "words", IDS) if joint else None
    one = write_impacts(vectors, config, tmp_path / "one", bm25, threads=1)
    two = write_impacts(vectors, config, tmp_path / "two", bm25, threads=2)
    files = ["00000.jsonl", "00001.jsonl", "00002.jsonl", "encoder.yaml", "manifest.json"]
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in two.iterdir()) == files
    assert [(one / name).read_bytes() for name in files[:3]] == [(two / name).read_bytes() for name in files[:3]]
    assert (b"bm25:fever" in (two / files[2]).read_bytes()) == joint
    stats = [artifact.require(folder, "impact").stats | {"seconds": 0} for folder in (one, two)]
    assert stats[0] == stats[1] and stats[0]["loss"]["relative_error"] > 0 and stats[0]["nonzeros"] > 16


@pytest.mark.parametrize("threads", [1, 2])
def test_fewer_vectors_than_the_manifest_says_are_refused(
    threads: int, vectors: Vectors, config: EncoderConfig, tmp_path: Path
) -> None:
    manifest = vectors.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"vectors": ', '"vectors": 1'))
    with pytest.raises(CaiError, match=r"vectors has \d+ documents, its manifest says 1\d+"):
        write_impacts(Vectors(vectors.folder), config.replace(range=10.0), tmp_path / "impacts", threads=threads)


def test_an_error_of_a_process_leaves_nothing(vectors: Vectors, config: EncoderConfig, tmp_path: Path) -> None:
    bm25 = two_words(tmp_path / "words", [*IDS[:2], [*IDS[2][:4], "other"]])
    with pytest.raises(CaiError, match=r"vectors and .*words have different documents: count the words again"):
        write_impacts(vectors, config, tmp_path / "impacts", bm25, threads=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vectors", "words"]
