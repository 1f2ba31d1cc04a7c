"""What the OpenAPI document promises holds for requests that schemathesis makes up, wrong ones too."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.serve.conftest import served

pytestmark = pytest.mark.slow

CONFIG = """
[dictionaries]
indexes.values = ["bm25", "joint-splade-idf", "hybrid-splade-idf-minmax"]
documents.values = ["d1", "d3", "d6"]

[parameters]
"path.index" = {dictionary = "indexes", probability = 0.8}
"path.docid" = {dictionary = "documents", probability = 0.8}
"query.docid" = {dictionary = "documents", probability = 0.8}

[[operations]]  # whose max_doc_length with parse=false is a 400, as in Pyserini, which no schema can say
include-path = ["/v1/{index}/search", "/v1/{index}/doc/{docid}"]
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404]
"""


def test_answers_are_as_promised(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    systems = ("bm25", "joint-splade-idf", "hybrid-splade-idf-minmax")
    limit = "--max-examples", "10", "--generation-deterministic"
    if seconds := os.environ.get("SCHEMATHESIS_SECONDS"):
        limit = "--max-time", seconds
    with served(run_folder, *systems, key="sesame") as address:
        urlopen(f"{address}ready").close()  # loads the model, which can take longer than schemathesis waits
        done = subprocess.run(
            [
                *(Path(sys.executable).with_name("schemathesis"), "run", f"{address}openapi.json"),
                *("--checks", "all", "--header", "X-API-Key: sesame", *limit),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stdout + done.stderr
