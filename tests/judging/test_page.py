"""The page: what a judge sees and does not see, and which requests are refused."""

import html
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cai_pyserini.cli.judge import RUBRIC
from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.judging.app import create_app
from cai_pyserini.judging.judgments import Judgments, NotSaved
from cai_pyserini.judging.pool import Pool, next_query, open_pool, shuffled
from cai_pyserini.runs.trec import run_of, write_run
from cai_pyserini.service.guard import Access
from tests.judging.conftest import RELEVANT, SYSTEMS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool(judged_run: Path, topics: Path) -> Pool:
    return open_pool(judged_run, SYSTEMS, 3, topics)


@pytest.fixture
def judgments(tmp_path: Path) -> Judgments:
    return Judgments(tmp_path / "judgments.sqlite", RUBRIC)


@pytest.fixture
def client(pool: Pool, judgments: Judgments) -> Iterator[TestClient]:
    with TestClient(create_app(pool, judgments, 2)) as client:
        yield client


def press(client: TestClient, page: str, action: str, **headers: str) -> str:
    """The page after pressing a button."""
    (target,) = re.findall(f'formaction="([^"]*action={action}&[^"]*)"', page)
    answer = client.post(html.unescape(target), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


def shown(page: str) -> str:
    """The title or id of the document."""
    return html.unescape(re.sub("<.*?>", "", re.findall('<h2 id="title".*?>(.*?)</h2>', page)[0]))


def test_a_pool_has_the_best_of_each_system(pool: Pool, judged_run: Path, topics: Path, tmp_path: Path) -> None:
    assert list(pool.documents) == [f"q/{n}" for n in range(1, len(RELEVANT) + 1)]
    assert all(1 <= len(documents) <= 6 for documents in pool.documents.values())
    alone = [open_pool(judged_run, [name], 3, topics).documents for name in SYSTEMS]
    assert pool.documents == {query: alone[0].get(query, set()) | alone[1][query] for query in pool.documents}
    with pytest.raises(
        CaiError, match=r"dense\.trec is missing or out of date: run the system again, or `cai-pyserini update --eval"
    ):
        open_pool(judged_run, ["dense"], 3, topics)
    (tmp_path / "topics.tsv").write_text("1\tcancer\n2\t \n")
    with pytest.raises(CaiError, match=r"topics\.tsv:2: the query has no text"):
        open_pool(judged_run, SYSTEMS, 3, tmp_path / "topics.tsv")


def test_documents_come_from_the_collection_if_no_index_stores_them(run_folder: Path, tmp_path: Path) -> None:
    for name in ("runs", "results.json", "collection.json", "collection.json.manifest.json"):
        if (run_folder / name).exists():
            (tmp_path / name).symlink_to(run_folder / name)
    found = open_pool(tmp_path, ["bm25", "joint"], 3).text("d3")
    assert found and found.title == "Aromatase" and found.contents.startswith("Aromatase Phytochemicals")


def test_judges_see_neither_systems_nor_ranks_nor_each_other(client: TestClient, pool: Pool) -> None:
    query, documents = "q/1", pool.documents["q/1"]
    assert shuffled("ana", query, documents) == shuffled("ana", query, set(documents))
    assert len({tuple(shuffled(judge, query, documents)) for judge in "abcdefgh"}) > 1
    page = client.get("/", params={"judge": "ana"}).text
    assert "bran of cereals against tumours</h1>" in page and "splade" not in page and "bm25" not in page
    press(client, page, "3")
    other = client.get("/", params={"judge": "ben"}).text
    assert f"0 of {len(documents)} documents" in other and "aria-current" not in other


def test_a_pool_is_judged_with_skip_undo_and_correction(client: TestClient, pool: Pool, judgments: Judgments) -> None:
    page = client.get("/", params={"judge": "ana"}).text
    ids = shuffled("ana", "q/1", pool.documents["q/1"])
    titles = [(pool.text(id) or Stored(id, id, "")).title or id for id in ids]
    assert shown(page) == titles[0]
    page = press(client, page, "2")
    assert shown(page) == titles[1] and f"1 of {len(ids)} documents" in page
    page = press(client, page, "undo")
    assert shown(page) == titles[0] and judgments.of("ana") == {}
    page = press(client, press(client, page, "1"), "skip")
    assert judgments.of("ana") == {"q/1": {ids[0]: 1, ids[1]: None}} and ">skipped<" not in page and ": skipped" in page
    again = client.get("/", params={"judge": "ana", "query": "q/1", "document": ids[0]}).text
    assert shown(again) == titles[0] and re.search(r"action=1&[^>]*aria-current", again)
    page = press(client, again, "3")
    assert shown(page) == titles[2] and judgments.of("ana")["q/1"][ids[0]] == 3
    for _ in ids[2:]:
        page = press(client, page, "0")
    assert "does fiber lower the risk of cancer?</h1>" in page and "ana has judged 1 of 12 queries" in page
    progress = client.get("/progress", params={"judge": "ana"}).text
    assert f"tumours</a>: {len(ids)} of {len(ids)}</li>" in progress


def test_everybody_gets_the_shared_queries_then_those_with_the_fewest_judgments(judgments: Judgments) -> None:
    pool = {query: {"d1", "d2"} for query in "abcde"}

    def judge(name: str, count: int) -> list[str]:
        queries = []
        for _ in range(count):
            query = next_query(pool, judgments.of(name), judgments.counts(), shared=1)
            assert query
            queries.append(query)
            left = pool[query] - judgments.of(name).get(query, {}).keys()
            judgments.add(query, min(left), name, 1)
        return queries

    assert judge("ana", 5) == ["a", "a", "b", "b", "c"]
    assert judge("ben", 6) == ["a", "a", "d", "d", "e", "e"]
    assert judge("ana", 5) == ["c", "d", "d", "e", "e"]
    left = {name: next_query(pool, judgments.of(name), judgments.counts(), 1) for name in ("ana", "ben")}
    assert left == {"ana": None, "ben": "b"}


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"query": "nothing"}, 404),
        ({"document": "nothing"}, 404),
        ({"action": "4"}, 400),
        ({"action": "-1"}, 400),
        ({"judge": " "}, 422),
        ({"judge": "x" * 41}, 422),
    ],
)
def test_what_is_refused(
    client: TestClient, pool: Pool, judgments: Judgments, parameters: dict[str, str], status: int
) -> None:
    good = {"judge": "ana", "query": "q/1", "document": min(pool.documents["q/1"]), "action": "1"}
    assert client.post("/", params=good | parameters).status_code == status
    assert client.post("/", params=good, headers={"Origin": "http://evil.example"}).status_code == 403
    assert judgments.all() == []
    assert client.post("/", params=good, headers={"Origin": "http://testserver"}).status_code == 200
    assert len(judgments.all()) == 1


