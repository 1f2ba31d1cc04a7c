"""The files of a run: opened from the page, as they were read, and by nobody else."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from axe_playwright_python.sync_playwright import Axe
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, expect

from cai_pyserini.cli.run import main as run
from cai_pyserini.core.metadata import Value
from cai_pyserini.engine.open import open_systems
from cai_pyserini.engine.search import Engine
from cai_pyserini.service.app import create_app
from cai_pyserini.service.files import open_link
from cai_pyserini.service.guard import Access
from cai_pyserini.service.queue import Service
from tests.collections.test_file_folder import docx, paragraph, pdf
from tests.service.conftest import served

pytestmark = pytest.mark.slow

SCRIPT = "<script>alert(1)</script>"
ODD = 'a "b" % ä\n.md'
COPIES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files, with a run over them."""
    folder = tmp_path_factory.mktemp("files") / "docs"
    (folder / "manuals" / "old").mkdir(parents=True)
    (folder / "manuals" / "pump.pdf").write_bytes(pdf("Cover", "Fever", "The gasket of the pump"))
    (folder / "page.html").write_text(f"<title>Pages</title><p>A gasket {SCRIPT}")
    (folder / "letter.docx").write_bytes(docx(paragraph("Dear gasket")))
    (folder / ODD).write_text("# Odd\nA gasket, naïve")
    (folder / "latin.txt").write_bytes("Die Übersicht der gasket".encode("latin-1"))
    (folder / "changed.txt").write_text("gasket before")
    for number in range(COPIES):
        (folder / "manuals" / "old" / f"leaflet-{number}.txt").write_text("A leaflet of the valve and its seal.")
    for number in range(4):
        (folder / f"valve-{number}.txt").write_text(f"Valve {'filler ' * number}")
    run([str(folder), "--output", str(folder.parent / "run"), "--systems", "bm25", "--passages", "20"])
    (folder / "changed.txt").write_text("gasket after!")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Service(lambda: open_systems([folder.parent / "run"])))) as client:
        yield client


def links(page: str, label: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(rf'<a href="([^"]*)"[^>]*>{label}</a>', page)]


def test_a_hit_leads_to_the_page_of_its_file(client: TestClient, folder: Path) -> None:
    page = client.get("/", params={"q": "gasket pump"}).text
    (link,) = [link for link in links(page, "Open the file") if "pump" in link]
    address, _, place = link.partition("#")
    assert place == "page=3"
    answer = client.get(address)
    assert answer.content == (folder / "manuals" / "pump.pdf").read_bytes()
    assert answer.headers["content-type"] == "application/pdf"
    assert answer.headers["content-disposition"] == 'inline; filename="pump.pdf"'
    document = client.get("/document", params={"index": "bm25", "id": "manuals/pump.pdf", "q": "gasket"}).text
    assert links(document, "Open the file") == [link]
    assert 'aria-label="Open the file a &#34;b&#34; % ä' in page and "%20" not in re.sub('"[^"]*"', "", page)


@pytest.mark.parametrize(
    ("id", "type", "disposition"),
    [
        ("page.html", "application/octet-stream", "attachment"),
        ("letter.docx", "application/octet-stream", "attachment"),
        ('a%20"b"%20%25%20ä%0A.md', "text/plain; charset=utf-8", "inline"),
        ("latin.txt", "text/plain", "inline"),
    ],
)
def test_no_file_can_run_scripts(client: TestClient, id: str, type: str, disposition: str) -> None:
    """The faults: HTML that is shown in the origin of the service; a type that a browser guesses; a broken name."""
    answer = client.get("/file", params={"index": "bm25", "id": id})
    assert (answer.status_code, answer.headers["content-type"]) == (200, type)
    assert answer.headers["content-disposition"].startswith(f"{disposition}; filename")
    assert "\n" not in answer.headers["content-disposition"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].endswith("; sandbox")
    assert "script" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("asked", "status", "length"),
    [
        ("bytes=0-9", 206, 10),
        ("bytes=-5", 206, 5),
        ("bytes=5-", 206, None),
        ("bytes=999999999-", 416, 0),
        ("bytes=9-1", 200, None),
        ("bytes=0-0,2-2", 200, None),
        ("bytes=" + "0-0," * 50_000, 200, None),
        (f"bytes=0-{'9' * 5000}", 200, None),
        ("lines=0-9", 200, None),
        ("bytes=a-b", 200, None),
    ],
)
def test_ranges(client: TestClient, folder: Path, asked: str, status: int, length: int | None) -> None:
    """The faults: a range that is not understood is an error; many ranges take long."""
    whole = (folder / "manuals" / "pump.pdf").read_bytes()
    parameters = {"index": "bm25", "id": "manuals/pump.pdf"}
    answer = client.get("/file", params=parameters, headers={"Range": asked})
    expected = {206: whole[5:] if length is None else whole[:length], 200: whole, 416: b""}[status]
    expected = whole[-5:] if asked == "bytes=-5" else expected
    assert (answer.status_code, answer.content) == (status, expected)
    head = client.head("/file", params=parameters, headers={"Range": asked})
    assert (head.status_code, head.content) == (status, b"")
    assert head.headers["content-length"] == answer.headers["content-length"]


