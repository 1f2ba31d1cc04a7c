"""The REST API: responses, and reasons for refusals."""

import gzip
import json
from base64 import b64encode
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import pyserini
import pytest
import yaml
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator

from cai_pyserini.engine.open import Reranker, open_systems
from cai_pyserini.engine.search import Engine
from cai_pyserini.models.cross_encoder import CrossEncoder
from cai_pyserini.service.app import create_app
from cai_pyserini.service.guard import MAX_BODY_BYTES, Access
from cai_pyserini.service.queue import BATCH, MAX_QUERY_LENGTH, Service
from tests.service.conftest import SYSTEMS, engines

pytestmark = pytest.mark.slow

TOO_LONG = "x" * (MAX_QUERY_LENGTH + 1)
EXPLAIN = "/v1/bm25/explain?query=cancer&docid=d3"
JSON = {"Content-Type": "application/json"}


def ids(client: TestClient, index: str, query: str, **parameters: object) -> list[str]:
    found = client.get(f"/v1/{index}/search", params={"query": query, **parameters}).json()
    return [candidate["docid"] for candidate in found["candidates"]]


@pytest.mark.parametrize("index", SYSTEMS)
def test_answers_are_those_of_the_engine(client: TestClient, run_folder: Path, index: str) -> None:
    (hits,) = engines(run_folder)[index].search(["phytate and cancer"], 3)
    found = client.get(f"/v1/{index}/search", params={"query": "phytate and cancer", "hits": 3}).json()
    assert (found["api"], found["index"], found["query"]) == ("v1", index, {"text": "phytate and cancer"})
    candidates = found["candidates"]
    assert [(c["docid"], c["rank"], c["score"]) for c in candidates] == [(h.id, h.rank, h.score) for h in hits]
    assert candidates[0]["doc"]["title"] == "Phytate and colon cancer"


@pytest.mark.parametrize("index", SYSTEMS)
def test_several_queries_are_answered_in_order_as_if_alone(client: TestClient, index: str) -> None:
    texts = {"b": "phytate and cancer", "a": "xyzzy", "c": "bladder infection"}
    asked = {"queries": [{"qid": qid, "text": text} for qid, text in texts.items()], "hits": 2}
    found = client.post(f"/v1/{index}/search", params={"max_doc_length": 5}, json=asked).json()
    assert [result["qid"] for result in found["results"]] == list(texts)
    for result in found["results"]:
        own = {"query": texts[result["qid"]], "hits": 2, "max_doc_length": 5}
        expected = client.get(f"/v1/{index}/search", params=own).json()["candidates"]
        assert result["candidates"] == [c | {"score": pytest.approx(c["score"], rel=1e-6)} for c in expected]


@pytest.mark.parametrize("index", SYSTEMS)
def test_snippets_are_those_of_the_page(client: TestClient, opened: dict[str, Engine], index: str) -> None:
    query = {"query": "phytate and cancer", "hits": 3}
    plain = client.get(f"/v1/{index}/search", params=query).json()["candidates"]
    found = client.get(f"/v1/{index}/search", params=query | {"snippets": True}).json()["candidates"]
    shown = ["".join(piece for piece, _ in one.snippet) for one in opened[index].describe(query["query"], 3)]
    assert [one["snippet"] for one in found] == shown and shown[0].startswith("Dietary phytate, found in the bran")
    assert plain == [{key: value for key, value in one.items() if key != "snippet"} for one in found]
    several = client.post(f"/v1/{index}/search", json=queries("zinc", query["query"], hits=3, snippets=True)).json()
    assert [one["snippet"] for one in several["results"][1]["candidates"]] == shown


@pytest.mark.parametrize("index", SYSTEMS)
def test_operators_of_a_query(client: TestClient, index: str) -> None:
    plain, less = (ids(client, index, f"cancer {minus}phytate risk", syntax=True, hits=12) for minus in ("", "-"))
    assert "d1" in plain and "d2" in less and "d1" not in less
    assert ids(client, index, 'high "blood pressure" cancer', syntax=True) in (["d10", "d5"], ["d5", "d10"])
    assert ids(client, index, 'high "pressure of blood"', syntax=True) == []
    assert "d1" in ids(client, index, "cancer -phytate risk", hits=12)
    asked = {"query": 'cancer "colorectal cancer" -breast', "syntax": True}
    assert client.get(f"/v1/{index}/search", params=asked).json()["query"]["text"] == asked["query"]


