"""The page: what it shows, and that everything from documents and queries is escaped."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.engine.open import open_index, open_systems
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.service.app import create_app
from cai_pyserini.service.page import url_of
from cai_pyserini.service.queue import Service
from tests.service.conftest import SYSTEMS

pytestmark = pytest.mark.slow

SCRIPT = "<script>alert('x')</script>"
ODD = ["a/b", 'q"uote', "it's", "<script>alert(1)</script>", "50%", "a?b#c", "ä-ö", "{{7*7}}", "../../etc/passwd"]


def links(page: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'(?:href|src|action)="([^"]*)"', page)]


@pytest.fixture(scope="module")
def odd(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server for documents with odd ids, titles and texts, and an index without words."""
    folder = tmp_path_factory.mktemp("odd")
    documents = ({"_id": id, "title": f"{SCRIPT} {id}", "text": f"zebra {SCRIPT} & co"} for id in ODD)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    index = index_bm25(BeirFolder(folder, "odd"), folder / "index", threads=1)
    without_words = run_folder / "indexes" / "splade-idf"
    with TestClient(
        create_app(Service(lambda: {"odd": open_index(index), "splade": open_index(without_words)}))
    ) as client:
        yield client


def test_hits_are_shown_with_marks_and_reasons(client: TestClient) -> None:
    page = client.get("/", params={"q": "bladder infections", "a": "joint", "b": "bm25", "hits": 2}).text
    assert re.findall('<h2 id="system-.">(.*?)</h2>', page) == ["joint", "bm25"]
    assert "<mark>infections</mark>" in page and "<mark>bladder</mark>" in page
    assert len(re.findall("<h3", page)) == 3  # bm25 finds one document
    assert "your words <b>bladder, infections</b>" in page and "related words <b>" in page
    assert "<caption>joint: score" in page
    assert re.findall(r'<option value="(.*?)" selected>(.*?)</option>', page) == [
        ("joint", "joint"), ("bm25", "bm25")
    ]  # fmt: skip
    assert f'<option value="{SYSTEMS[0]}">{SYSTEMS[0]} (recommended)</option>' in page
    assert "SPLADE (words related to those of the documents and the query) and BM25 (the words of the query)" in page
    hybrid = client.get("/", params={"q": "bladder infections"}).text
    assert "your words <b>" in hybrid and '<th scope="row">bm25</th>' in hybrid


def test_passages_are_not_counted_as_documents(passages_run: Path) -> None:
    with TestClient(create_app(Service(lambda: open_systems([passages_run])))) as client:
        page = client.get("/", params={"q": "cancer"}).text
        assert 'placeholder="Search 12 documents"' in page and "3 documents have a word of your query" in page


def test_a_page_without_a_query_or_hits(client: TestClient) -> None:
    empty = client.get("/").text
    assert "autofocus" in empty and "<section" not in empty
    assert "No document was found." in client.get("/", params={"q": "xyzzy", "a": "bm25"}).text
    assert "<h1" in client.get("/", params={"q": "cancer", "a": "nothing", "b": "nothing"}).text
    assert client.get("/", params={"q": "cancer", "hits": "many"}).status_code == 400


def test_words_of_no_document_are_named(client: TestClient) -> None:
    """The faults: documents with a piece of the word are shown as if they had the word, even if it is one letter."""
    page = client.get("/", params={"q": "Hypertonie", "a": "joint"}).text
    assert 'No document has <b dir="auto">Hypertonie</b>.' in page and "<mark" not in page
    assert "Hypertension" in page.split("shares only parts of words</summary>")[1]
    for query, system in (("kubernetes pods", "joint"), ("Erkrankung", SYSTEMS[0])):
        page = client.get("/", params={"q": query, "a": system}).text
        assert "No document was found." in page and "<h3" not in page
    page = client.get("/", params={"q": "the Bildschirm of a bladder", "a": "joint"}).text
    assert 'No document has <b dir="auto">Bildschirm</b>.</p>' in page and "<mark>bladder</mark>" in page
    assert "No document has" not in client.get("/", params={"q": "the bladder", "a": "joint"}).text


def test_pages_of_hits_follow_each_other(client: TestClient) -> None:
    """The fault: a document is on two pages, or the last page leads to another."""
    link, seen = "./?q=cancer+risk&a=joint&hits=3", []
    while link:
        page = client.get(link).text
        seen += re.findall('href="document.*?id=(.*?)&', page)
        (link,) = [html.unescape(each) for each in re.findall('rel="next" href="(.*?)"', page)] or [""]
    found = client.get("/v1/joint/search", params={"query": "cancer risk", "hits": 20}).json()["candidates"]
    assert seen == [hit["docid"] for hit in found] and len(seen) > 3
    assert "No more documents." in client.get("/?q=cancer&a=joint&start=900").text


