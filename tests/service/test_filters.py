"""The service and its page with documents that have metadata."""

import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from mcp import Client

from cai_pyserini.engine.open import open_systems
from cai_pyserini.service.app import create_app
from cai_pyserini.service.queue import Service
from tests.metadata import FILTERS, JOURNALS, metadata, texts
from tests.service.test_mcp import call, session

pytestmark = pytest.mark.slow

SYSTEMS = ["joint", "bm25", "dense"]


@pytest.fixture(scope="module")
def client(metadata_run: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Service(lambda: open_systems([metadata_run], SYSTEMS)))) as client:
        yield client


@pytest.mark.parametrize("index", SYSTEMS)
def test_searches_are_filtered_sorted_and_counted(client: TestClient, index: str) -> None:
    """Of one query, of several, and of a document."""
    limits = {"hits": 5, "filter": "year>=2010", "sort": "-impact"}
    queries = [{"qid": "1", "text": "risk of cancer"}, {"qid": "2", "text": "sleep"}]
    body = {"queries": queries, **limits, "facets": ["journal", "authors"]}
    one, _ = client.post(f"/v1/{index}/search", json=body).json()["results"]
    counts = Counter(of["journal"] for of in metadata().values() if FILTERS["year>=2010"](of))
    for asked in ({"query": "risk of cancer"}, {"like": "d1"}):
        answer = client.get(f"/v1/{index}/search", params=asked | limits | {"facets": "journal,authors"}).json()
        found = [candidate["doc"]["metadata"] for candidate in answer["candidates"]]
        assert found == [metadata()[candidate["docid"]] for candidate in answer["candidates"]]
        assert len(found) == 5 and all(of["year"] >= 2010 for of in found)
        assert [of["impact"] for of in found] == sorted((of["impact"] for of in found), reverse=True)
        assert answer["facets"].keys() == {"journal", "authors"} and answer["facets"]["journal"].keys() <= counts.keys()
        if index == "dense":
            assert answer["facets"]["journal"] == counts
        if "query" in asked:
            assert one["facets"] == answer["facets"]
            assert [hit["doc"] for hit in one["candidates"]] == [hit["doc"] for hit in answer["candidates"]]
    plain = client.get(f"/v1/{index}/search", params={"query": "risk of cancer"}).json()
    assert "facets" not in plain and "metadata" not in client.get(f"/v1/{index}/doc/d10").json()["doc"]


def test_assistants_filter_too(metadata_run: Path) -> None:
    async def scenario(client: Client) -> None:
        (index,) = (await call(client, "list_indexes"))["indexes"]
        assert index["metadata"]["year"] == "number"
        hits = (await call(client, "search", query="risk of cancer", filter="year>=2010"))["hits"]
        assert hits and all(FILTERS["year>=2010"](metadata()[hit["docid"]]) for hit in hits)
        found = await call(client, "search", query='"blood pressure" -cancer', hits=100)
        expected = {id for id, text in texts().items() if "blood pressure" in text and "cancer" not in text}
        assert {hit["docid"] for hit in found["hits"]} == expected and not found["documents_without"]
        nothing = await call(client, "search", query='"pressure of blood"', filter="year>=2010")
        assert not nothing["hits"] and nothing["documents_without"]["quotes"] > 0
        refused = await client.call_tool("search", {"query": "cancer", "filter": "yaer>=2010"})
        assert refused.is_error and "no field 'yaer'" in refused.content[0].text

    session(open_systems([metadata_run], ["bm25"]), scenario)


@pytest.mark.parametrize(
    ("parameter", "value", "reason"),
    [
        ("filter", "yaer>=2010", "filter, character 1: no field 'yaer'; those of this index: year (number), journal"),
        ("filter", 'journal:"BMJ', "filter, character 9: the quotation mark is not closed"),
        ("filter", "(" * 9999, "filter, character 101: expected at most 100"),
        ("filter", "*:* OR contents:a", "filter, character 1: no field '*'"),
        ("filter", "x" * 10_001, "filter: String should have at most 10000 characters"),
        ("sort", "yaer", "sort: no field 'yaer'"),
        ("facets", "journal,yaer", "facets: no field 'yaer'"),
    ],
)
def test_wrong_filters_get_a_reason(client: TestClient, parameter: str, value: str, reason: str) -> None:
    for index in SYSTEMS:
        answer = client.get(f"/v1/{index}/search", params={"query": "cancer", parameter: value})
        assert (answer.status_code, answer.json()["error"][: len(reason)]) == (400, reason)


def test_searches_with_different_filters_are_not_mixed_up(client: TestClient) -> None:
    """Waiting searches are batched, but each keeps its own filter."""
    from concurrent.futures import ThreadPoolExecutor

    def years(year: int) -> set[int]:
        asked = {"query": "risk of cancer", "filter": f"year:{year}"}
        candidates = client.get("/v1/joint/search", params=asked).json()["candidates"]
        return {candidate["doc"]["metadata"]["year"] for candidate in candidates}

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(years, range(1990, 2025))) == [{year} for year in range(1990, 2025)]


