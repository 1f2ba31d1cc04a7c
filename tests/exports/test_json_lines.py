"""JSON lines: an index of Seismic; requests for OpenSearch and Elasticsearch, scored by Lucene's FeatureField."""

import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.impacts.weighting import write_impacts
from cai_pyserini.lucene import jvm
from cai_pyserini.lucene.impact_index import index_impacts
from cai_pyserini.share.json_lines import ELASTICSEARCH, OPENSEARCH, Engine, representable, write_seismic
from cai_pyserini.share.source import Source
from cai_pyserini.vectors.shards import Vectors
from tests.conftest import json_lines
from tests.exports.conftest import Rankings, assert_same, search_lucene, stored_impacts

ENGINES = pytest.mark.parametrize("engine", [OPENSEARCH, ELASTICSEARCH], ids=["opensearch", "elasticsearch"])


def read_bulk(folder: Path) -> dict[str, dict[str, float]]:
    """The documents of bulk requests, which alternate lines of actions and documents."""
    documents = {}
    for path in sorted(folder.glob("bulk-*.ndjson")):
        assert path.read_bytes().endswith(b"\n")  # servers require it
        lines = json_lines(path)
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            id, features = action["index"]["_id"], document["impacts"]
            assert action == {"index": {"_id": id}} and document == {"impacts": features}
            assert all(key.isdigit() and 2.0**-126 <= value <= 2.0**127 for key, value in features.items())
            documents[id] = features
    return documents


def read_searches(folder: Path, engine: Engine) -> dict[str, tuple[dict[str, float], int]]:
    """The weights by key and the scale of the searches; their bodies follow the engine's reference."""
    searches = {}
    for record in json_lines(folder / "queries.jsonl"):
        (query,) = record["body"]["query"].values()
        weights = query["query_vector"] if "query_vector" in query else query["impacts"]["query_tokens"]
        expected: dict[str, Any] = {
            "opensearch": {"neural_sparse": {"impacts": {"query_tokens": weights}}},
            "elasticsearch": {"sparse_vector": {"field": "impacts", "query_vector": weights, "prune": False}},
        }
        assert record["body"] == {"size": 1000, "_source": False, "query": expected[engine.name]}
        assert all(key.isdigit() and 0 < weight <= 64 for key, weight in weights.items())
        searches[record["id"]] = weights, record["scale"]
    return searches


def search_features(documents: dict[str, dict[str, float]], queries: dict[str, dict[str, float]]) -> Rankings:
    """Lucene's hits for linear queries on a FeatureField."""
    java = jvm.java_class
    feature = java("org.apache.lucene.document.FeatureField")
    directory = java("org.apache.lucene.store.ByteBuffersDirectory")()
    config = java("org.apache.lucene.index.IndexWriterConfig")()
    writer = java("org.apache.lucene.index.IndexWriter")(directory, config)
    for features in documents.values():
        document = java("org.apache.lucene.document.Document")()
        for key, value in features.items():
            document.add(feature("impacts", key, value))
        writer.addDocument(document)
    writer.close()
    reader = java("org.apache.lucene.index.DirectoryReader").open(directory)
    searcher = java("org.apache.lucene.search.IndexSearcher")(reader.getContext())
    should = java("org.apache.lucene.search.BooleanClause$Occur").SHOULD
    ids = list(documents)
    found: Rankings = {}
    for id, weights in queries.items():
        both = java("org.apache.lucene.search.BooleanQuery$Builder")()
        for key, weight in weights.items():
            both.add(feature.newLinearQuery("impacts", key, weight), should)
        hits = searcher.search(both.build(), 1000).scoreDocs
        found[id] = {ids[hit.doc]: hit.score for hit in hits}
    reader.close()
    return found


def search_export(folder: Path, engine: Engine) -> Rankings:
    """The scores of the exported searches in the exported documents, as sums of weight * impact."""
    searches = read_searches(folder, engine)
    found = search_features(read_bulk(folder), {id: weights for id, (weights, _) in searches.items()})
    return {id: {doc: score * searches[id][1] for doc, score in hits.items()} for id, hits in found.items()}


