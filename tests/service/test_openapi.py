"""The OpenAPI document holds for requests that schemathesis generates, invalid ones too, and clients can be
generated from it."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from urllib.request import urlopen

import httpx2
import pytest

from cai_pyserini.indexes.jvm import find_java
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


def test_a_generated_client_searches(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: a generator cannot read the document, or its types differ from the responses."""
    generator = pytest.importorskip("openapi_generator_cli")
    java = find_java().command, "-XX:TieredStopAtLevel=1", "-jar"
    generate = Path(generator.__file__).with_name("openapi-generator.jar"), "generate", "--generator-name", "python"
    where = "--input-spec", f"{address}openapi.json", "--output", tmp_path, "--package-name", "generated"
    only = "--global-property", "apiTests=false,modelTests=false,apiDocs=false,modelDocs=false"
    subprocess.run([*java, *generate, *where, *only], check=True, capture_output=True)
    monkeypatch.syspath_prepend(tmp_path)
    generated = import_module("generated")
    settings = generated.Configuration(address.rstrip("/"), api_key={"APIKeyHeader": "sesame"})
    client = generated.DefaultApi(generated.ApiClient(settings))

    asked = {"query": "bladder -cancer infection", "hits": 3, "syntax": True, "snippets": True}
    found = client.search(INDEXES[1], **asked)
    answer = httpx2.get(f"{address}v1/{INDEXES[1]}/search", params=asked, headers={"X-API-Key": "sesame"})
    candidates = [one.to_dict() for one in found.candidates]
    assert [{**one, "page": None} for one in answer.json()["candidates"]] == candidates
    assert type(found.candidates[0].doc.actual_instance) is generated.Document
    queries = [generated.Topic(qid="a", text="zinc"), generated.Topic(qid="b", text="bladder")]
    several = client.search_all("bm25", generated.SearchRequest(queries=queries, hits=1))
    assert [(of.qid, of.candidates[0].docid) for of in several.results] == [("a", "d11"), ("b", "d4")]
    explained = client.explain("bm25", "bladder", "d4").explanation
    assert explained.terms[0].contribution == pytest.approx(explained.score)
    assert client.document("bm25", "d4").doc.actual_instance.title == "Urinary tract infection"
    with pytest.raises(generated.exceptions.NotFoundException) as refused:
        client.search("bm26", "zinc")
    assert refused.value.data.error.startswith("no index bm26")


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