def test_facets_of_the_page_link_to_the_documents_they_count(client: TestClient) -> None:
    page = client.get("/", params={"q": "risk of cancer", "a": "dense", "b": "bm25", "hits": 100}).text
    assert "<b>Poe</b>" not in page and "&lt;b&gt;Poe&lt;/b&gt;" in page
    links = re.findall(
        r'<a href="(\./\?[^"]*filter=[^"]*)" dir="auto">([^<]*)</a>\s*<span class="count">([\d,]+)', page
    )
    journals = [(html.unescape(value), link, int(count)) for link, value, count in links if "filter=journal" in link]
    assert {value for value, _, _ in journals} == set(JOURNALS)
    for value, link, count in journals:
        narrowed = client.get(html.unescape(link)).text
        column = narrowed.partition('id="system-2"')[0]
        shown = re.findall(r"<span>journal</span> (.*?)</li>", column.partition("<ol>")[2])
        assert count == column.count("<h3") and {html.unescape(each) for each in shown} == {value}
        first, *_ = re.findall(r'<a href="(\./\?[^"]*filter=[^"]*journal[^"]*)" dir="auto">1990–1994</a>', narrowed)
        years = re.findall(r"<span>year</span> (\d+)", client.get(html.unescape(first)).text.partition("<ol>")[2])
        assert years and {*years} <= {"1990", "1991", "1992", "1993", "1994"}


def options(page: str) -> dict[str, tuple[bool, int, str]]:
    """The label of each value or range -> whether it is chosen, its documents, and its link."""
    pattern = r'<li><a href="([^"]*)" dir="auto"( aria-current="true")?>([^<]*)</a> <span class="count">([\d,]+)'
    found = re.findall(pattern, page.partition('<nav id="filters"')[2])
    return {html.unescape(label): (bool(on), int(count), html.unescape(link)) for link, on, label, count in found}


def test_values_of_a_field_are_alternatives_and_fields_are_combined(client: TestClient) -> None:
    """The faults: a second value excludes the first; a field's counts change with its own values; a count is not the
    number of documents that the link finds."""
    known = [of for of in metadata().values() if of]
    both = [of for of in known if of["journal"] in ("BMJ", "AND")]
    assert "BMJ" in JOURNALS and "AND" in JOURNALS

    def follow(*labels: str) -> str:
        page = client.get("/", params={"q": "risk of cancer", "a": "dense", "hits": 100}).text
        for label in labels:
            page = client.get(options(page)[label][2]).text
        return page

    page = follow("BMJ", "AND")
    found = options(page)
    assert {label: count for label, (_, count, _) in found.items() if label in JOURNALS} == Counter(
        of["journal"] for of in known
    )
    assert found["BMJ"][0] and found["AND"][0] and not found["1990–1994"][0]
    assert found["1990–1994"][1] == sum(1990 <= of["year"] <= 1994 for of in both)
    page = follow("BMJ", "AND", "1990–1994", "2020–2024")
    expected = [of for of in both if of["year"] in (*range(1990, 1995), *range(2020, 2025))]
    assert page.count("<h3") == min(100, len(expected))
    found = options(page)
    assert found["1990–1994"][0] and found["1990"][1] == sum(of["year"] == 1990 for of in both)  # unfolded
    narrowed = options(follow("BMJ", "AND", "1990–1994", "1990"))
    assert narrowed["1990"][0] and not narrowed["1990–1994"][0] and "1991" in narrowed
    assert not any(chosen for chosen, *_ in options(follow("BMJ", "BMJ")).values())
    for typed in ("year>=2010", "published>2010", "year<0", "published>=3000", "NOT year:2000", "impact>=2.5"):
        assert client.get("/", params={"q": "risk of cancer", "a": "bm25", "filter": typed}).status_code == 200


def test_the_page_takes_operators(client: TestClient) -> None:
    page = client.get("/", params={"q": 'risk "blood pressure" -cancer', "a": "dense", "b": "bm25", "hits": 100}).text
    ids = set(re.findall(r"document\?index=\w+&amp;id=(d\d+)", page))
    assert ids == {id for id, text in texts().items() if "blood pressure" in text and "cancer" not in text}
    assert 'value="risk &#34;blood pressure&#34; -cancer"' in page
    assert "query: it only excludes words" in client.get("/", params={"q": "-cancer"}).text


@pytest.mark.parametrize(
    ("query", "filter", "without"),
    [
        ('cancer "blood of pressure"', "", {"quotes"}),
        ('"blood pressure" -pressure', "", {"quotes", "minus", "any of these"}),
        ("cancer", "year:1066", {"the filter"}),
        ('"blood of pressure" -blood', "year>=2010", {"quotes", "any of these"}),
    ],
)
def test_a_page_without_hits_leads_to_some(client: TestClient, query: str, filter: str, without: set[str]) -> None:
    """The fault: the page says that nothing was found, and not by which part of the search."""
    page = client.get("/", params={"q": query, "a": "joint", "filter": filter}).text
    assert "<h3" not in page and ('No document has <b dir="auto">&#34;blood of' in page) == ("blood of" in query)
    ways = re.findall(r'<a href="([^"]+)">Without ([\w ]+): ([\d,]+) documents?</a>', page)
    assert {way for _, way, _ in ways} == without
    for link, _, count in ways:
        assert f"{count} documents have a word of your query" in client.get(html.unescape(link)).text


def test_the_page_explains_a_wrong_filter(client: TestClient) -> None:
    page = client.get("/", params={"q": "cancer", "filter": 'year>="<script>"'})
    assert page.status_code == 200 and "<script>" not in page.text
    assert 'role="alert">filter, character 7: year should be compared with a number' in page.text
    assert 'value="year&gt;=&#34;&lt;script&gt;&#34;"' in page.text
