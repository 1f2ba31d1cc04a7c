"""What the tests of adaptations share."""

from pathlib import Path

import pytest

from cai_pyserini.adapt.material import Material
from cai_pyserini.core.config import load_encoder, load_index_config
from tests.trainer.conftest import triples as triples


def material(collection: Path, folder: Path, queries: int = 100, seed: int = 1, dense: bool = False) -> Material:
    """Material with splade-tiny, and perhaps minilm, whose vectors are in a folder."""
    teacher = load_encoder("minilm") if dense else None
    config = load_index_config(str(collection))
    return Material(config, load_encoder("splade-tiny"), teacher, folder, queries, seed, "cpu")


@pytest.fixture(scope="session")
def with_dense(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Material:
    """Material of the tiny collection with a dense encoder."""
    return material(tiny, tmp_path_factory.mktemp("material") / "vectors", dense=True)


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A collection whose documents are too short for pseudo queries."""
    (tmp_path / "short").mkdir()
    lines = '{"_id": "1", "text": "two words"}\n{"_id": "2", "text": "more words"}\n'
    (tmp_path / "short" / "corpus.jsonl").write_text(lines)
    return tmp_path / "short"
