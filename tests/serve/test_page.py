"""The page: what it shows, and that nothing in it comes from a document or a query unescaped."""

import html
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cai_pyserini.collection.beir_folder import BeirFolder
from cai_pyserini.index.bm25 import index_bm25
from cai_pyserini.search.open import open_index
from cai_pyserini.serve.app import create_app
from cai_pyserini.serve.service import Service
from tests.serve.conftest import serve

pytestmark = pytest.mark.slow

SCRIPT = "<script>alert('x')</script>"
ODD = ["a/b", 'q"uote', "it's", "<script>alert(1)</script>", "50%", "a?b#c", "ä-ö", "{{7*7}}", "../../etc/passwd"]


class Outline(HTMLParser):
    """Elements that a page must not have, links, and ids that occur twice."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.labels: set[str] = set()
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.links += [value for name in ("href", "src", "action") if (value := values.get(name))]
        self.labels |= {values["for"] or ""} if "for" in values else set()
        self.ids += [values["id"] or ""] if "id" in values else []


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server of documents with odd ids, titles and texts."""
    folder = tmp_path_factory.mktemp("odd")
    documents = ({"_id": id, "title": f"{SCRIPT} {id}", "text": f"zebra {SCRIPT} & co"} for id in ODD)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    index = index_bm25(BeirFolder(folder, "odd"), folder / "index", threads=1)
    with TestClient(create_app(Service(lambda: {"odd": open_index(index)}))) as client:
        yield client


def test_hits_are_shown_with_marked_words_and_reasons(client: TestClient) -> None:
    page = client.get("/", params={"q": "bladder infection", "a": "joint-splade-idf", "b": "bm25", "hits": 2}).text
    assert re.findall("<h1[^>]*>(.*?)</h1>", page) == ["joint-splade-idf", "bm25"]
    assert '<mark class="m4">bladder</mark>' in page
    assert page.count("Why it is here") == 3  # bm25 finds one document
    assert "<caption>joint-splade-idf: score" in page and ">bm25:bladder</th>" in page
    assert "<option selected>joint-splade-idf</option>" in page and "<option selected>bm25</option>" in page


def test_a_page_without_a_query_or_hits(client: TestClient) -> None:
    empty = client.get("/").text
    assert "autofocus" in empty and "<section" not in empty
    assert "No document was found." in client.get("/", params={"q": "xyzzy", "a": "bm25"}).text
    assert "<h1" in client.get("/", params={"q": "cancer", "a": "nothing", "b": "nothing"}).text
    assert client.get("/", params={"q": "cancer", "hits": "many"}).status_code == 400


def test_a_page_asks_for_nothing_elsewhere_and_labels_its_fields(client: TestClient) -> None:
    outline = Outline(client.get("/", params={"q": "cancer", "b": "bm25"}).text)
    assert not {"script", "img", "iframe", "style"} & set(outline.tags)
    assert all(link.startswith("/") and not link.startswith("//") for link in outline.links)
    assert outline.labels == {"q", "a", "b", "hits"} <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    assert "url(" not in client.get("/style.css").text and "@import" not in client.get("/style.css").text


def test_nothing_is_unescaped(odd: TestClient) -> None:
    page = odd.get("/", params={"q": f"zebra {SCRIPT}", "hits": len(ODD)}).text
    assert "<script" not in page and "{{7*7}}" in page and "49" not in re.sub(r"[\d.]{3,}", "", page)
    assert page.count(html.escape("<script>alert(1)</script>").replace("&#x27;", "&#39;")) >= 1


@pytest.mark.parametrize("id", ODD)
def test_links_lead_to_documents_with_odd_ids(odd: TestClient, id: str) -> None:
    page = odd.get("/", params={"q": "zebra", "hits": len(ODD)}).text
    links = [html.unescape(link) for link in Outline(page).links if "/doc/" in link]
    found = [odd.get(link).json() for link in links]
    assert id in [document.get("docid") for document in found]
    assert all(document["doc"]["title"].startswith(SCRIPT) for document in found)


@pytest.fixture
def server(run_folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serve(run_folder, "bm25", "joint-splade-idf") as started:
        yield started


def test_sigterm_finishes_what_has_begun(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    assert address.startswith("http://127.0.0.1:")
    place = address.removeprefix("http://").rstrip("/")
    connections = [HTTPConnection(place, timeout=60) for _ in range(9)]
    for connection in connections:
        assert ask(connection, "/health")["status"] == "ok"
    for number, connection in enumerate(connections[:8]):
        words = "+".join(f"cancer{number}x{word}" for word in range(300))
        connection.request("GET", f"/v1/joint-splade-idf/search?query={words}")
    ask(connections[8], "/health")  # when it is answered, the other requests have been read
    process.send_signal(signal.SIGTERM)
    for connection in connections[:8]:
        assert json.load(connection.getresponse())["candidates"]
    assert process.wait(60) == 0


def ask(connection: HTTPConnection, path: str) -> dict:
    connection.request("GET", path)
    return json.load(connection.getresponse())
