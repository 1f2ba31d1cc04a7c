"""The page in a real browser: by keyboard, without scripts, on a phone, for screen readers, in any direction."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from cai_pyserini.collections.readers import load_collection
from cai_pyserini.engine.open import open_index
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.service.queue import Service
from tests.conftest import corpus_of
from tests.service.conftest import served

pytestmark = pytest.mark.slow

QUERY = "bladder infection"
KINDS = {"year": "number", "journal": "string", "published": "date", "authors": "list", "pmid": "string"}
MANUAL = "\f".join(
    f"A giraffe.\n\n\n\nChapter {number}\n\n    code of\n    okapis\n\nlegs\t4\nnecks\t1\n\n" + "More filler. " * 3000
    for number in range(4)
)
LARGEST_PAGE = 30_000  # bytes
SCRIPTS = {  # by language: a text, a query, and what is marked
    "ja": ("春になると花粉症の薬を飲む人が増える。", '薬の"花粉症"対策', ["花粉症", "薬"]),
    "zh": ("高血压的治疗方法很多，首先应改变生活方式。", "治疗高血压", ["高血压", "治疗"]),
    "ar": ("القاهرة هي عاصمة مصر.\fفيها مكتبات كثيرة.", "مكتبة", ["مكتبات"]),
    "hi": ("नई दिल्ली में किताबें मिलती हैं।", '"नई दिल्ली" किताब', ["नई", "दिल्ली", "किताबें"]),
}


@pytest.fixture(scope="module")
def address(run_folder: Path) -> Iterator[str]:
    with served(run_folder, "joint", "bm25", "hybrid-splade-idf-minmax") as address:
        yield address


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of documents with long titles and metadata, of which d7 and d8 are long, one from right to left."""
    folder = tmp_path_factory.mktemp("library")
    documents = [
        {
            "_id": f"d{n}",
            "title": "Zebra crossings and their users " * 12,
            "text": f"Filler number {n}. " * fillers + "A zebra is a horse with stripes. " + "More filler. " * fillers,
            "metadata": {
                "year": 1990 + n,
                "journal": ("BMJ", "The Journal of Rather Long Names and Even Longer Volumes")[n % 2],
                "published": f"{1990 + n}-05-17",
                "authors": [f"Author {n % 3}", "Roe, R.", "Doe"],
                "pmid": f"{n:08}",
                "url": f"https://example.org/{n}",
            },
        }
        for n in range(30)
        for fillers in [4000 if n in (7, 8) else 4]
    ]
    documents.append({"_id": "manual", "title": "Manual", "text": MANUAL})
    documents.append({"_id": "rtl", "title": "זברה", "text": "zebra zebra: הזברה היא בעל חיים"})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / "library.yaml").write_text(f"source: {folder}\nmetadata: {json.dumps(KINDS | {'url': 'string'})}\n")
    index = index_bm25(load_collection(str(folder / "library.yaml")), folder / "index", threads=1)
    with served(Service(lambda: {"library": open_index(index)})) as address:
        yield address


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of an index for each language of SCRIPTS."""
    indexes = {}
    for language, (text, *_) in SCRIPTS.items():
        folder = tmp_path_factory.mktemp(language)
        collection = corpus_of(folder / "corpus", {"d": text})
        collection.language = language  # type: ignore[assignment]
        indexes[language] = index_bm25(collection, folder / "index", threads=1)
    with served(Service(lambda: {language: open_index(index) for language, index in indexes.items()})) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str, library: str, scripts: str) -> Iterator[Page]:
    """The page; the test fails if it reports an error or sends a request to another server."""
    page = browser.new_page()
    page.set_default_timeout(120_000)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda sent: None if sent.url.startswith((address, library, scripts)) else errors.append(sent.url)
    )
    page.goto(address)
    yield page
    page.close()
    assert not [error for error in errors if "favicon" not in error]


def test_the_keyboard_is_enough(page: Page) -> None:
    expect(page.get_by_role("searchbox", name="Query")).to_be_focused()
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    expect(page).to_have_title(f"{QUERY} – search")
    hits = page.get_by_role("heading", level=3).get_by_role("link")
    expect(page.locator(".keys")).to_be_visible()  # by the script
    for key, number in (("j", 0), ("j", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        expect(hits.nth(number)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table").first).to_be_visible()
    expect(page.get_by_role("rowheader", name="splade-idf").first).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Query")).to_be_focused()
    page.keyboard.type("jk/")
    expect(page.get_by_role("searchbox", name="Query")).to_have_value("jk/")
    hits.first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#passage mark").first).to_be_in_viewport()
    page.go_back()
    expect(page.get_by_role("searchbox", name="Query")).to_be_visible()


def test_two_systems_are_side_by_side_but_stacked_on_a_phone(page: Page) -> None:
    page.get_by_text("Options").click()
    page.get_by_label("System").select_option("joint")
    page.get_by_label("Compare with").select_option("bm25")
    page.get_by_role("searchbox", name="Query").fill(QUERY)
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("heading", level=2)).to_have_text(["joint", "bm25"])
    page.wait_for_load_state()  # with its style
    first, second = (region.bounding_box() for region in page.get_by_role("region").all())
    assert first and second and first["y"] == second["y"] and first["x"] + first["width"] <= second["x"]
    page.reload()
    expect(page.get_by_role("searchbox", name="Query")).to_have_value(QUERY)
    expect(page.locator("#b")).to_have_value("bm25")

    page.set_viewport_size({"width": 360, "height": 740})
    first, second = (region.bounding_box() for region in page.get_by_role("region").all())
    assert first and second and first["x"] == second["x"] and first["y"] + first["height"] <= second["y"]
    page.get_by_role("link", name="Only joint").click()
    expect(page.get_by_role("region")).to_have_count(1)


def test_hits_come_first_at_every_width(page: Page, library: str) -> None:
    """The faults: forms and filters fill the screen of a phone; a long title or value widens the page."""
    page.goto(f"{library}?q=zebra+stripes&filter=year>%3D1992")
    assert len(page.content().encode()) <= LARGEST_PAGE
    for width, height in ((1280, 800), (800, 700), (400, 640)):
        page.set_viewport_size({"width": width, "height": height})
        expect(page.locator("h3").first).to_be_in_viewport(ratio=1)
        expect(page.locator("li > p:has(mark)").first).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        facets, hits = page.locator("#filters").bounding_box(), page.locator("main").bounding_box()
        assert facets and hits
        assert facets["x"] >= hits["x"] + hits["width"] if width == 1280 else facets["y"] >= hits["y"] + hits["height"]
    page.goto(f"{library}?q=הזברה")
    assert page.locator("h3", has_text="זברה").evaluate("(title) => getComputedStyle(title).direction") == "rtl"


def test_words_are_marked_in_every_script(page: Page, scripts: str) -> None:
    """The faults: all between two spaces or commas is marked, or half a letter; a quote after a Japanese letter is no
    phrase; "Page 2" sets the direction of an Arabic snippet."""
    for language, (_, query, marks) in SCRIPTS.items():
        page.goto(f"{scripts}?{urlencode({'a': language, 'q': query})}")
        snippet = page.locator("li > p:has(mark)")
        assert snippet.locator("mark").all_inner_texts() == marks
        assert snippet.evaluate("(text) => getComputedStyle(text).direction") == ("rtl" if language == "ar" else "ltr")
        page.locator("h3 a").click()
        assert page.locator("#text mark").all_inner_texts() == marks
    page.goto(f"{scripts}?{urlencode({'a': 'hi', 'q': 'किताबेंं'})}")
    page.get_by_role("link", name="किताबें", exact=True).click()
    expect(page.locator("mark")).to_have_text(["किताबें"])
    page.goto(f"{scripts}?{urlencode({'a': 'ja', 'q': '薬の"症粉"'})}")
    expect(page.locator(".missing")).to_contain_text('No document has 粉, "症粉".')


def test_the_pages_are_accessible(page: Page, address: str, library: str) -> None:
    """With everything unfolded."""
    for path in (
        f"{address}?q=bladder+infection+Bildschirm&a=joint&b=hybrid-splade-idf-minmax",
        f"{library}?q=zebra+stirpes&filter=year>%3D1992&hits=3",
        f"{library}?q=zebra&filter=yaer>%3D1992",
        f"{library}document?index=library&id=manual&q=okapi",
    ):
        page.goto(path)
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        for width, scheme in ((400, "light"), (900, "dark"), (1600, "light"), (1600, "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            found = Axe().run(page)
            assert found.violations_count == 0, f"{width} pixels, {scheme}: {found.generate_report()}"


def test_matches_and_contents_lead_through_the_parts_of_a_document(page: Page, library: str) -> None:
    """The faults: the end of a part is the end of the matches; a heading in another part cannot be reached."""
    page.goto(f"{library}document?index=library&id=manual&q=giraffes#page-2")
    expect(page.locator("#page-2")).to_be_in_viewport()
    assert page.locator("#text :is(pre, td, h2)").all_inner_texts()[:4] == [
        "Chapter 0",
        "    code of\n    okapis",
        "legs",
        "4",
    ]
    numbers = []
    for _ in range(3):
        page.keyboard.press("n")
        expect(page.locator("mark:target")).to_be_in_viewport()
        numbers.append((page.get_by_text("Part ").first.inner_text(), page.url.partition("#")[2]))
    assert [part for part, _ in numbers] == ["Part 1 of 4", "Part 2 of 4", "Part 3 of 4"]
    for part in (2, 1):
        page.keyboard.press("p")
        expect(page.get_by_text(f"Part {part} of 4").first).to_be_visible()
    page.get_by_role("navigation", name="Contents").get_by_role("link", name="Chapter 3").click()
    expect(page.get_by_role("heading", name="Chapter 3")).to_be_in_viewport()


def test_without_scripts_facets_narrow_the_hits_and_documents_are_read(browser: Browser, library: str) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.set_default_timeout(120_000)
    page.goto(library)
    page.get_by_role("searchbox", name="Query").fill("zebra stripes")
    page.keyboard.press("Enter")
    expect(page.get_by_text("31 documents have a word of your query")).to_be_visible()
    assert page.url == f"{library}?q=zebra+stripes&a=library"  # to share, without empty parameters
    facets = page.get_by_role("navigation", name="Filters")
    assert facets.locator("summary").all_inner_texts() == ["language", "journal", "authors", "year", "published"]
    facets.get_by_role("link", name="1990–1994").first.click()
    expect(page.get_by_text("5 documents have a word of your query and pass the filter")).to_be_visible()
    facets.get_by_role("link", name="BMJ").click()
    expect(page.get_by_role("heading", level=3)).to_have_count(3)
    page.get_by_text("Sort: best first").click()
    page.get_by_role("link", name="year, largest first").click()
    assert page.locator("li > .note").all_inner_texts() == [f"example.org › d{n}" for n in (4, 2, 0)]
    page.get_by_role("link", name="Remove year: 1990–1994").click()
    expect(page.get_by_role("heading", level=3)).to_have_count(10)
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("heading", level=3)).to_have_count(5)
    results = page.url
    page.locator("h3 a").first.click()
    expect(page.locator("#passage mark", has_text="stripes")).to_be_in_viewport()
    page.get_by_role("link", name="Read on").first.click()
    expect(page.get_by_text("Part 3 of 3").first).to_be_visible()  # the passage is in the second part
    page.get_by_role("link", name="Previous", exact=True).click()
    expect(page.locator("#last-match + mark", has_text="stripes")).to_be_in_viewport()
    page.get_by_role("link", name="All results").click()
    expect(page).to_have_url(results)  # with the filter, the sort and the page
    page.context.close()