def test_edited_texts_are_judged_again(client: TestClient, pool: Pool, judgments: Judgments, tmp_path: Path) -> None:
    """The faults: an edited document is not asked for again, its old grade is shown as if it counted, or a page
    opened earlier grades the new text."""
    page = client.get("/", params={"judge": "ana"}).text
    before = press(client, page, "3")
    (edited,) = judgments.of("ana")["q/1"]

    def text(id: str) -> Stored | None:
        return Stored(id, "edited", "edited since") if id == edited else pool.text(id)

    again = Judgments(tmp_path / "judgments.sqlite")
    with TestClient(create_app(pool._replace(text=text), again, 2)) as later:
        page = later.get("/", params={"judge": "ana"}).text
        assert shown(page) == "edited" and "had another text then" in page and "aria-current" not in page
        assert "1 grades do not count" in later.get("/progress", params={"judge": "ana"}).text
        press(later, before, "0")  # this document has not changed
        page = client.get("/", params={"judge": "ana", "query": "q/1", "document": edited}).text
        (old,) = re.findall('formaction="([^"]*action=1&[^"]*)"', page)
        assert later.post(html.unescape(old)).status_code == 409
        press(later, later.get("/", params={"judge": "ana"}).text, "1")
        assert "do not count" not in later.get("/progress", params={"judge": "ana"}).text


