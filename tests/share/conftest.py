"""An empty Pyserini cache."""

from pathlib import Path

import pytest

from tests.plugin.conftest import topics

__all__ = ["topics"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Pyserini cache."""
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CAI_PYSERINI_REGISTRY", raising=False)
    return tmp_path / "cache"