def test_a_document_is_readable(client: TestClient) -> None:
    page = client.get("/document", params={"index": "joint", "id": "d4", "q": "bladder"}).text
    assert 'id="passage">' in page and '<mark id="match-1">bladder</mark>' in page and "<caption>joint: score" in page
    plain = client.get("/document", params={"index": "joint", "id": "d4"}).text
    assert "<mark" not in plain and 'id="passage"' not in plain
    (more,) = re.findall('<a href="([^"]*)">More like this', page)
    similar = client.get(html.unescape(more)).text
    assert "Documents like" in similar and "<h3" in similar and "id=d4&amp;" not in similar.split("<ol>")[1]
    similar = client.get("/", params={"like": "d1", "a": "bm25"}).text
    assert "words of that document <b>" in similar and "your words" not in similar
    assert client.get("/document", params={"index": "joint", "id": "gone"}).status_code == 404
    assert client.get("/document", params={"index": "gone", "id": "d4"}).status_code == 404


def test_words_of_most_documents_are_no_reason_to_be_like_another(odd: TestClient) -> None:
    page = odd.get("/", params={"like": "50%"}).text
    assert page.count("<h3") == len(ODD) - 1 and "common words" in page and "<mark" not in page


def test_no_document_like_another_passes_the_filter(client: TestClient) -> None:
    page = client.get("/", params={"like": "d1", "a": "bm25", "filter": 'contents:"no such words"'})
    assert page.status_code == 200 and "No document was found that passes the filter" in page.text


def test_a_page_suggests_a_corrected_query(client: TestClient) -> None:
    page = client.get("/", params={"q": "blader & zinc", "a": "bm25", "hits": 3}).text
    ((link, suggested),) = re.findall('Did you mean <a href="([^"]*)" dir="auto">(.*?)</a>', page)
    link = html.unescape(link)
    assert suggested == "bladder &amp; zinc"
    assert "Did you mean" not in client.get(link).text
    found = client.get("/v1/bm25/suggest", params={"query": "blader"}).json()
    assert (found["query"], found["suggestion"]) == ({"text": "blader"}, "bladder")


def test_a_page_loads_nothing_from_elsewhere_and_labels_its_fields(client: TestClient) -> None:
    page = client.get("/", params={"q": "cancer", "b": "bm25"}).text
    assert not re.search(r"<(img|iframe|style)\b", page) and page.count("<script") == 1
    assert all(
        re.match(r"style\.css$|script\.js$|#filters$|document\?|\./$|\./\?", link) for link in links(page)
    )  # even behind a proxy's path
    ids = re.findall(r' id="([^"]+)"', page)
    assert set(re.findall(r' for="([^"]+)"', page)) == {"q", "a", "b", "hits", "filter"} <= set(ids)
    assert len(ids) == len(set(ids))
    assert "url(" not in client.get("/style.css").text and "@import" not in client.get("/style.css").text


def test_operators_and_filters_need_an_index_of_words(odd: TestClient) -> None:
    """The faults: an index without words gives an error instead of hits; one without metadata has no filter."""
    assert all('id="filter"' in odd.get("/", params={"a": name}).text for name in ("odd", "splade"))
    page = odd.get("/", params={"q": 'zebra "bladder infection" -alert', "a": "splade", "b": "odd"}).text
    of_splade, of_odd = page.split('id="system-2"')
    assert "document?index=splade&amp;id=d4" in of_splade and "No document was found." in of_odd
    assert 'role="alert"' in odd.get("/", params={"q": "zebra", "a": "splade", "filter": "contents:alert"}).text


def test_nothing_is_unescaped(odd: TestClient) -> None:
    page = odd.get("/", params={"q": f"zebra {SCRIPT}", "hits": len(ODD)}).text
    page += odd.get("/document", params={"index": "odd", "id": ODD[3], "q": f"zebra {SCRIPT}"}).text
    assert page.count("<script") == 2 and "{{7*7}}" in page and "49" not in re.sub(r"[\d.]{3,}", "", page)
    assert page.count(html.escape("<script>alert(1)</script>").replace("&#x27;", "&#39;")) >= 1


def test_links_lead_to_documents_with_odd_ids(odd: TestClient) -> None:
    page = odd.get("/", params={"q": "zebra", "hits": len(ODD)}).text
    found = [odd.get(link).text for link in links(page) if link.startswith("document?")]
    titles = [
        html.unescape(re.sub("<.*?>", "", title)) for text in found for title in re.findall("<h1.*?>(.*?)</h1>", text)
    ]
    assert sorted(titles) == sorted(f"{SCRIPT} {id}" for id in ODD)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.org/a b", "example.org"),
        ("HTTP://Bob:secret@Example.org:8080/", "example.org"),
        ("https://bank.org@evil.org/", "evil.org"),
        ("http://[::1]:80/", "::1"),
        ("http://[bad", None),
        ("http://example.org:99999/", None),
        ("http://bank.org\\@evil.org/", None),
        ("http://exa%6dple.org/", None),
        ("http:///etc", None),
        ("javascript:alert(1)", None),
        (["https://a"], None),
        (None, None),
    ],
)
def test_a_link_in_metadata_is_one_of_the_web_and_shows_its_host_alone(url: Any, host: str | None) -> None:
    """The faults: a broken address fails the page; what stands before the host is taken for it."""
    assert url_of({"url": url}) == (host and (url, host))