def test_runs_of_other_documents_are_refused(judged_run: Path, topics: Path, tmp_path: Path) -> None:
    (tmp_path / "indexes").symlink_to(judged_run / "indexes")
    write_run(run_of({"q/1": [("d1", 2.0), ("gone", 1.0)]}), tmp_path / "runs" / "bm25.trec", "x")
    with pytest.raises(CaiError, match="have documents, such as 'gone', that its indexes and collection do not have"):
        open_pool(tmp_path, ["bm25"], 3, topics)


def test_everything_is_escaped_and_no_other_script_runs(tmp_path: Path) -> None:
    script = "<script>alert('x')</script>"
    judgments = Judgments(tmp_path / "judgments.sqlite", [script, "good"])
    stored = Stored("d&1", script, f"{script} {script}", {"year": 2020, "authors": ["Roe", script]})
    pool = Pool({"q&1": script}, {"q&1": {"d&1"}}, lambda id: stored, "en")
    with TestClient(create_app(pool, judgments, 0)) as client:
        answer = client.get("/", params={"judge": script})
        press(client, answer.text, "0")
        pages = [answer, client.get("/progress", params={"judge": script}), client.get("/")]
        assert all(page.text.count("<script") == 1 and html.escape("</script>") in page.text for page in pages)
        assert f"year: 2020 · authors: Roe, {html.escape(script).replace('&#x27;', '&#39;')}" in answer.text
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'")


@pytest.mark.parametrize(
    ("limit", "reason"), [("max_page_count = 1", "database or disk is full"), ("query_only = 1", "a readonly database")]
)
def test_a_judgment_that_cannot_be_saved(pool: Pool, tmp_path: Path, limit: str, reason: str) -> None:
    """The fault: a judge goes on to the next document while nothing is saved, or sees an error without a reason."""
    judgments = Judgments(tmp_path / "judgments.sqlite", RUBRIC)
    with TestClient(create_app(pool, judgments, 2)) as client:
        page = press(client, client.get("/", params={"judge": "ana"}).text, "1")
        judgments._db.execute(f"PRAGMA {limit}")
        with suppress(NotSaved):
            for number in range(1000):  # until the last page is full
                judgments.add("q/1", "d1", f"judge {number}", 1)
        found = judgments.all()
        for action in ("0", "skip", "undo"):
            (target,) = re.findall(f'formaction="([^"]*action={action}&[^"]*)"', page)
            answer = client.post(html.unescape(target))
            assert answer.status_code == 507 and shown(answer.text) == shown(page)
            assert f'role="alert"><strong>not saved: {tmp_path / "judgments.sqlite"} cannot be written' in answer.text
            assert f"{reason}); make room" in html.unescape(answer.text)
        assert judgments.all() == found
        judgments._db.execute("PRAGMA max_page_count = 1000000")
        judgments._db.execute("PRAGMA query_only = 0")
        assert shown(press(client, page, "0")) != shown(page) and len(judgments.all()) == len(found) + 1


def test_long_texts_show_their_best_passage_and_are_folded(tmp_path: Path) -> None:
    """The fault: a page of megabytes, in which the judge has to find the words of the query."""
    texts = {"short": "A zebra.", "long": "Filler. " * 1000 + "A zebra has stripes. " + "More. " * 100_000}
    pool = Pool({"q": "zebras"}, {"q": {*texts}}, lambda id: Stored(id, "Zebra", f"Zebra {texts[id]}"), "en")
    with TestClient(create_app(pool, Judgments(tmp_path / "judgments.sqlite", RUBRIC), 0)) as client:
        pages = {id: client.get("/", params={"judge": "ana", "query": "q", "document": id}).text for id in texts}
    assert all("A <mark>zebra</mark>" in page and len(page) < 110_000 for page in pages.values())
    assert [page.count("The beginning of the text") for page in pages.values()] == [0, 1]


def test_a_key_is_asked_for(pool: Pool, judgments: Judgments) -> None:
    with TestClient(create_app(pool, judgments, 2, Access("sesame", local=True)), "http://127.0.0.1") as client:
        for path in ("/", "/progress?judge=ana", "/style.css", "/keys.js"):
            assert client.get(path).status_code == 401
            assert client.get(path, auth=("any", "sesame")).status_code == 200
        assert client.post("/", params=dict.fromkeys(("judge", "query", "document", "action"), "1")).status_code == 401
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