@pytest.mark.parametrize("index", SYSTEMS)
def test_excerpts_and_quotes_are_those_of_the_engine(client: TestClient, opened: dict[str, Engine], index: str) -> None:
    asked = {"query": 'cancer "phytate"', "budget_tokens": 100, "syntax": True, "facets": "year", "filter": "year>1900"}
    found = client.get(f"/v1/{index}/search", params=asked).json()
    own = opened[index].excerpts("cancer phytate", 100, ["year>1900", 'contents:"phytate"'])
    assert found["excerpts"] == [asdict(each) for each in own] and found["candidates"] == [] and found["facets"]
    place = {"docid": own[0].docid, "text": own[0].text.replace(" ", "\n")}
    assert client.get(f"/v1/{index}/quote", params=place).json()["quote"]["start"] == own[0].start
    for parameters, status in ((place | {"docid": "d99"}, 404), (place | {"text": "…"}, 400)):
        assert client.get(f"/v1/{index}/quote", params=parameters).status_code == status
    assert client.get(f"/v1/{index}/search", params=asked | {"sort": "year"}).status_code == 400


def queries(*texts: str, **others: object) -> dict[str, object]:
    """A request body with these queries."""
    return {"queries": [{"qid": str(number), "text": text} for number, text in enumerate(texts)], **others}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "queries: Field required"),
        ([], "body: Input should be a valid dictionary"),
        (queries(), "queries: List should have at least 1 item"),
        (queries(*["x"] * (BATCH + 1)), "queries: List should have at most 64 items"),
        (queries("x", " \x1c"), "queries.1.text: should not be blank"),
        (queries("x" * (MAX_QUERY_LENGTH - 1), "yy"), "queries: 10001 characters in all; 10000 are allowed"),
        (queries("x", "y", hits=501), "hits: 1002 for all queries; 1000 are allowed"),
        (queries("x", hits="3"), "hits: Input should be a valid integer"),
        (queries("x", hit=3), "hit: Extra inputs are not permitted"),
        (queries("x", "y", hits=51, snippets=True), "snippets: with 102 hits; 100 are allowed"),
        (queries("x", filter="yaer>=2010"), "filter, character 1: no field 'yaer'"),
        ({"queries": [{"qid": "1", "text": "x"}] * 2}, "queries: two have the same qid"),
        ({"queries": [{"qid": 1, "text": "x"}]}, "queries.0.qid: Input should be a valid string"),
    ],
)
def test_wrong_bodies_get_a_reason(client: TestClient, body: object, reason: str) -> None:
    answer = client.post("/v1/bm25/search", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(reason)


def test_a_body_has_a_length_within_limits(client: TestClient) -> None:
    """Nothing else limits the memory of a body, which is read before the key is checked."""
    longest = json.dumps(queries("🧬" * (MAX_QUERY_LENGTH - BATCH + 1), *["🧬"] * (BATCH - 1), hits=1))
    assert client.post("/v1/bm25/search", content=longest, headers=JSON).status_code == 200
    assert client.post("/v1/bm25/search", content=longest + " " * MAX_BODY_BYTES, headers=JSON).status_code == 413
    assert client.post("/v1/bm25/search", content=iter([longest.encode()]), headers=JSON).status_code == 411
    assert client.post("/v1/bm25/search", content="[" * 100_000, headers=JSON).status_code == 400


@pytest.mark.parametrize("path", ["/v1/bm25/search", "/mcp"])
@pytest.mark.parametrize(
    ("headers", "body", "status", "reason"),
    [
        (
            {"Content-Encoding": "gzip"},
            gzip.compress(b"{}", mtime=0),
            415,
            "the body is compressed (gzip): send it as it is",
        ),
        ({"Content-Type": 'application/json; charset="UTF-16"'}, "{}".encode("utf-16"), 415, "the body is in UTF-16"),
        (JSON, '{"a": "ä"}'.encode("latin-1"), 400, "the body is not UTF-8: byte 7 is E4"),
        (JSON, gzip.compress(b"{}", mtime=0), 400, "the body is not UTF-8: byte 1 is 8B"),
    ],
)
def test_a_body_is_plain_utf8(
    client: TestClient, path: str, headers: dict[str, str], body: bytes, status: int, reason: str
) -> None:
    """The fault: a parse error, which does not say that the bytes are not what they seem."""
    answer = client.post(path, content=body, headers=headers)
    assert answer.status_code == status and answer.json()["error"].startswith(reason)
    assert client.post(path, json={}, headers={"Content-Type": "application/json; charset=UTF-8"}).status_code != 415


def test_only_what_is_of_no_document_is_cached(client: TestClient) -> None:
    """The fault: a proxy, or the next person at the machine, reads an answer."""
    paths = ("/", "/?q=x", "/document?index=bm25&id=d1", "/v1/bm25/search?query=x", "/health", "/metrics", "/nowhere")
    assert {client.get(path).headers["cache-control"] for path in paths} == {"private, no-store"}
    for path in ("/style.css", "/script.js"):
        assert "no-store" not in client.get(path).headers["cache-control"]


@pytest.mark.parametrize("index", SYSTEMS)
def test_more_like_a_document(client: TestClient, index: str) -> None:
    """The text of d1 finds d1 first, which is left out; d6, which has only a text, behaves the same."""
    for docid in ("d1", "d6"):
        text = client.get(f"/v1/{index}/doc/{docid}").json()["doc"]
        text = text if isinstance(text, str) else text["contents"]
        own, *others = client.get(f"/v1/{index}/search", params={"query": text, "hits": 4}).json()["candidates"]
        found = client.get(f"/v1/{index}/search", params={"like": docid, "hits": 3}).json()
        assert own["docid"] == docid and found["query"]["text"] == text
        assert found["candidates"] == [candidate | {"rank": candidate["rank"] - 1} for candidate in others]


def test_documents_and_passages_have_ids(passages_run: Path) -> None:
    """The fault: the docid of a hit is unknown, as only passages have ids."""
    with TestClient(create_app(Service(lambda: open_systems([passages_run])))) as client:
        (hit,) = client.get("/v1/bm25/search?query=bladder").json()["candidates"]
        assert (hit["docid"], hit["passage"]) == ("d4", "d4#0")
        whole, passage = (client.get(f"/v1/bm25/doc/{quote(hit[id])}").json()["doc"] for id in ("docid", "passage"))
        text = whole["contents"].removeprefix(f"{whole['title']} ")
        assert f"{whole['title']} {text[hit['start'] : hit['end']]}" == passage["contents"].rstrip()
        assert len(text) > hit["end"]
        for id in (hit["docid"], hit["passage"]):
            explained = client.get("/v1/bm25/explain", params={"query": "bladder", "docid": id}).json()["explanation"]
            assert (explained["document"], explained["rank"]) == (id, 1)
            assert explained["score"] == pytest.approx(hit["score"], abs=1e-4)
            similar = client.get("/v1/bm25/search", params={"like": id}).json()["candidates"]
            assert "d4" not in {each["docid"] for each in similar}
            assert client.get("/document", params={"index": "bm25", "id": id, "q": "bladder"}).status_code == 200


def test_documents_parsed_or_as_they_are_stored(client: TestClient) -> None:
    contents = "Aromatase Phytochemicals that inhibit aromatase may prevent breast cancer."
    document = client.get("/v1/bm25/doc/d3").json()
    fields = {"title": "Aromatase", "contents": contents, "metadata": {"year": 2011}}
    assert document == {"api": "v1", "index": "bm25", "docid": "d3", "doc": fields}
    stored = client.get("/v1/bm25/doc/d3", params={"parse": "false"}).json()["doc"]
    assert json.loads(stored) == {"id": "d3", **fields}
    assert client.get("/v1/bm25/doc/d3", params={"max_doc_length": 9}).json()["doc"]["contents"] == "Aromatase"
    assert client.get("/v1/bm25/doc/d6").json()["doc"].strip().startswith("A case report")  # without a title


def test_pyserinis_schemas_hold(client: TestClient) -> None:
    (folder,) = pyserini.__path__
    schema = yaml.safe_load((Path(folder) / "server" / "rest" / "openapi.yaml").read_text())
    for name, path in (
        ("SearchResponse", "search?query=cancer"),
        ("SearchResponse", "search?query=cancer&parse=false"),
        ("DocumentResponse", "doc/d3"),
        ("ErrorResponse", "doc/d99"),
    ):
        validator = Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": schema["components"]})
        validator.validate(client.get(f"/v1/bm25/{path}").json())


def test_explanations(client: TestClient) -> None:
    asked = {"query": "bladder infection", "docid": "d4"}
    explanation = client.get("/v1/joint/explain", params=asked).json()["explanation"]
    assert explanation["rank"] == 1
    assert sum(term["contribution"] for term in explanation["terms"]) == pytest.approx(explanation["score"])
    parts = client.get("/v1/hybrid-splade-idf-minmax/explain", params=asked).json()["explanation"]["parts"]
    assert [part["explanation"]["system"] for part in parts] == ["bm25", "splade-idf"]
    missing = client.get("/v1/bm25/explain", params=asked | {"docid": "d99"})
    assert (missing.status_code, missing.json()) == (404, {"error": "document 'd99' has no score in bm25"})


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/v1/bm25/search", 400, "query: Field required"),
        ("/v1/bm25/search?query=", 400, "query: String should have at least 1 character"),
        ("/v1/bm25/search?query=%1C", 400, "query: should not be blank"),
        (f"/v1/bm25/search?query={TOO_LONG}", 400, "query: String should have at most 10000 characters"),
        (f"/v1/bm25/explain?query=x&docid={TOO_LONG}", 400, "docid: String should have at most 10000 characters"),
        (f"/?q={TOO_LONG}", 400, "q: String should have at most 10000 characters"),
        ("/?q=x&hits=101", 400, "hits: Input should be less than or equal to 100"),
        ("/v1/bm25/search?query=x&parse=false&max_doc_length=1", 400, "max_doc_length: not with parse=false"),
        ("/v1/bm25/search?query=x&hits=0", 400, "hits: Input should be greater than or equal to 1"),
        ("/v1/bm25/search?query=x&hits=1001", 400, "hits: Input should be less than or equal to 1000"),
        ("/v1/bm25/search?query=x&rerank=3", 400, "rerank: this server has no cross-encoder"),
        ("/v1/bm26/search?query=x", 404, f"no index bm26; this server has {', '.join(SYSTEMS)}"),
        ("/v1/bm25/search?like=d99", 404, "no document 'd99', or bm25 does not store documents"),
        ("/v1/bm25/search?like=d1&query=x", 400, "like: not with query, rerank or syntax"),
        ("/v1/bm25/search?query=-x&syntax=true", 400, "query: it only excludes words"),
        ("/v1/bm25/search?query=x&hits=101&snippets=true", 400, "snippets: with 101 hits; 100 are allowed"),
        ("/v2/bm25/search?query=x", 404, "Not Found"),
        ("/docs", 404, "Not Found"),  # FastAPI's page would load scripts from elsewhere
    ],
)
def test_wrong_requests_get_a_reason(client: TestClient, path: str, status: int, reason: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(reason)


def test_health_and_metrics(client: TestClient) -> None:
    health = client.get("/health").json()
    assert (health["status"], health["indexes"]) == ("ok", SYSTEMS)
    assert client.get("/ready").json() == {"status": "ok", "indexes": dict.fromkeys(SYSTEMS, "ok")}
    ids(client, "bm25", "cancer")
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'cai_requests_total{route="/v1/{index}/search",status="200"}' in metrics.text
    assert "cai_batch_queries_count" in metrics.text


def test_an_api_key(run_folder: Path) -> None:
    with TestClient(create_app(Service(lambda: engines(run_folder, "bm25")), Access("sesame"))) as client:
        basic = b64encode(b"me:sesame").decode()
        for headers in (
            {"X-API-Key": "sesame"},
            {"Authorization": "Bearer sesame"},
            {"Authorization": f"Basic {basic}"},
            {"X-API-Key": "other", "Authorization": "Bearer sesame"},
            {"X-API-Key": "sesame", "Authorization": "Basic"},
            {"X-API-Key": "sesame", "Authorization": "Basic %%"},
            {"X-API-Key": "sesame", "Authorization": f"Basic {b64encode(bytes([255])).decode()}"},
        ):
            assert client.get("/v1/bm25/doc/d3", headers=headers).status_code == 200
        wrong: list[dict[str, str]] = [{}, {"X-API-Key": "other"}, {"Authorization": "Basic %%"}, {"X-API-Key": ""}]
        for headers in wrong:
            for path in ("/", "/style.css", "/v1/bm25/doc/d3", "/v1/bm25/search?hits=x", "/metrics"):
                answer = client.get(path, headers=headers)
                assert answer.status_code == 401 and "WWW-Authenticate" in answer.headers and answer.json()["error"]
        assert client.post("/reload").status_code == 401
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        schema = client.get("/openapi.json").json()
    schemes = schema["components"]["securitySchemes"].items()
    assert {name: (scheme["type"], scheme.get("scheme")) for name, scheme in schemes} == {
        "APIKeyHeader": ("apiKey", None), "HTTPBearer": ("http", "bearer"), "HTTPBasic": ("http", "basic")
    }  # fmt: skip
    of_path = {path: operation.get("security") for path, of in schema["paths"].items() for operation in of.values()}
    assert {path for path, security in of_path.items() if not security} == {"/health", "/ready"}


def test_other_hosts_and_other_sites(run_folder: Path) -> None:
    app = create_app(Service(lambda: engines(run_folder, "bm25")), Access(local=True))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        for host in ("127.0.0.1", "[::1]:8000", "[::1]", "LOCALHOST", "localhost:8000"):
            assert client.get("/health", headers={"Host": host}).status_code == 200
        for host in ("example.org", "127.0.0.1.example.org", "[", ""):
            answer = client.get("/health", headers={"Host": host})
            assert (answer.status_code, answer.json()) == (403, {"error": f"this server is not {host}"})
        assert client.post("/reload", headers={"Origin": "https://example.org"}).status_code == 403
        assert client.post("/reload", headers={"Origin": "http://127.0.0.1:8000"}).status_code == 200


def test_a_public_address(run_folder: Path) -> None:
    public, other = "https://search.example.org/hpo/", "https://example.org"
    service = Service(lambda: engines(run_folder, "bm25"))
    guarded = create_app(service, Access("sesame", True, public))
    key = {"X-API-Key": "sesame"}
    with TestClient(guarded, "http://127.0.0.1:8000") as client:
        for path in ("/", "/hpo/", "/hpo/style.css", "/style.css", "/hpo/v1/bm25/doc/d1"):
            for host in ("search.example.org", "Search.Example.org", "127.0.0.1"):
                assert client.get(path, headers=key | {"Host": host}).status_code == 200
        assert client.get("/", headers=key | {"Host": "example.org"}).status_code == 403
        assert client.get("/openapi.json").json()["servers"] == [{"url": public}]
        for origin, status in ((public[:-5], 200), (other, 403), ("null", 403), (f"{public[:-5]}:444", 403)):
            headers = key | {"Origin": origin}
            answer = client.post("/v1/bm25/search", json=queries("zinc"), headers=headers)
            assert answer.status_code == status


def test_head_is_get_without_the_body(client: TestClient) -> None:
    for path in ("/", "/health", "/ready", "/style.css", "/openapi.json", "/metrics", "/v1/bm25/search?query=zinc"):
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"") == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
        assert got.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
    assert client.head("/v1/bm25/search").status_code == 400 and client.head("/reload").status_code == 405
    answer = client.options("/v1/bm25/search")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/bm25/search?query=x&filters=year>=2020", "filters: no such parameter; did you mean filter?"),
        ("/v1/bm25/search?query=x&hit=3", "hit: no such parameter; did you mean hits?"),
        ("/v1/bm25/search?query=x&k1=2", "k1: no such parameter; there are query, like, hits, rerank, filter, sort"),
        ("/v1/bm25/search?q=zinc", "q: no such parameter"),
        ("/v1/bm25/search?query=x&filter=year<2000&filter=year>2010", "filter: given 2 times"),
        ("/v1/bm25/doc/d1?max_length=3", "max_length: no such parameter; did you mean max_doc_length?"),
        ("/v1/bm25/explain?query=x&docid=d1&filter=x", "filter: no such parameter; there are query, docid"),
        ("/?q=x&filters=x", "filters: no such parameter; did you mean filter?"),
        ("/style.css?v=1", "v: no such parameter; there are none"),
        ("/v1/bm25/suggest?query=caf%E9", "the parameters are not UTF-8: a byte is %E9"),
        ("/?q=caf%ED%A0%80", "the parameters are not UTF-8: a byte is %ED"),
    ],
)
def test_unknown_parameters_are_refused(client: TestClient, path: str, reason: str) -> None:
    """The fault: a misspelt filter returns unfiltered hits."""
    answer = client.get(path)
    assert answer.status_code == 400 and answer.json()["error"].startswith(reason)
    if "search" in path:
        posted = client.post(path.replace("query=x&", ""), json=queries("x"))
        assert posted.status_code == 400 and "no such parameter" in posted.json()["error"]


