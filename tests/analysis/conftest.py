"""A finished run on the tiny collection."""

from pathlib import Path

import pytest

from cai_pyserini.beir.__main__ import main


@pytest.fixture(scope="session")
def run_folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the default systems on the tiny collection; not to be changed."""
    output = tmp_path_factory.mktemp("run") / "tiny"
    main([str(tiny), "--output", str(output)])
    return output
