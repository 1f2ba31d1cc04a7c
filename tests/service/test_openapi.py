"""The OpenAPI document holds for requests that schemathesis generates, invalid ones too."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from cai_pyserini.service.queue import Service
from tests.service.conftest import engines, served

pytestmark = pytest.mark.slow

INDEXES = ["bm25", "hybrid-splade-idf-minmax"]
CONFIG = """
[dictionaries]
indexes.values = ["bm25", "hybrid-splade-idf-minmax"]
documents.values = ["d1", "d3", "d6"]

[parameters]
"path.index" = {dictionary = "indexes", probability = 0.8}
"path.docid" = {dictionary = "documents", probability = 0.8}
"query.docid" = {dictionary = "documents", probability = 0.8}

[[operations]]  # max_doc_length with parse=false is a 400, as in Pyserini, which a schema cannot express
include-path = ["/v1/{index}/search", "/v1/{index}/doc/{docid}"]
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404]
"""


@pytest.fixture(scope="module")
def address(run_folder: Path) -> Iterator[str]:
    """The address of a server with a key."""
    with served(Service(lambda: engines(run_folder, *INDEXES), timeout=300), key="sesame") as address:
        urlopen(f"{address}ready").close()  # loads the model first: schemathesis would time out
        gc.freeze()  # what all tests have imported, which each reload would search for garbage
        yield address
        gc.unfreeze()


def test_responses_conform_to_the_openapi_document(address: str, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    limit = "--max-examples", "3", "--generation-deterministic"
    if seconds := os.environ.get("SCHEMATHESIS_SECONDS"):
        limit = "--max-time", seconds
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
