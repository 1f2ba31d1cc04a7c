"""The service over an export to Milvus answers as over the Lucene index of the same impacts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cai_pyserini.cli.export import main as export
from cai_pyserini.engine.open import open_systems
from cai_pyserini.service.app import create_app
from cai_pyserini.service.queue import Service
from tests.metadata import FILTERS

pytest.importorskip("pymilvus")
pytestmark = pytest.mark.slow

QUERY = {"query": "risk of cancer and sleep"}
SEVERAL = [{"qid": "1", "text": "risk of cancer"}, {"qid": "2", "text": "xyzzy"}, {"qid": "3", "text": "sleep"}]


@pytest.fixture(scope="module")
def exported(metadata_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of an export of joint with its documents."""
    work = tmp_path_factory.mktemp("milvus")
    source = ["--impacts", str(metadata_run / "impacts" / "joint-splade-idf")]
    source += ["--collection", str(metadata_run.parent / "papers.yaml")]
    export(["milvus", *source, "--uri", str(work / "milvus.db"), "--output", str(work / "exported")])
    return work / "exported"


@pytest.fixture(scope="module")
def client(metadata_run: Path, exported: Path) -> Iterator[TestClient]:
    """A service of the system joint, and of its export."""
    with TestClient(create_app(Service(lambda: open_systems([exported, metadata_run], ["joint"])))) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/v1/{}/search", QUERY | {"hits": 300}),
        ("/v1/{}/search", {"query": "cáncer and sléep", "hits": 300}),  # no document has these accents
        ("/v1/{}/search", QUERY | {"hits": 5, "snippets": True, "max_doc_length": 20}),
        ("/v1/{}/search", {"like": "d1", "filter": "year>=2010", "sort": "-impact"}),
        *(("/v1/{}/search", QUERY | {"hits": 300, "filter": filter}) for filter in FILTERS),
        ("/v1/{}/search", QUERY | {"filter": "yaer>2010"}),
        ("/v1/{}/doc/d12", {}),
        ("/v1/{}/doc/d10", {"parse": False}),
        ("/v1/{}/doc/none", {}),
        ("/v1/{}/doc/x'] or id in ['d1", {}),
        ('/v1/{}/doc/x\\"] or id in ["d1', {}),
        ("/v1/{}/explain", QUERY | {"docid": "d12"}),
        ("/v1/{}/explain", {"query": "cáncer", "docid": "d12"}),
        ("/document?index={}", {"id": "d12", "q": "risk of cancer"}),
    ],
)
def test_answers_are_those_of_lucene(client: TestClient, path: str, parameters: dict[str, Any]) -> None:
    """The faults: other scores, an expression of Milvus that means something else than the filter, a lost type."""
    of_milvus, of_lucene = (client.get(path.format(name), params=parameters) for name in ("exported", "joint"))
    assert of_milvus.status_code == of_lucene.status_code
    assert of_milvus.text.replace("exported", "joint") == of_lucene.text


def test_several_queries_and_the_page_are_those_of_lucene(client: TestClient) -> None:
    body = {"queries": SEVERAL, "hits": 20, "filter": "impact<5", "sort": "published"}
    of_milvus, of_lucene = (client.post(f"/v1/{name}/search", json=body) for name in ("exported", "joint"))
    assert of_milvus.json()["results"] == of_lucene.json()["results"] and of_milvus.json()["results"][0]["candidates"]
    pages = [client.get("/", params={"a": name, "q": "cancer quux", "hits": 30}).text for name in ("exported", "joint")]
    # without the fields below a hit, whose order is that of the facets, which Milvus does not count
    pages = [re.sub(r'<ul class="chips">.*?</ul>', "", page.replace("exported", "joint")) for page in pages]
    hits = [re.findall(r"<h3.*?</li>", page, re.DOTALL) for page in pages]
    assert hits[0] == hits[1] and len(hits[0]) == 30
    assert all("quux" in page.partition("<ol")[0].partition("</form>")[2] for page in pages)  # no document has it


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"facets": "journal"}, "facets: exported is in Milvus, which does not count the values of fields"),
        ({"filter": "contents:cancer"}, "filter: the index is in Milvus, which filters by metadata, not by words"),
        ({"filter": "NOT contents:cancer OR year:2000"}, "filter: the index is in Milvus, which filters by metadata"),
    ],
)
def test_what_milvus_lacks_is_refused(client: TestClient, parameters: dict[str, str], reason: str) -> None:
    answer = client.get("/v1/exported/search", params=QUERY | parameters)
    assert (answer.status_code, answer.json()["error"][: len(reason)]) == (400, reason)
