"""The demo: a page that finds in the browser what Lucene finds, and analyzes words as Anserini does."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.analyzer import Analyzer
from tests.conftest import json_lines

pytestmark = pytest.mark.slow

DEMO: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "demo.py"))
ROOTS = "abat hopp fall fizz tann fil relat condit adopt sky yy toy hesit contr grö"
ENDS = "s es sses ies eed ed ing y ational tional izer bli ousli iveness biliti icate iciti ment ion sion ou ll e 's"
QUERIES = [
    "", "  ", "high blood pressure", "BLADDER infections", "naive", "naïve", "NAÏVE naive", "grosse", "größe", "½ mg",
    "Plasmodium's", "plasmodium’s", "fi\xadber", "ｆｉｂｅｒ", "1,000.5", "a.b:c_d", "the of", "[MASK] cold", "ΟΔΟΣ",
    'cold | \\ "the"', "x" * 300 + " sleep", "İs", "<b>sleep</b>", "cancer " * 300 + "colon", "tab\tnew\nline", "grö",
]  # fmt: skip


@pytest.fixture(scope="module")
def page(browser: Browser, run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    DEMO["write"](run_folder / "indexes" / "joint-splade-idf", output := tmp_path_factory.mktemp("demo"))
    with DEMO["opened"](browser, output, "?q=%3Cb%3Esleep%3C/b%3E") as page:
        yield page


def test_the_page_finds_what_lucene_finds(page: Page, run_folder: Path, tiny: Path) -> None:
    """The fault: another token, weight, variant or order of ties than Lucene's."""
    queries = QUERIES + DEMO["changed"](
        [each["text"] or each["title"] for each in json_lines(tiny / "corpus.jsonl")], 60
    )
    expected = DEMO["found_by_lucene"](run_folder / "indexes" / "joint-splade-idf", queries)
    found = DEMO["found_in_browser"](page, queries)
    assert dict(zip(queries, found, strict=True)) == dict(zip(queries, expected, strict=True))
    words = " ".join(root + end for root in ROOTS.split() for end in ENDS.split())
    assert page.evaluate("async (words) => (await import('./page.js')).index.analyze(words)", words) == Analyzer()(
        words
    )


def test_the_page_shows_hits_while_a_query_is_typed(page: Page) -> None:
    assert page.locator("li mark").first.inner_text() == "Sleep"
    page.locator("summary").first.click()
    assert page.locator("details[open] th[scope=row]").first.inner_text() == "bm25:sleep"
    assert Axe().run(page).violations_count == 0
    page.get_by_role("searchbox").fill("☂")
    expect(page.locator("#status")).to_have_text("No document was found.")


def test_an_index_without_words_is_refused(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="joint indexes"):
        DEMO["write"](run_folder / "indexes" / "splade-idf", tmp_path)
