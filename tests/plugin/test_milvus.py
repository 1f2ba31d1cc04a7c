"""Collections of Milvus, searched by Milvus Lite."""

import gc
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pymilvus import MilvusException

from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.open import open_systems
from cai_pyserini.plugin.ciff import write_ciff
from cai_pyserini.plugin.source import Source
from cai_pyserini.service.app import create_app
from cai_pyserini.service.queue import Service
from tests.conftest import json_lines
from tests.plugin.conftest import BY_HAND, Rankings, assert_same, stored_impacts

pymilvus = pytest.importorskip("pymilvus")

from milvus_lite.adapter.grpc.server import start_server_in_thread  # noqa: E402

from cai_pyserini.indexes.milvus import FIELD, asking, connect  # noqa: E402
from cai_pyserini.plugin.milvus import export_milvus  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "milvus.db")
    gc.collect()


def collections(uri: str, earlier: int = 0) -> dict[str, int]:
    """The aliases in a database, and their numbers of documents; there are `earlier` other collections."""
    client = connect(uri)
    names = client.list_aliases()["aliases"]
    found = {name: int(client.get_collection_stats(name)["row_count"]) for name in names}
    assert len(client.list_collections()) == len(names) + earlier
    client.close()
    return found


def searched(client: TestClient, folder: Path) -> tuple[int, list[str]]:
    """The status of a search for fever, and the ids of its hits."""
    answer = client.get(f"/v1/{folder.name}/search", params={"query": "fever"})
    return answer.status_code, [hit["docid"] for hit in answer.json().get("candidates", ())]


def test_milvus_finds_the_documents_of_lucene(
    java: None, impacts: Path, queries: dict[str, str], expected: Rankings, uri: str, tmp_path: Path
) -> None:
    manifest = export_milvus(Source(impacts, queries), tmp_path / "milvus", uri, "cai")
    client = connect(uri)
    client.load_collection("cai")
    found: Rankings = {}
    for query in json_lines(tmp_path / "milvus" / "queries.jsonl"):
        vector = {int(key): weight for key, weight in query["vector"].items()}
        hits = client.search("cai", [vector], anns_field=FIELD, limit=1000, output_fields=["id"])[0] if vector else []
        found[query["id"]] = {hit["id"]: hit["distance"] for hit in hits}
    client.close()
    assert_same(found, expected)
    assert manifest.stats["documents"] == 12 and manifest.stats["queries"] == len(queries)
    terms = (tmp_path / "milvus" / "terms.txt").read_text().splitlines()
    assert len(set(terms)) == len(terms)
    assert any(term.startswith("bm25:") for term in terms) == ("joint-splade-idf" in impacts.name)


def test_an_export_is_done_once_and_again_if_the_collection_is_gone(
    impacts_by_hand: Path, uri: str, tmp_path: Path
) -> None:
    def seconds() -> float:
        return export_milvus(Source(impacts_by_hand), tmp_path / "milvus", uri, "cai").stats["seconds"]

    first = seconds()
    assert seconds() == first
    client = connect(uri)
    client.drop_alias("cai")
    client.close()
    (tmp_path / "milvus" / "notes").touch()
    with pytest.raises(CaiError, match=r"has files that this command has not made \(notes\)"):
        seconds()
    (tmp_path / "milvus" / "notes").unlink()
    seconds()
    assert collections(uri, earlier=1) == {"cai": 5}