def test_a_client_that_has_the_file_keeps_it(client: TestClient) -> None:
    parameters = {"index": "bm25", "id": "latin.txt"}
    etag = client.get("/file", params=parameters).headers["etag"]
    for sent in (etag, f'"other", W/{etag}', "*"):
        answer = client.get("/file", params=parameters, headers={"If-None-Match": sent})
        assert (answer.status_code, answer.content) == (304, b"")
    stale = client.get("/file", params=parameters, headers={"Range": "bytes=0-0", "If-Range": '"other"'})
    assert stale.status_code == 200


@pytest.mark.parametrize(
    "id", ["../run/results.json", "..%2Frun%2Fresults.json", "/etc/passwd", "manuals", "", ".", "none.txt"]
)
def test_there_is_no_other_file(client: TestClient, folder: Path, id: str) -> None:
    """The faults: a path leads out of the folder; an answer has paths of the server."""
    answer = client.get("/file", params={"index": "bm25", "id": id})
    assert answer.status_code == 404 and str(folder.parent) not in answer.text
    assert client.get("/file", params={"index": "none", "id": "latin.txt"}).status_code == 404


def test_a_file_that_has_changed_is_not_served_as_what_was_found(client: TestClient, folder: Path) -> None:
    answer = client.get("/file", params={"index": "bm25", "id": "changed.txt"})
    assert answer.status_code == 409 and "has changed" in answer.text and "after!" not in answer.text
    (text,) = links(answer.text, "its text as it was read")
    assert "gasket</mark> before" in client.get(f"{text}&q=gasket").text
    (moved := folder / "latin.txt").rename(folder / "latin")
    answer = client.get("/file", params={"index": "bm25", "id": "latin.txt"})
    (folder / "latin").rename(moved)
    assert answer.status_code == 410 and "is not there any more" in answer.text
    assert str(folder) not in answer.text and "<script" not in answer.text


def test_files_need_the_key_and_can_be_kept_from_all(folder: Path) -> None:
    source, parameters = folder.parent / "run", {"index": "bm25", "id": "latin.txt"}
    with TestClient(create_app(Service(lambda: open_systems([source], files=False)), Access(key="k"))) as client:
        for key, status in ((None, 401), ("wrong", 401), ("k", 404)):
            assert (
                client.get("/file", params=parameters, headers={"X-API-Key": key} if key else {}).status_code == status
            )
        page = client.get("/", params={"q": "valve"}, headers={"X-API-Key": "k"}).text
    assert "<h3" in page and "the file</a>" not in page and f"And {COPIES - 1} copies" in page


@pytest.mark.parametrize("sort", ["", "-size"])
def test_copies_are_folded_on_all_pages(client: TestClient, sort: str) -> None:
    """The faults: a page has nothing but copies of what an earlier one has; one is on two pages, or on none."""
    link, pages = f"./?q=valve&a=bm25&hits=2&sort={sort}", []
    while link:
        page = client.get(link).text
        pages.append(re.findall(r'<h3[^>]*><a href="document.*?id=(.*?)(?:%23\d+)?&', page))
        if copies := re.findall(r"And (\d+) copies</summary>\s*<ul>(.*?)</ul>", page):
            assert [(int(count), listed.count("<a ")) for count, listed in copies] == [(COPIES - 1, COPIES - 1)]
        (link,) = [html.unescape(each) for each in re.findall('rel="next" href="(.*?)"', page)] or [""]
    assert [len(shown) for shown in pages] == [2, 2, 1]
    shown = [id for ids in pages for id in ids]
    assert len({*shown}) == 5 and sum("leaflet" in id for id in shown) == 1


def test_hits_of_files_are_accessible(browser: Browser, folder: Path) -> None:
    """With copies unfolded, on a phone and on a desk."""
    with served(folder.parent / "run") as address:
        page = browser.new_page()
        page.goto(f"{address}?q=valve&hits=5")
        page.get_by_text(f"And {COPIES - 1} copies").click()
        expect(page.get_by_role("link", name="manuals/old/leaflet-9.txt")).to_be_visible()
        for width in (400, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
        page.close()


def test_files_on_a_server_are_opened_there() -> None:
    url = "https://example.org/a.pdf", "example.org"
    files: dict[str, Value] = {"path": "a.pdf", "type": "pdf"}
    none = cast(Engine, None)
    assert open_link(none, "i", "a.pdf", url, files, 3) == (f"{url[0]}#page=3", "Open the file")
    assert open_link(none, "i", "a.pdf", url, {"type": "pdf"}, 3) is None


def test_facets_of_files_are_those_that_tell_them_apart(client: TestClient) -> None:
    page = client.get("/", params={"q": "gasket valve"}).text
    assert re.findall("<summary>(\\w+)</summary>", page.split('id="filters"')[1])[0] == "type"
    assert not re.search("<summary>(page|size|path)</summary>", page)
    page = client.get("/", params={"q": "gasket", "filter": "(modified>=2020 AND modified<=2020-05)"}).text
    assert "PDF</li><li>3 pages</li>" in page and "<li>17 May 2020</li>" in page and "2020–May 2020" in page
