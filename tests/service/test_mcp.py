"""The MCP tools, with the protocol's own client: in memory, over HTTP, and over standard input and output."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from fastapi.testclient import TestClient
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from cai_pyserini.engine.open import open_systems
from cai_pyserini.engine.search import Engine
from cai_pyserini.service.guard import MAX_BODY_BYTES
from cai_pyserini.service.mcp import MAX_TEXT_LENGTH, TERMS, create_server
from cai_pyserini.service.queue import MAX_HITS, MAX_QUERY_LENGTH, Service
from tests.service.conftest import SYSTEMS, served

pytestmark = pytest.mark.slow

TOOLS = ["list_indexes", "search", "document", "quote", "explain"]
QUERY = "phytate lowers the risk of cancer"
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def session(opened: dict[str, Engine], scenario: Callable[[Client], Awaitable[Any]], limit: int = 256) -> Any:
    """Run a scenario with a client in memory, and return its result."""

    async def run() -> Any:
        service = Service(lambda: opened, limit)
        work = asyncio.create_task(service.work())
        async with Client(create_server(service)) as client:
            found = await scenario(client)
        work.cancel()
        return found

    return asyncio.run(run())


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured content of a result, which the client has validated."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error and result.structured_content, result.content
    return result.structured_content


def test_every_tool_and_argument_is_described(opened: dict[str, Engine]) -> None:
    tools = session(opened, lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == TOOLS
    for tool in tools:
        assert tool.description and tool.output_schema and tool.annotations.read_only_hint
        assert all(argument.get("description") for argument in tool.input_schema["properties"].values())
        assert tool.input_schema["additionalProperties"] is False


def test_the_default_index_is_named(opened: dict[str, Engine]) -> None:
    async def scenario(client: Client) -> None:
        assert client.instructions and f"`default`: {SYSTEMS[0]} when" in client.instructions
        listed = await call(client, "list_indexes")
        indexes = listed["indexes"]
        assert listed["default"] == SYSTEMS[0]
        assert [index["name"] for index in indexes] == SYSTEMS
        assert {index["documents"] for index in indexes} == {12}
        assert len({index["description"] for index in indexes}) == len(SYSTEMS)
        assert (await call(client, "search", query=QUERY))["index"] == SYSTEMS[0]

    session(opened, scenario)


@pytest.mark.parametrize("index", SYSTEMS)
def test_pages_of_hits_make_up_the_ranking(opened: dict[str, Engine], index: str) -> None:
    async def scenario(client: Client) -> list[dict]:
        found, offset = [], 0
        while offset is not None:
            page = await call(client, "search", query=QUERY, index=index, hits=2, offset=offset)
            found += page["hits"]
            offset = page["next_offset"]
        return found

    (hits,) = opened[index].search([QUERY], MAX_HITS)
    found = session(opened, scenario)
    assert [(one["rank"], one["docid"], one["score"]) for one in found] == [
        (hit.rank, hit.id, hit.score) for hit in hits
    ]
    assert len(hits) > 2
    (one,) = (one for one in found if one["docid"] == "d1")
    assert one["title"] == "Phytate and colon cancer" and one["snippet"].startswith("Dietary phytate, found")


def test_a_document_is_read_in_parts(opened: dict[str, Engine]) -> None:
    async def scenario(client: Client) -> str:
        contents, offset = "", 0
        while offset is not None:
            part = await call(client, "document", docid="d12", index="bm25", length=10, offset=offset)
            assert (part["title"], part["offset"]) == ("Größe", offset)
            contents += part["contents"]
            offset = part["next_offset"]
        assert len(contents) == part["characters"]
        return contents

    stored = opened["bm25"].document("d12")
    assert stored and session(opened, scenario) == stored.contents


@pytest.mark.parametrize("index", SYSTEMS)
def test_excerpts_can_be_quoted(opened: dict[str, Engine], index: str) -> None:
    """The faults: hits and excerpts in one answer, more tokens than asked for, a place in another text."""

    async def scenario(client: Client) -> None:
        found = await call(client, "search", query=QUERY, index=index, budget_tokens=100)
        assert (found["hits"], found["next_offset"]) == ([], None) and found["excerpts"]
        assert found["excerpts"] == [asdict(each) for each in opened[index].excerpts(QUERY, 100)]
        first = found["excerpts"][0]
        quote = (await call(client, "quote", docid=first["docid"], text=first["text"].upper(), index=index))["quote"]
        assert quote["found"] and (quote["start"], quote["end"]) == (first["start"], first["end"])
        wrong = (await call(client, "quote", docid="d1", text="Phytate is the cause of all cancer"))["quote"]
        assert not wrong["found"]

    session(opened, scenario)


def test_the_skill_says_what_the_indexes_hold(opened: dict[str, Engine]) -> None:
    """The fault: a filter in it that is none."""

    async def scenario(client: Client) -> str:
        (listed,) = (await client.list_resources()).resources
        assert client.instructions and str(listed.uri) in client.instructions
        (read,) = (await client.read_resource(listed.uri)).contents
        return read.text

    text = session(opened, scenario)
    front = yaml.safe_load(text.split("---")[1])
    assert front["name"] == "search-the-documents-of-this-server" and "12 documents" in front["description"]
    assert all(f"- `{name}`: 12 documents, language en; " in text for name in SYSTEMS)
    (filter,) = re.findall(r"such as `(.*)`, with AND", text)
    assert opened[SYSTEMS[0]].search("cancer", filter=filter)


@pytest.mark.parametrize("index", SYSTEMS)
def test_explanations_are_those_of_the_engine(opened: dict[str, Engine], index: str) -> None:
    found = session(opened, lambda client: call(client, "explain", query=QUERY, docid="d1", index=index))
    explained, whole = found["explanation"], opened[index].explain(QUERY, ["d1"])["d1"]
    assert (explained["score"], explained["rank"]) == (whole.score, whole.rank)
    parts = [part["explanation"] for part in explained["parts"]] or [explained]
    for one, expected in zip(parts, [part.explanation for part in whole.parts] or [whole], strict=True):
        assert one["terms"] == [asdict(term) for term in expected.terms[:TERMS]] != []


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("search", {"query": "cancer", "index": "bm26"}, "no index bm26; this server has hybrid-splade"),
        ("search", {"query": " \x1c"}, "wrong arguments of search: query: should not be blank"),
        ("explain", {"query": "", "docid": "d1"}, "query: should not be blank"),
        ("search", {"query": "x" * (MAX_QUERY_LENGTH + 1)}, "query: String should have at most 10000 characters"),
        ("search", {"query": "x", "hits": 101}, "hits: Input should be less than or equal to 100"),
        ("search", {"query": "x", "budget_tokens": 99}, "budget_tokens: Input should be greater than or equal to 100"),
        ("search", {"query": "x", "budget_tokens": 100, "offset": 1}, "offset: not with budget_tokens"),
        ("quote", {"docid": "d99", "text": "x"}, "stores no document 'd99'"),
        ("quote", {"docid": "d1", "text": "…"}, "text: the quote has no words"),
        ("search", {"query": "x", "offset": MAX_HITS}, "offset: a search has at most 1000 hits"),
        ("search", {}, "query: Field required"),
        ("document", {"docid": "d99"}, "no document 'd99'"),
        ("document", {"docid": "d1", "length": MAX_TEXT_LENGTH + 1}, "length: Input should be less than or equal to"),
        ("search", {"query": "x", "filters": "year>2000"}, "filters: no such parameter; did you mean filter?"),
        ("document", {"docid": "d1", "query": "x"}, "query: no such parameter; there are docid, index, offset, length"),
        ("explain", {"query": "cancer", "docid": "d99"}, "document 'd99' has no score in hybrid-splade"),
    ],
)
def test_wrong_calls_get_a_sentence(
    opened: dict[str, Engine], tool: str, arguments: dict[str, Any], reason: str
) -> None:
    result = session(opened, lambda client: client.call_tool(tool, arguments))
    assert result.is_error and reason in result.content[0].text
    assert "pydantic" not in result.content[0].text


@pytest.mark.parametrize("empty", [None, ""])
def test_empty_arguments_are_not_given(opened: dict[str, Engine], empty: str | None) -> None:
    """The fault: assistants that fill in every argument get an error for a filter or offset that they do not want."""

    async def scenario(client: Client) -> None:
        optional = dict.fromkeys(("index", "hits", "offset", "filter"), empty)
        assert await call(client, "search", query=QUERY, **optional) == await call(client, "search", query=QUERY)
        optional = dict.fromkeys(("index", "offset", "length"), empty)
        assert await call(client, "document", docid="d1", **optional) == await call(client, "document", docid="d1")
        assert (await call(client, "explain", query=QUERY, docid="d1", index=empty))["index"] == SYSTEMS[0]

    session(opened, scenario)


def test_a_full_queue_and_a_failure_get_a_sentence(opened: dict[str, Engine], run_folder: Path) -> None:
    full = session(opened, lambda client: client.call_tool("search", {"query": "cancer"}), limit=0)
    assert full.is_error and "too many requests wait" in full.content[0].text
    closed = open_systems([run_folder], ["bm25"])
    closed["bm25"].close()
    failed = session(closed, lambda client: client.call_tool("search", {"query": "cancer"}))
    assert failed.is_error and failed.content[0].text == "the server failed to answer; its log says why"


def test_over_http_with_the_key_of_the_service(run_folder: Path) -> None:
    async def scenario(address: str, headers: dict[str, str], mode: str = "auto") -> str:
        http = httpx2.AsyncClient(headers=headers, timeout=60)
        async with http, Client(streamable_http_client(f"{address}mcp", http_client=http), mode=mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
            (hit,) = (await call(client, "search", query="bladder"))["hits"]
            explained = await call(client, "explain", query="bladder", docid=hit["docid"])
            assert explained["explanation"]["rank"] == 1
            return (await call(client, "document", docid=hit["docid"]))["title"]

    with served(run_folder, "bm25", key="sesame") as address:
        for mode in ("legacy", "auto"):  # with initialize, and without, as of protocol 2026-07-28
            assert asyncio.run(scenario(address, {"Authorization": "Bearer sesame"}, mode)) == "Urinary tract infection"
        with pytest.RaisesGroup(MCPError, flatten_subgroups=True):
            asyncio.run(scenario(address, {"X-API-Key": "other"}))
        for headers, status in (({}, 401), ({"X-API-Key": "sesame", "Origin": "https://example.org"}, 403)):
            assert httpx2.post(f"{address}mcp", json={}, headers=headers).status_code == status


def test_the_best_passage_of_a_document_can_be_read(passages_run: Path) -> None:
    async def scenario(client: Client) -> None:
        (hit,) = (await call(client, "search", query="bladder"))["hits"]
        assert (hit["docid"], hit["passage"].partition("#")[0]) == ("d4", "d4")
        passage, document = [await call(client, "document", docid=hit[name]) for name in ("passage", "docid")]
        assert "bladder" in passage["contents"] and passage["title"] == document["title"] == hit["title"]
        text = document["contents"].removeprefix(f"{hit['title']} ")
        assert text[hit["start"] : hit["end"]] == passage["contents"].removeprefix(f"{hit['title']} ").strip()
        for name in ("passage", "docid"):
            explained = await call(client, "explain", query="bladder", docid=hit[name])
            assert explained["explanation"]["rank"] == hit["rank"] and explained["explanation"]["terms"]
        assert [each["documents"] for each in (await call(client, "list_indexes"))["indexes"]] == [12]

    session(open_systems([passages_run]), scenario)


def test_requests_are_counted_and_limited_and_leave_no_stream_open(client: TestClient) -> None:
    headers = {"Accept": "application/json, text/event-stream"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    answer = client.post("/mcp", json=message, headers=headers)
    assert answer.json()["result"]["serverInfo"]["name"] == "cai-pyserini"
    assert answer.json() == client.post("/mcp/", json=message, headers=headers).json()
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["x-content-type-options"] == "nosniff" and "mcp-session-id" not in answer.headers
    assert client.post("/mcp", content=b" " * (MAX_BODY_BYTES + 1), headers=headers).status_code == 413
    assert client.get("/mcp", headers=headers).status_code == 405
    assert 'cai_requests_total{route="/mcp",status="200"}' in client.get("/metrics").text


def test_standard_output_has_messages_only(run_folder: Path) -> None:
    """Java prints when it starts and while it works."""
    messages = [
        {"id": 1, "method": "initialize", "params": INITIALIZE},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "bladder"}}},
    ]
    command = [sys.executable, "-m", "cai_pyserini", "serve", str(run_folder), "--systems", "bm25", "--stdio"]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": "-Xlog:gc,safepoint"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        for message in messages:
            print(json.dumps({"jsonrpc": "2.0", **message}), file=process.stdin, flush=True)
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        rest, errors = process.communicate(timeout=60)
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["hits"][0]["docid"] == "d4"
    assert (rest, process.returncode) == ("", 0)
    assert "[gc] Using" in errors and "serving bm25 on standard input and output" in errors