def test_there_is_always_a_collection_to_search(
    impacts_by_hand: Path, checkpoint: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever interrupts an export of changed impacts; a complete one leaves the new collection and the one before."""

    def killed(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    export_milvus(Source(impacts_by_hand), tmp_path / "milvus", uri, "cai")
    changed = Source(stored_impacts(checkpoint, tmp_path / "changed", [BY_HAND], version=2))
    for step in ("alter_alias", "insert"):
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(pymilvus.MilvusClient, step, killed)
            export_milvus(changed, tmp_path / "milvus", uri, "cai")
        client = connect(uri)
        assert int(client.get_collection_stats("cai")["row_count"]) == 5
        client.close()
    export_milvus(changed, tmp_path / "milvus", uri, "cai")
    assert collections(uri, earlier=1) == {"cai": 4}
    export_milvus(Source(impacts_by_hand), tmp_path / "milvus", uri, "cai")
    assert collections(uri, earlier=1) == {"cai": 5}


def test_a_service_stays_with_what_it_has_opened_until_it_is_reloaded(
    java: None, impacts_by_hand: Path, checkpoint: Path, uri: str, tmp_path: Path
) -> None:
    """The fault: the terms of one export with the collection of another, whose keys mean other terms."""
    output = tmp_path / "milvus"

    def export(version: int, document: str) -> None:
        impacts = stored_impacts(checkpoint, tmp_path / str(version), [{document: {"fever": 1}}], version)
        export_milvus(Source(impacts), output, uri, "cai")

    export_milvus(Source(impacts_by_hand), output, uri, "cai")
    with TestClient(create_app(Service(lambda: open_systems([output])))) as client:
        assert searched(client, output) == (200, ["d3", "d1", "d2"])
        export(2, "new")
        assert searched(client, output) == (200, ["d3", "d1", "d2"])
        assert client.post("/reload").status_code == 200 and searched(client, output) == (200, ["new"])
        export(3, "newer")
        export(4, "newest")  # drops the second
        assert searched(client, output) == (503, [])
        assert client.post("/reload").status_code == 200 and searched(client, output) == (200, ["newest"])


def test_a_service_survives_its_server(
    java: None, impacts_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Milvus is away, requests get a 503 with a reason; when it is back, here at another address, hits again."""
    output, database = tmp_path / "milvus", str(tmp_path / "milvus.db")
    monkeypatch.setattr("cai_pyserini.indexes.milvus.TIMEOUT", 0.5)
    server, opened, port = start_server_in_thread(database)
    export_milvus(Source(impacts_by_hand), output, f"http://127.0.0.1:{port}", "cai")
    with TestClient(create_app(Service(lambda: open_systems([output])))) as client:
        assert searched(client, output) == (200, ["d3", "d1", "d2"])
        server.stop(None).wait()
        opened.close()
        answer = client.get("/v1/milvus/search", params={"query": "fever"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["error"].startswith("milvus cannot be searched now, because its index does not answer")
        assert client.get("/ready").status_code == 503
        answer = client.post("/reload")
        assert answer.status_code == 503 and f"the old ones stay: http://127.0.0.1:{port}: " in answer.json()["error"]
        server, opened, port = start_server_in_thread(database)
        monkeypatch.setenv("MILVUS_URI", f"http://127.0.0.1:{port}")
        assert client.post("/reload").status_code == 200 and searched(client, output) == (200, ["d3", "d1", "d2"])
    server.stop(None).wait()
    opened.close()


def test_queries_are_bags_of_words_after_an_export_of_such(
    java: None, impacts_by_hand: Path, uri: str, tmp_path: Path
) -> None:
    """The fault: documents are exported for bag-of-words queries, but `serve` loads it."""
    for query in (None, "bow"):
        export_milvus(Source(impacts_by_hand, query=query), tmp_path / "milvus", uri, "cai")
        (engine,) = open_systems([tmp_path / "milvus"]).values()
        assert ("and the query" in engine.description) == (query is None)


def test_only_complete_exports_to_milvus_are_opened(
    java: None, impacts_by_hand: Path, uri: str, tmp_path: Path
) -> None:
    export_milvus(Source(impacts_by_hand), tmp_path / "milvus", uri, "cai")
    client = connect(uri)
    client.delete("cai", ids=["d1"])
    with pytest.raises(CaiError, match="milvus has 4 documents, its manifest says 5"):
        open_systems([tmp_path / "milvus"])
    client.drop_alias("cai")
    client.drop_collection(client.list_collections()[0])
    with pytest.raises(CaiError, match=r"milvus\.db has no collection cai_\w+: export .*milvus again"):
        open_systems([tmp_path / "milvus"])
    client.close()
    Source(impacts_by_hand).export(tmp_path / "ciff", write_ciff, "ciff")
    with pytest.raises(CaiError, match="ciff is no export to Milvus that can be searched here"):
        open_systems([tmp_path / "ciff"])


def test_collections_of_others_are_kept(impacts_by_hand: Path, uri: str, tmp_path: Path) -> None:
    for name in ("cai_partial", "cai"):  # the first is somebody else's, with a name that looks temporary
        export_milvus(Source(impacts_by_hand), tmp_path / name, uri, name)
    assert collections(uri) == {"cai": 5, "cai_partial": 5}
    shutil.rmtree(tmp_path / "cai")
    for output in ("other", "cai"):
        with pytest.raises(CaiError, match=r"has a collection 'cai' that .* does not belong to; choose another --name"):
            export_milvus(Source(impacts_by_hand), tmp_path / output, uri, "cai")


def test_a_password_is_neither_stored_nor_shown(
    impacts_by_hand: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "https://me:pa@ss@db.example:19530/base"
    with pytest.raises(CaiError, match=r"^https://db\.example:19530/base: Milvus cannot be reached") as error:
        connect(secret)
    assert "pa@ss" not in str(error.value)
    monkeypatch.setenv("MILVUS_TOKEN", "root:sesame")
    with pytest.raises(CaiError, match=r"^x: \*\*\* or \*\*\* is wrong"), asking("x"):
        raise MilvusException(message="root:sesame or sesame is wrong")
    monkeypatch.delenv("MILVUS_TOKEN")
    monkeypatch.setattr("cai_pyserini.plugin.milvus.connect", lambda address: connect(uri))  # in place of a server
    export_milvus(Source(impacts_by_hand), tmp_path / "milvus", secret, "cai")
    texts = [path.read_text() for path in (tmp_path / "milvus").iterdir()]
    assert not any("pa@ss" in text for text in texts) and any("https://db.example:19530/base" in text for text in texts)
    with pytest.raises(CaiError, match=r"^https://db\.example:19530/base has a collection 'cai'"):
        export_milvus(Source(impacts_by_hand), tmp_path / "other", secret, "cai")


@pytest.mark.parametrize(
    "uri, message",
    [
        ("http://localhost:99999", r"^http://\S+: Milvus cannot be reached or opened \(no address of a server\)"),
        ("http://[::1", r"^http://\S+: Milvus cannot be reached or opened \(no address of a server\)"),
        ("https://me:pa/ss@db.example:port", "cannot be reached"),
        ("me:pa/ss@db.example:19530", "neither the address of a server, http://HOST:19530, nor a file NAME.db"),
        ("milvus.txt", "neither the address of a server"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(uri: str, message: str) -> None:
    with pytest.raises(CaiError, match=message) as error:
        connect(uri)
    assert "pa/" not in str(error.value) and "ss@" not in str(error.value)