def test_failures_are_counted_and_have_security_headers(run_folder: Path) -> None:
    service = Service(lambda: engines(run_folder))
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        assert client.get("/ready").json()["indexes"] == dict.fromkeys(SYSTEMS, "ok")
        service.engines["bm25"].close()
        for path, status in ((EXPLAIN, 500), ("/v1/bm25/search?query=cancer", 500), ("/ready", 503)):
            answer = client.get(path)
            assert answer.status_code == status
            assert answer.headers["x-content-type-options"] == "nosniff"
        ready = answer.json()
        assert ready["status"] == "not ready" and ready["indexes"]["bm25"] != "ok"
        metrics = client.get("/metrics").text
        assert 'cai_requests_total{route="/v1/{index}/explain",status="500"} 1.0' in metrics
        assert client.get("/health").status_code == 200  # restarting would not help


def test_a_late_encoder_degrades_a_hybrid_and_the_answer_says_so(run_folder: Path) -> None:
    opened = engines(run_folder)
    hybrid, asked = "hybrid-splade-idf-minmax", {"queries": [{"qid": "1", "text": "bladder infection"}], "hits": 3}
    encoder = opened[hybrid].parts.retrievers["splade-idf"]._queries.encoder
    assert encoder
    with TestClient(create_app(Service(lambda: opened, deadline=0.5))) as client:
        with encoder.lock:
            found = client.get(f"/v1/{hybrid}/search?query=bladder+infection&hits=3").json()
            several = client.post(f"/v1/{hybrid}/search", json=asked).json()
        assert found["degraded"] == several["degraded"] == "splade-idf timed out"
        bm25 = client.get("/v1/bm25/search?query=bladder+infection&hits=3").json()
        assert found["candidates"] == several["results"][0]["candidates"] == bm25["candidates"]
        assert "degraded" not in bm25


