"""What the OpenAPI document promises holds for requests that schemathesis makes up, wrong ones too."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import serve

pytestmark = pytest.mark.slow


def test_answers_are_as_promised(run_folder: Path, tmp_path: Path) -> None:
    with serve(run_folder, "bm25", "joint-splade-idf") as (_, address):
        done = subprocess.run(
            [Path(sys.executable).with_name("schemathesis"), "run", f"{address}openapi.json", "--max-examples", "10"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=600,
        )
    assert done.returncode == 0, done.stdout + done.stderr
