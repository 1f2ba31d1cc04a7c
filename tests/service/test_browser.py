"""The page in a real browser: with the keyboard, on a phone, for screen readers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.service.conftest import served

pytestmark = pytest.mark.slow

QUERY = "bladder infection"
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def address(run_folder: Path) -> Iterator[str]:
    with served(run_folder, "joint", "bm25", "hybrid-splade-idf-minmax") as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page; the test fails if it reports an error or sends a request to another server."""
    page = browser.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(address) else errors.append(request.url))
    page.goto(address)
    yield page
    page.close()
    assert not [error for error in errors if "favicon" not in error]


def compare(page: Page, first: str = "joint", second: str = "bm25") -> None:
    """Search with two systems."""
    page.get_by_label("System").select_option(first)
    page.get_by_label("beside it").select_option(second)
    page.get_by_role("searchbox", name="Query").fill(QUERY)
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("heading", level=1)).to_have_text([first, second])


def test_the_keyboard_is_enough(page: Page) -> None:
    expect(page.get_by_role("searchbox", name="Query")).to_be_focused()
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    expect(page).to_have_title(f"{QUERY} – search")
    best = page.get_by_role("listitem").first
    expect(best.locator("mark").first).to_be_visible()
    expect(best.get_by_role("table")).to_have_count(0)
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.localName") == "summary":
            break
    page.keyboard.press("Enter")
    expect(best.get_by_role("table").first).to_be_visible()
    expect(best.get_by_role("rowheader").filter(has_text="infect").first).to_be_visible()


def test_two_systems_are_side_by_side_but_stacked_on_a_phone(page: Page) -> None:
    compare(page)
    expect(page.get_by_role("region")).to_have_count(2)
    first, second = (region.bounding_box() for region in page.get_by_role("region").all())
    assert first and second and first["y"] == second["y"] and first["x"] + first["width"] <= second["x"]

    page.set_viewport_size({"width": 360, "height": 740})
    first, second = (region.bounding_box() for region in page.get_by_role("region").all())
    assert first and second and first["x"] == second["x"] and first["y"] + first["height"] <= second["y"]
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    compare(page, second="hybrid-splade-idf-minmax")
    for summary in page.locator("summary").all():
        summary.click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_query_is_kept_and_linked(page: Page, address: str) -> None:
    compare(page)
    page.reload()
    expect(page.get_by_role("searchbox", name="Query")).to_have_value(QUERY)
    expect(page.get_by_label("System")).to_have_value("joint")
    page.get_by_role("main").get_by_role("list").get_by_role("link").first.click()
    assert page.url.startswith(f"{address}v1/joint/doc/")
    page.go_back()
    expect(page.get_by_label("beside it")).to_have_value("bm25")


def test_facets_narrow_the_hits_and_are_accessible(browser: Browser, metadata_run: Path) -> None:
    with served(metadata_run, "joint", "bm25") as address:
        page = browser.new_page()
        page.goto(f"{address}?q=risk+of+cancer&b=bm25")
        page.get_by_role("navigation", name="Filters").get_by_role("link", name="BMJ").click()
        expect(page.get_by_label("Filter", exact=True)).to_have_value('journal:"BMJ"')
        expect(page.get_by_text("journal: BMJ")).to_have_count(20)
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.get_by_label("Filter", exact=True).fill("yaer>=2020")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("filter, character 1: no field 'yaer'")
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.close()
