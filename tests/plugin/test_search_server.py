"""OpenSearch and Elasticsearch: loading into a server with their protocol, requests that follow their published
specifications, and searches with the scores of Lucene's queries, which both are made of. No server is available."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("opensearchpy")

from cai_pyserini.cli.export import main
from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import jvm
from cai_pyserini.plugin import search_server
from cai_pyserini.plugin.search_server import export_elasticsearch, export_opensearch, representable
from cai_pyserini.plugin.source import Source
from tests.conftest import json_lines
from tests.plugin.conftest import BY_HAND, Rankings, assert_same, stored_impacts
from tests.plugin.server import Json, Server
from tests.servers import answering

EXPORTS = {"opensearch": export_opensearch, "elasticsearch": export_elasticsearch}
ENGINES = pytest.mark.parametrize("engine", EXPORTS)
TINY = Path(__file__).parents[1] / "data" / "tiny.yaml"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(search_server, "BUSY_SECONDS", 0.001)
    monkeypatch.setenv("SSL_CERT_FILE", "certificates.pem")  # only https needs it
    with answering(Server()) as server:
        yield server


def texts() -> Collection:
    return load_collection(str(TINY))


def searches(folder: Path) -> dict[str, Json]:
    return {record["id"]: record for record in json_lines(folder / "queries.jsonl")}


class LuceneServer:
    """The queries of the servers as those of Lucene that they are made of."""

    def __init__(self, documents: dict[str, Json]):
        java = self.java = jvm.java_class
        self.feature = java("org.apache.lucene.document.FeatureField")
        directory = java("org.apache.lucene.store.ByteBuffersDirectory")()
        writer = java("org.apache.lucene.index.IndexWriter")(
            directory, java("org.apache.lucene.index.IndexWriterConfig")()
        )
        for fields in documents.values():
            document = java("org.apache.lucene.document.Document")()
            for key, value in fields.get("impacts", {}).items():
                document.add(self.feature("impacts", key, value))
            writer.addDocument(document)
        writer.close()
        self.ids = list(documents)
        reader = java("org.apache.lucene.index.DirectoryReader").open(directory)
        self.searcher = java("org.apache.lucene.search.IndexSearcher")(reader.getContext())

    def search(self, body: Json) -> dict[str, float]:
        hits = self.searcher.search(self.query(body["query"]), body["size"]).scoreDocs
        return {self.ids[hit.doc]: hit.score for hit in hits}

    def query(self, query: Json) -> Any:
        ((kind, given),) = query.items()
        if kind == "match_none":
            return self.any_of(())
        if kind == "neural_sparse":
            ((field, weights),) = given.items()
            weights = weights["query_tokens"]
        else:
            assert kind == "sparse_vector"
            field, weights = given["field"], given["query_vector"]
        return self.any_of(self.feature.newLinearQuery(field, key, weight) for key, weight in weights.items())

    def any_of(self, queries: Any) -> Any:
        builder = self.java("org.apache.lucene.search.BooleanQuery$Builder")()
        for query in queries:
            builder.add(query, self.java("org.apache.lucene.search.BooleanClause$Occur").SHOULD)
        return builder.build()


@pytest.mark.slow
@ENGINES
def test_searches_have_the_scores_of_ours(
    engine: str, java: None, impacts: Path, queries: dict[str, str], expected: Rankings, server: Server, tmp_path: Path
) -> None:
    source = Source(impacts, queries, texts=texts())
    manifest = EXPORTS[engine](source, tmp_path / "export", server.uri, "cai")
    documents = server.documents("cai")
    assert len(documents) == manifest.stats["documents"] == 12
    emulated = LuceneServer(documents)
    exact = searches(tmp_path / "export")
    found = {id: emulated.search(search["body"]) for id, search in exact.items()}
    ours = {id: {doc: score * exact[id]["scale"] for doc, score in hits.items()} for id, hits in found.items()}
    assert_same(ours, expected, rel=1 / 512)


@pytest.mark.slow
def test_lucene_keeps_the_values_that_are_written(java: None) -> None:
    values = {representable(value) for value in (*range(1, 1200), 12345, 1_000_003)}
    emulated = LuceneServer({str(value): {"impacts": {"7": float(value)}} for value in values})
    found = emulated.search({"size": 2000, "query": {"neural_sparse": {"impacts": {"query_tokens": {"7": 1.0}}}}})
    assert found == {str(value): float(value) for value in values}
    exact, rounded = (511, 512, 513, 514, 515, 1023, 1025, 1026), (511, 512, 512, 514, 516, 1024, 1024, 1024)
    assert tuple(map(representable, exact)) == rounded


@ENGINES
def test_requests_follow_the_published_specification(
    engine: str, checkpoint: Path, queries: dict[str, str], server: Server, tmp_path: Path
) -> None:
    """The fault: a server refuses the request."""
    schema = json.loads((Path(__file__).parent / f"{engine}.schema.json").read_text())

    def check(what: str, *values: Any) -> None:
        validator = jsonschema.Draft202012Validator({**schema, "$ref": f"#/definitions/{what}"})
        for value in values:
            validator.validate(value)

    ids = [document.id for document in texts().documents()]
    impacts = stored_impacts(checkpoint, tmp_path / "impacts", [{id: {"fever": 700, "cold": 2} for id in ids}])
    EXPORTS[engine](Source(impacts, queries, "bow", texts=texts()), tmp_path / "export", server.uri, "cai")
    body = server.body("cai")
    check("mappings", body["mappings"])
    check("bulk action", *server.bulk_actions)
    check("alias action", *server.actions)
    check("search", *(search["body"] for search in searches(tmp_path / "export").values()))


def test_there_is_always_an_index_to_search(
    impacts_by_hand: Path, checkpoint: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens to an export of changed impacts; a complete one leaves only the new index."""
    monkeypatch.setattr(search_server, "MAX_REQUEST_BYTES", 60)  # a request per document

    def changed() -> Source:
        return Source(stored_impacts(checkpoint, tmp_path / "changed", [BY_HAND], version=2))

    def exported(source: Source) -> Any:
        return export_opensearch(source, tmp_path / "out", server.uri, "cai").stats["seconds"]

    first = exported(Source(impacts_by_hand))
    assert exported(Source(impacts_by_hand)) == first and len(server.bulk_sizes) == 5
    interrupted = changed()
    interrupted.documents = partial(stopping, interrupted.documents)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        exported(interrupted)
    server.fault = lambda request, id: 400 if id == "d3" else 201
    with pytest.raises(CaiError, match=r"refused document 'd3' \(400, mapper_parsing_exception: status 400\)"):
        exported(changed())
    server.fault = lambda request, id: 0 if id == "d3" else 201
    with pytest.raises(CaiError, match="has 3 of 4 documents"):
        exported(changed())
    assert server.documents("cai").keys() == {*BY_HAND, "d5"}
    server.fault = lambda request, id: 201
    exported(changed())
    assert server.documents("cai").keys() == BY_HAND.keys() and len(server.indexes) == 1
    server.indexes.clear()
    server.aliases.clear()
    exported(changed())
    assert server.documents("cai").keys() == BY_HAND.keys()


