"""Collections of Milvus, searched by Milvus Lite."""

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.export.source import Source
from tests.conftest import json_lines
from tests.export.conftest import Found, assert_same

pymilvus = pytest.importorskip("pymilvus")

from cai_pyserini.export.milvus import FIELD, connect, export_milvus  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "milvus.db")
    gc.collect()


def search(uri: str, collection: str, queries: list[dict], limit: int = 1000) -> Found:
    client = connect(uri)
    client.load_collection(collection)
    found: Found = {query["id"]: {} for query in queries}
    for query in queries:
        vector = {int(key): float(weight) for key, weight in query["vector"].items()}
        if vector:
            (hits,) = client.search(collection, [vector], anns_field=FIELD, limit=limit, output_fields=["id"])
            found[query["id"]] = {hit["id"]: hit["distance"] for hit in hits}
    client.close()
    return found


def test_milvus_finds_the_documents_of_lucene(
    impacts: Path, topics: dict[str, str], expected: Found, uri: str, tmp_path: Path
) -> None:
    manifest = export_milvus(Source(impacts, topics), tmp_path / "milvus", uri, "cai")
    queries = json_lines(tmp_path / "milvus" / "queries.jsonl")
    assert_same(search(uri, "cai", queries), expected)
    assert manifest.stats["documents"] == 12 and manifest.stats["queries"] == len(topics)
    terms = (tmp_path / "milvus" / "terms.txt").read_text().splitlines()
    assert len(set(terms)) == len(terms)
    assert any(term.startswith("bm25:") for term in terms) == ("joint" in impacts.name)


def test_an_export_is_done_once_and_again_if_the_collection_is_gone(impacts: Path, uri: str, tmp_path: Path) -> None:
    def created() -> str:
        return export_milvus(Source(impacts), tmp_path / "milvus", uri, "cai").stats["seconds"]

    first = created()
    assert created() == first
    client = connect(uri)
    client.drop_collection("cai")
    client.close()
    assert created() != first
    client = connect(uri)
    assert client.list_collections() == ["cai"]
    client.close()


def test_a_collection_of_others_is_not_replaced(impacts: Path, uri: str, tmp_path: Path) -> None:
    export_milvus(Source(impacts), tmp_path / "milvus", uri, "cai")
    with pytest.raises(CaiError, match=r"has a collection 'cai' that .* does not belong to; choose another --name"):
        export_milvus(Source(impacts), tmp_path / "other", uri, "cai")
    shutil.rmtree(tmp_path / "milvus")
    with pytest.raises(CaiError, match="choose another --name"):
        export_milvus(Source(impacts), tmp_path / "milvus", uri, "cai")


def test_no_other_collection_is_dropped(impacts: Path, uri: str, tmp_path: Path) -> None:
    for name in ("cai_partial", "cai"):  # the first, of somebody else, is named as temporary ones might be
        export_milvus(Source(impacts), tmp_path / name, uri, name)
    client = connect(uri)
    assert set(client.list_collections()) == {"cai", "cai_partial"}
    client.close()


@pytest.mark.parametrize("uri", ["http://localhost:port", "http://localhost:99999", "http://[::1"])
def test_an_address_that_is_none_is_refused(uri: str) -> None:
    with pytest.raises(CaiError, match=r"^http://\S+: Milvus cannot be reached or opened \(no address of a server\)"):
        connect(uri)


@pytest.mark.parametrize(
    "uri", ["https://me:pa/ss@db.example:19530", "https://me:pa/ss@db.example:port", "me:pa/ss@db.example:19530"]
)
def test_a_password_in_a_wrong_address_is_not_shown(uri: str) -> None:
    with pytest.raises(CaiError) as error:
        connect(uri)
    assert "pa" not in str(error.value)


def test_a_collection_that_others_make_meanwhile_is_not_replaced(impacts: Path, uri: str, tmp_path: Path) -> None:
    source = Source(impacts)
    documents = source.documents()

    def slow() -> Iterator[tuple[str, dict[str, int]]]:
        yield next(documents)
        export_milvus(Source(impacts), tmp_path / "other", uri, "cai")
        yield from documents

    source.documents = slow  # type: ignore[method-assign]
    with pytest.raises(CaiError, match=r"cai.* already exists"):
        export_milvus(source, tmp_path / "milvus", uri, "cai")


def test_a_password_is_neither_stored_nor_shown(
    impacts: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "https://me:pa@ss@db.example:19530/base"
    with pytest.raises(CaiError, match=r"https://db\.example:19530/base: Milvus cannot be reached") as error:
        connect(secret)
    assert "pa@ss" not in str(error.value)
    monkeypatch.setattr("cai_pyserini.export.milvus.connect", lambda given: connect(uri))  # such a server stands in
    manifest = export_milvus(Source(impacts), tmp_path / "milvus", secret, "cai")
    assert manifest.recipe["settings"]["uri"] == "https://db.example:19530/base"
    assert not any("pa@ss" in path.read_text() for path in (tmp_path / "milvus").iterdir())
    with pytest.raises(CaiError, match=r"^https://db\.example:19530/base has a collection 'cai'"):
        export_milvus(Source(impacts), tmp_path / "other", secret, "cai")


def test_an_interrupted_export_starts_again(
    impacts: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(impacts)
    whole = list(source.documents())

    def interrupted() -> Iterator[tuple[str, dict[str, int]]]:
        yield from whole[:5]
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "documents", interrupted)
    monkeypatch.setattr("cai_pyserini.export.milvus.BATCH", 2)
    with pytest.raises(KeyboardInterrupt):
        export_milvus(source, tmp_path / "milvus", uri, "cai")
    assert not (tmp_path / "milvus").exists()
    export_milvus(Source(impacts), tmp_path / "milvus", uri, "cai")
    client = connect(uri)
    assert client.list_collections() == ["cai"]
    assert int(client.get_collection_stats("cai")["row_count"]) == 12
    client.close()


@pytest.mark.parametrize("uri", ["milvus", "milvus.txt"])
def test_a_place_that_is_neither_server_nor_file_is_refused(uri: str) -> None:
    with pytest.raises(CaiError, match=r"neither the address of a server, http://HOST:19530, nor a file NAME.db"):
        connect(uri)