def test_reranking(run_folder: Path, cross_encoder: Path) -> None:
    opened = engines(run_folder)
    reranker = Reranker(str(cross_encoder), "cpu")
    before, model = [hit.id for hit in opened["joint"].search(["cancer"], 6)[0]], CrossEncoder(cross_encoder, "cpu")
    with TestClient(create_app(Service(lambda: opened, rerank=reranker.scores))) as client:
        path, query = "/v1/joint/search", {"query": "cancer"}
        found = client.get(path, params=query | {"rerank": 4, "hits": 6}).json()
        assert found["reranked"] == 4 and "degraded" not in found
        ranking = found["candidates"]
        expected = model.score(["cancer"] * 4, [candidate["doc"]["contents"] for candidate in ranking[:4]])
        scores = [candidate["score"] for candidate in ranking[:4]]
        assert scores == pytest.approx(sorted(expected.tolist(), reverse=True), abs=1e-5)
        assert {candidate["docid"] for candidate in ranking[:4]} == set(before[:4])
        assert [candidate["docid"] for candidate in ranking[4:]] == before[4:]
        assert [candidate["rank"] for candidate in ranking] == [*range(1, 7)]
        few = client.get(path, params=query | {"rerank": 4, "hits": 2}).json()
        assert few["candidates"] == [c | {"score": pytest.approx(c["score"], abs=1e-5)} for c in ranking[:2]]
    with TestClient(create_app(Service(lambda: engines(run_folder), deadline=1e-6, rerank=reranker.scores))) as client:
        late = client.get(path, params=query | {"rerank": 4, "hits": 6}).json()
        assert late["reranked"] == 0 and [candidate["docid"] for candidate in late["candidates"]] == before


def test_reload_opens_the_current_indexes(run_folder: Path) -> None:
    opened: list[dict] = []

    def open_engines() -> dict:
        opened.append(engines(run_folder))
        return opened[-1] | ({"new": opened[-1]["bm25"]} if len(opened) > 1 else {})

    with TestClient(create_app(Service(open_engines))) as client:
        before = ids(client, "joint", "cancer")
        assert client.get("/v1/new/search?query=cancer").status_code == 404
        assert client.post("/reload").json() == {"status": "ok", "indexes": [*SYSTEMS, "new"]}
        assert ids(client, "joint", "cancer") == before
        assert ids(client, "new", "cancer") == ids(client, "bm25", "cancer")


def test_a_failed_reload_leaves_the_old_indexes(run_folder: Path) -> None:
    folders = [run_folder / "nothing", run_folder]
    with TestClient(create_app(Service(lambda: engines(folders.pop(), "bm25")))) as client:
        answer = client.post("/reload")
        assert answer.status_code == 503 and "could not be opened" in answer.json()["error"]
        assert ids(client, "bm25", "bladder") == ["d4"]