def stopping(documents: Any) -> Iterator[tuple[str, dict[str, int]]]:
    yield next(documents())
    raise KeyboardInterrupt


def test_a_busy_server_is_asked_again(impacts_by_hand: Path, server: Server, tmp_path: Path) -> None:
    """The first request is refused, then two documents, then nothing."""
    server.fault = lambda request, id: 429 if (request, id) in {(0, "*"), (1, "d1"), (1, "d5")} else 201
    export_opensearch(Source(impacts_by_hand), tmp_path / "out", server.uri, "cai")
    assert server.documents("cai").keys() == {*BY_HAND, "d5"} and server.bulk_sizes == [10, 10, 4]


def test_indexes_of_others_are_kept(impacts_by_hand: Path, server: Server, tmp_path: Path) -> None:
    export_opensearch(Source(impacts_by_hand), tmp_path / "one", server.uri, "cai")
    server.indexes["plain"] = ({}, {})
    for name in ("cai", "plain"):
        with pytest.raises(CaiError, match=rf"has a index '{name}' that .* does not belong to; choose another --name"):
            export_opensearch(Source(impacts_by_hand), tmp_path / "other", server.uri, name)
    with pytest.raises(CaiError, match="names of indexes have small letters"):
        export_opensearch(Source(impacts_by_hand), tmp_path / "other", server.uri, "c*")


def test_a_password_is_neither_stored_nor_shown(
    impacts_by_hand: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: a server that refuses a request repeats it, with the password."""
    secret = server.uri.replace("//", "//me:pa%40ss@")
    export_opensearch(Source(impacts_by_hand), tmp_path / "out", secret, "cai")
    assert not any("pa%40ss" in path.read_text() for path in (tmp_path / "out").iterdir())
    assert server.uri in (tmp_path / "out" / "manifest.json").read_text()
    respond = server.respond
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", "key-12345")
    repeated = {"error": "who is me:pa@ss, Basic bWU6cGFAc3M=, pa@ss or key-12345?"}
    monkeypatch.setattr(server, "respond", lambda *request: (403, repeated))
    with pytest.raises(CaiError, match=r"who is \*\*\*, Basic \*\*\*, \*\*\* or \*\*\*\?"):
        export_opensearch(Source(impacts_by_hand), tmp_path / "new", secret, "cai")
    monkeypatch.setattr(server, "respond", respond)
    server.shutdown()
    server.server_close()
    with pytest.raises(CaiError, match=f"^{server.uri}: .*refused") as error:
        export_opensearch(Source(impacts_by_hand), tmp_path / "new", secret, "cai")
    assert "pa%40ss" not in str(error.value)


@pytest.mark.parametrize("uri", ["localhost:9200", "http://localhost", "http://u:secret@h:port", "ftp://localhost:1"])
def test_a_wrong_address_is_refused_without_its_password(uri: str, impacts_by_hand: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="not the address of a server with its port") as error:
        export_elasticsearch(Source(impacts_by_hand), tmp_path / "out", uri, "cai")
    assert "secret" not in str(error.value)


def test_texts_of_another_collection_are_refused(impacts_by_hand: Path, server: Server, tmp_path: Path) -> None:
    command = ["opensearch", "--impacts", str(impacts_by_hand), "--collection", str(TINY), "--uri", server.uri]
    with pytest.raises(
        CaiError,
        match=r"document 'd1' is not in collection|document 'empty' is not in collection tiny, or not in this order",
    ):
        main([*command, "--output", str(tmp_path / "one")])
    main([*command, "--no-texts", "--query", "bow", "--output", str(tmp_path / "two")])
    assert {path.name for path in (tmp_path / "two").iterdir()} == {
        *("queries.jsonl", "terms.txt", "encoder.yaml", "manifest.json")
    }
