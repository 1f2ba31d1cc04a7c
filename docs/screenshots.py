"""Take the pictures of the pages in docs/images, in Chromium, from a run of the demo collection:

cai-pyserini run hpo --dense minilm
PYTHONPATH=. python docs/screenshots.py runs/hpo/splade-tiny
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from tests.service.conftest import started

IMAGES = Path(__file__).parent / "images"
SYSTEMS = ("--systems", "joint-near", "bm25")
WIDTH, HEIGHT, JUDGE_HEIGHT = 1000, 640, 370


def main(run: str) -> None:
    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        with started("serve", run, *SYSTEMS) as (_, address):
            page.goto(f"{address}?q=short+fingers")
            page.locator("summary", has_text="your words").nth(0).click()
            page.screenshot(path=IMAGES / "page.png")
            page.goto(f"{address}?q=risk+of+heart+attack")
            page.locator("h3 a").nth(0).click()
            page.locator("summary", has_text="your words").click()
            page.screenshot(path=IMAGES / "document.png")
        database = str(Path(folder) / "judgments.sqlite")
        with started("judge", "serve", run, *SYSTEMS, "--database", database) as (_, address):
            page.set_viewport_size({"width": WIDTH, "height": JUDGE_HEIGHT})
            page.goto(f"{address}?judge=ana")
            page.screenshot(path=IMAGES / "judge.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