@pytest.mark.slow
@ENGINES
def test_feature_fields_have_the_scores_of_lucene(
    engine: Engine, java: None, impacts: Path, topics: dict[str, str], expected: Rankings, tmp_path: Path
) -> None:
    manifest = Source(impacts, topics).export(tmp_path / "export", engine.write, engine.name)
    documents = read_bulk(tmp_path / "export")
    assert len(documents) == manifest.stats["documents"] == 12
    mapping = json.loads((tmp_path / "export" / "mapping.json").read_text())["mappings"]
    assert mapping["properties"]["impacts"]["type"] == engine.field
    terms = (tmp_path / "export" / "terms.txt").read_text().splitlines()
    originals = dict(Source(impacts).documents())
    for id, features in documents.items():  # only impacts beyond 9 bits differ
        vector = {terms[int(key)]: value for key, value in features.items()}
        assert vector.keys() == originals[id].keys()
        assert all(abs(vector[t] - i) <= (i > 512) + (i > 1024) for t, i in originals[id].items())
    assert_same(search_export(tmp_path / "export", engine), expected, rel=1 / 512)


@pytest.mark.slow
def test_impacts_of_9_bits_lose_nothing(java: None, run_folder: Path, topics: dict[str, str], tmp_path: Path) -> None:
    config = load_encoder("splade-tiny").replace(bits=9, idf=str(run_folder / "idf"))
    impacts = write_impacts(Vectors(run_folder / "vectors" / "documents"), config, tmp_path / "impacts")
    index = index_impacts(impacts, tmp_path / "index")
    manifest = Source(impacts, topics).export(tmp_path / "export", OPENSEARCH.write, "opensearch")
    assert "0.00% were rounded to 9 significant bits" in manifest.stats["loses"][2]
    assert_same(search_export(tmp_path / "export", OPENSEARCH), search_lucene(index, topics))


@pytest.mark.slow
def test_lucene_keeps_the_values_that_are_written(java: None) -> None:
    values = {representable(value) for value in (*range(1, 1200), 12345, 1_000_003)}
    found = search_features({str(value): {"7": float(value)} for value in values}, {"q": {"7": 1.0}})["q"]
    assert found == {str(value): float(value) for value in values}
    exact, rounded = (511, 512, 513, 514, 515, 1023, 1025, 1026), (511, 512, 512, 514, 516, 1024, 1024, 1024)
    assert tuple(map(representable, exact)) == rounded


def test_bulk_requests_are_small_enough_for_a_server(
    impacts_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Source(impacts_by_hand).export(tmp_path / "one", OPENSEARCH.write, "opensearch")
    assert [path.name for path in (tmp_path / "one").glob("bulk-*")] == ["bulk-00000.ndjson"]
    monkeypatch.setattr("cai_pyserini.share.json_lines.MAX_REQUEST_BYTES", 120)
    Source(impacts_by_hand).export(tmp_path / "many", OPENSEARCH.write, "opensearch")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "many").glob("bulk-*"))]
    assert len(sizes) > 2 and max(sizes) <= 120
    assert all(first + second > 60 for first, second in pairwise(sizes))
    assert read_bulk(tmp_path / "many") == read_bulk(tmp_path / "one")


def answer(server: BaseHTTPRequestHandler, status: int, body: str) -> None:
    server.send_response(status)
    server.send_header("Content-Length", str(len(body)))
    server.end_headers()
    server.wfile.write(body.encode())


class Servant(BaseHTTPRequestHandler):
    """Responds like OpenSearch and Elasticsearch: 200 to bulk requests, even if documents are refused."""

    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""

    def do_PUT(self) -> None:
        self.server.calls.append(self.rfile.read(int(self.headers["Content-Length"])))  # type: ignore[attr-defined]
        exists = '{"error":{"type":"resource_already_exists_exception"},"status":400}'
        if self.path == "/exists/cai":
            return answer(self, 400, exists)
        return answer(self, 200, '{"acknowledged":true}')

    def do_POST(self) -> None:
        call = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append(call)  # type: ignore[attr-defined]
        assert self.path.endswith("/cai/_bulk?filter_path=errors,items.*.error")
        if b'"d3"' in call and self.path.startswith("/refuses/"):
            error = '{"index":{"error":{"type":"mapper_parsing_exception"}}}'
            return answer(self, 200, f'{{"errors":true,"items":[{error}]}}')
        return answer(self, 200, '{"errors":false}')


