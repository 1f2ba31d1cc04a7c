"""Two judges in a real browser: by keyboard, without scripts, for screen readers; then qrels and a verdict."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from cai_pyserini.cli.judge import main
from cai_pyserini.engine.open import index_with_texts
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.judging.judgments import Judgments
from tests.judging.conftest import RELEVANT, SYSTEMS
from tests.service.conftest import started

pytestmark = pytest.mark.slow

RUBRIC = ["not relevant", "related", "relevant", "perfect"]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the judges of all tests have their judgments, each test's under other names."""
    return tmp_path_factory.mktemp("judgments") / "judgments.sqlite"


@pytest.fixture(scope="module")
def address(judged_run: Path, topics: Path, database: Path) -> Iterator[str]:
    rubric = database.with_name("rubric.yaml")
    rubric.write_text(f"rubric: {RUBRIC}\ndepth: 3\nshared: 8\n")
    arguments = ["--config", str(rubric), "--topics", str(topics), "--database", str(database)]
    with started("judge", "serve", str(judged_run), *arguments, "--systems", *SYSTEMS) as (_, address):
        yield address


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Open the page and enter a judge's name. Errors of the page, and requests to other servers, fail the test."""
    errors: list[str] = []

    def open_page(name: str, scripts: bool = True) -> Page:
        page = browser.new_context(java_script_enabled=scripts).new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(address) else errors.append(request.url))
        page.goto(address)
        expect(page.get_by_label("Your name")).to_be_focused()
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=2)).to_be_visible()
        page.wait_for_load_state()  # with the script for keys, which go to what has the focus
        if scripts:
            page.wait_for_function("document.querySelector('main').contains(document.activeElement)")
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    notes = "favicon", "Autofocus processing was blocked because a document already has a focused element."
    assert not [error for error in errors if not any(note in error for note in notes)]


def press(page: Page, button: str) -> None:
    with page.expect_navigation():
        page.get_by_role("button", name=button).click()


def is_relevant(page: Page, titles: dict[str, str]) -> bool:
    query = page.get_by_role("heading", level=1).inner_text()
    return page.get_by_role("heading", level=2).inner_text() == titles[RELEVANT[query]]


def test_two_judges_make_qrels_and_a_verdict(
    opened: Callable[..., Page],
    database: Path,
    judged_run: Path,
    topics: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    index = index_with_texts(RunFolder(judged_run))
    assert index
    stored = {id: index.document(id) for id in RELEVANT.values()}
    titles = {id: document.title or id for id, document in stored.items() if document}
    index.close()

    ana = opened("ana")
    expect(ana.get_by_role("main")).to_be_focused()
    count = 0
    while ana.get_by_role("button").count():
        grade = "3" if is_relevant(ana, titles) else "0"
        with ana.expect_navigation():
            ana.keyboard.press(grade)
        count += 1
    expect(ana.get_by_text("Everything is judged.")).to_be_visible()

    ben = opened("ben", scripts=False)
    for number in range(20):
        grade = 3 if is_relevant(ben, titles) else int(number % 5 == 0)
        press(ben, RUBRIC[grade])
    press(ben, "undo")
    press(ben, "skip")
    made = Judgments(database)
    judged = made.all()
    assert sum(row.judge == "ana" for row in judged) == count and sum(row.judge == "ben" for row in judged) == 19
    assert len(judged) >= 50

    main(["agree", str(database)])
    assert re.search(r"ana and ben +19 +\d+% +0\.\d+ +0\.\d+\ntoo few", capsys.readouterr().out)
    qrels = tmp_path / "qrels.txt"
    main(["export", str(judged_run), str(database), "--topics", str(topics), "--output", str(qrels)])
    assert len(qrels.read_text().splitlines()) == count and " 3\n" in qrels.read_text()
    main(["compare", str(judged_run), *SYSTEMS, str(database), "--topics", str(topics)])
    printed = capsys.readouterr().out
    assert "unjudged of the best 10" in printed and "wins, losses, ties" in printed and "decided" in printed


def test_the_page_is_accessible(opened: Callable[..., Page], address: str) -> None:
    page = opened("cleo")
    page.keyboard.press("2")
    page.get_by_text("Judged for this query").click()
    expect(page.get_by_role("article")).to_be_visible()
    for path in (None, page.get_by_role("link", name="progress").get_attribute("href"), "./"):
        if path:
            page.goto(f"{address}{path}")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