def test_a_refusing_server_stops_the_loading(
    impacts_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented commands, with a server that responds like OpenSearch, which is not available here. The
    faults: documents are missing without a message; those of an earlier export stay."""
    monkeypatch.setattr("cai_pyserini.share.json_lines.MAX_REQUEST_BYTES", 60)  # a request per document
    Source(impacts_by_hand).export(tmp_path / "opensearch", OPENSEARCH.write, "opensearch")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text()
    found = re.search(r"BULK=.*?done\n", page.replace("/hpo", "/cai"), re.DOTALL)
    assert found
    server = ThreadingHTTPServer(("127.0.0.1", 0), Servant)
    server.calls = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def load(path: str) -> tuple[str, int]:
        """The output, and the number of requests."""
        server.calls.clear()  # type: ignore[attr-defined]
        url = f"URL=http://127.0.0.1:{server.server_port}{path}\n"
        done = subprocess.run(["bash", "-c", url + found[0]], cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr, len(server.calls)  # type: ignore[attr-defined]

    printed, calls = load("")
    assert "not loaded" not in printed and calls == 6
    printed, calls = load("/refuses")
    assert "mapper_parsing_exception" in printed and "bulk-00002.ndjson is not loaded\n" in printed and calls == 4
    printed, calls = load("/exists")
    assert "resource_already_exists_exception" in printed and calls == 1
    server.shutdown()
    server.server_close()
    assert "bulk-00000.ndjson is not loaded" in load("")[0] or "Failed to connect" in load("")[0]


def test_an_id_that_no_server_takes_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    impacts = stored_impacts(checkpoint, tmp_path / "impacts", [{"é" * 257: {"é": 300}}])
    with pytest.raises(CaiError, match=r"the id é{20}… has 514 bytes; elasticsearch takes 512"):
        Source(impacts).export(tmp_path / "export", ELASTICSEARCH.write, "elasticsearch")


def test_weights_above_64_are_divided_and_the_scale_says_so() -> None:
    made = OPENSEARCH.search({5: 6400, 9: 6401}, 100)
    assert made["scale"] == 200
    assert made["body"]["query"]["neural_sparse"]["impacts"]["query_tokens"] == {"5": 32.0, "9": 32.005}
    assert OPENSEARCH.search({5: 6400}, 100)["scale"] == 100
    assert ELASTICSEARCH.search({}, 100)["body"]["query"] == {"match_none": {}}


@pytest.mark.slow
def test_seismic_finds_the_best_documents_of_lucene(
    java: None, impacts: Path, topics: dict[str, str], expected: Rankings, tmp_path: Path
) -> None:
    seismic = pytest.importorskip("seismic")
    Source(impacts, topics).export(tmp_path / "seismic", write_seismic, "seismic")
    index = seismic.SeismicIndex.build(str(tmp_path / "seismic" / "documents.jsonl"), summary_energy=1.0)
    for record in json_lines(tmp_path / "seismic" / "queries.jsonl"):
        terms, weights = zip(*record["vector"].items(), strict=True)
        best = sorted(expected[record["id"]].values(), reverse=True)[:5]
        arguments = np.array(terms, seismic.get_seismic_string()), np.array(weights, np.float32)
        hits = index.search(record["id"], *arguments, k=5, query_cut=len(terms), heap_factor=1.0)
        assert [score for _, score, _ in hits][: len(best)] == pytest.approx(best, rel=2e-3)  # float16
        for _, score, id in hits[: len(best)]:
            assert score == pytest.approx(expected[record["id"]][id], rel=2e-3)


def test_seismic_gets_no_documents_without_impacts(impacts_by_hand: Path, tmp_path: Path) -> None:
    manifest = Source(impacts_by_hand).export(tmp_path / "seismic", write_seismic, "seismic")
    assert json_lines(tmp_path / "seismic" / "documents.jsonl")[3] == {"id": "d5", "content": "", "vector": {"é": 300}}
    assert "documents without any impact: 1; none of them matches a query" in manifest.stats["loses"]
