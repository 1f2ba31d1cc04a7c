"""Documents with anything in them: every page and answer that shows them is whole, without a tag or link of theirs."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import cai_pyserini as cai
from cai_pyserini import experiments, judging, service
from cai_pyserini.engine.open import open_systems
from cai_pyserini.experiments import report
from cai_pyserini.experiments.experiment import Results
from cai_pyserini.judging.app import create_app as create_judging
from cai_pyserini.judging.judgments import Judgments
from cai_pyserini.judging.pool import Pool
from cai_pyserini.service.app import create_app
from cai_pyserini.service.guard import Guard
from cai_pyserini.service.queue import Service
from tests.service.conftest import listening

pytestmark = pytest.mark.slow

WORD = "zebra"  # of every document
DOCUMENTS = 8
HOSTILE = [
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg/onload=alert(1)>', "' onfocus='alert(1)"),
    *("</title>", "</mark>", "<!--", "<![CDATA[", "<plaintext>", "&lt;b&gt;", "&#60;b&#62;", "<a href=javascript:x>"),
    *("{{ 7 * 7 }}", "{% raw %}", "${x}", "%s%(x)s", "{0}", "javascript:alert(1)", "data:text/html,x", "//example.org"),
    *("http://[bad", "https://", "http://x:y@[::1", "http://h:99999/", "http://a\\b", "https://example.org/#'\"<b>"),
    *("a/b", "../../etc/passwd", "#", "x#0", "?a=b&c", "%", "%00", "%FF", "+", ";", ",", "\\", '\\"', '"', "'", "`"),
    *("AND", "NOT", "OR", "(", ")", ":", ">=", "contents:", "*", "~2", "^", "-", "null", "NaN", "1e400", "__proto__"),
    *map(chr, (0, 1, 8, 9, 10, 11, 12, 13, 27, 28, 127, 0x85, 0xA0, 0xAD, 0x2028, 0xFEFF, 0xFFFE, 0xFFFF, 0x10FFFF)),
    *("\x1b[2J", "\u202e", "\u2066", "\u200f", "\u200b", "\U0001f468\u200d\U0001f469", "İ", "ﬃ", "血"),
    *(WORD, f"{WORD}s", f"{WORD}\f"),
]
LONG = [("x", 5000), ("<", 3000), ("y ", 3000), ("\f", 99), ("\n", 99), ("\u0301", 99)]
characters = st.characters(exclude_categories=["Cs"])
strings = st.builds(
    lambda between, pieces: between.join(pieces),
    st.sampled_from(["", " "]),
    st.lists(
        st.sampled_from(HOSTILE)
        | st.sampled_from(LONG).map(lambda part: part[0] * part[1])
        | st.text(characters, max_size=5),
        max_size=4,
    ),
)
ids = strings.map(lambda text: "".join(text.replace("\0", "").split())[:8000]).filter(bool)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": strings,
    "list": st.lists(strings, max_size=4),
    "number": st.sampled_from(
        [1.7976931348623157e308, -1.7976931348623157e308, 5e-324, -0.0, 0, 1e308, 2**53, -(2**53)]
    )
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-9, 9),
    "date": st.sampled_from(["0001-01-01", "9999-12-31", "0001", "9999-12", "2020-02-29T23:59:59+14:00"])
    | st.dates().map(str),
}
FIELDS = ["url", "page", "pages", "folder", "first", "second", "class", "a.b-c"]  # of metadata; some have a meaning
FILES = {"path": "string", "type": "string", "size": "number", "modified": "date", "folder": "string"}


@st.composite
def collections(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The types of metadata, and documents; the last one has all fields."""
    kinds = {name: draw(st.sampled_from([*VALUES])) for name in FIELDS} | draw(st.sampled_from([{}, FILES]))
    documents = []
    for id in draw(st.lists(ids, min_size=DOCUMENTS, max_size=DOCUMENTS, unique=True)):
        values = {name: draw(VALUES[kind]) for name, kind in kinds.items()}
        text = f"{draw(strings)} {WORD} {draw(strings)}"
        documents.append({"_id": id, "title": draw(strings), "text": text, "metadata": values})
    values |= {name: "x" for name, kind in kinds.items() if kind in ("string", "list")}
    return kinds, documents


class Tags(HTMLParser):
    """The tags of a page with the names of their attributes, and its links."""

    def __init__(self, page: str):
        super().__init__()
        self.found, self.links = set[tuple[str, str]](), list[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, name) for name, _ in (*attributes, ("", None))}
        self.links += [value or "" for name, value in attributes if name in ("href", "src", "action", "formaction")]

    def handle_comment(self, data: str) -> None:
        self.found.add(("!--", data))

    handle_pi = unknown_decl = handle_comment


def tags_of_templates(package: ModuleType) -> set[tuple[str, str]]:
    sources = "".join(path.read_text() for path in Path(package.__path__[0]).glob("*.html.jinja"))
    with_levels = "".join(re.sub("(?<=<h){{.*?}}", level, sources) for level in "123456")  # of headings
    return Tags(re.sub(r"{%.*?%}|{{.*?}}", "", with_levels, flags=re.DOTALL)).found


ALLOWED = {package: tags_of_templates(package) for package in (service, judging, experiments)}
ALLOWED[judging] |= ALLOWED[service]  # its macros


def links_of(page: str, package: ModuleType = service) -> list[str]:
    """The links of a page that lead to others of the service. All have only tags of the templates."""
    tags = Tags(page)
    assert tags.found <= ALLOWED[package], tags.found - ALLOWED[package]
    own = [link for link in tags.links if not link.startswith(("http://", "https://", "#"))]
    assert all(re.match(r"\./|document\?|file\?|progress\?|[a-z]+\.(css|js)$", link) for link in own), own
    return own


@contextmanager
def served(app: Guard) -> Iterator[httpx2.Client]:
    with listening(app) as address, httpx2.Client(base_url=address, timeout=120, follow_redirects=True) as client:
        yield client


def get(client: httpx2.Client, link: str, **parameters: Any) -> Any:
    """The page at a link, or the value of its JSON."""
    answer = client.get(link, params=parameters or None)
    assert answer.status_code == 200, (link, parameters, answer.text[:500])
    if answer.headers["content-type"] != "application/json":
        return answer.text
    return json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} in {link}"))


def call(client: httpx2.Client, tool: str, **arguments: Any) -> Any:
    """The result of an MCP tool."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    answer = client.post("/mcp", json=message, headers={"Accept": "application/json, text/event-stream"})
    assert answer.status_code == 200, answer.text
    result = json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} in {tool}"))["result"]
    assert not result["isError"], (tool, arguments, result)
    return result["structuredContent"]


def check_pages(client: httpx2.Client, system: str, fields: Mapping[str, str]) -> None:
    """Follow some of the links of the results, and of what they lead to."""
    ordered = [sign + name for name, kind in fields.items() if kind in ("number", "date") for sign in ("", "-")]
    pages = [get(client, "/", q=WORD, a=system, b="bm25", hits=DOCUMENTS, sort=order) for order in ("", *ordered[:2])]
    seen = set[str]()
    for most in (32, 8):
        links = {link.partition("#")[0] for page in pages if "<html" in page for link in links_of(page)} - seen
        followed = sorted(links)[:: len(links) // most + 1]
        pages = [get(client, f"/{link.removeprefix('./')}") for link in followed]
        seen.update(followed)
        assert not any("This search is not understood" in page for page in pages)


def check_answers(client: httpx2.Client, system: str, fields: Mapping[str, str], ids: list[str]) -> None:
    """The REST API and MCP show the same documents."""
    counted = [name for name in fields if name != "page"]  # of a passage
    every = {"facets": ",".join(counted), "snippets": True, "hits": DOCUMENTS}
    for order in ("", "-first", "second") if {fields["first"], fields["second"]} <= {"number", "date"} else ("",):
        found = get(client, f"/v1/{system}/search", query=WORD, sort=order, **every)
        assert {hit["docid"] for hit in found["candidates"]} == {*ids}
    body = {
        "queries": [{"qid": f"{id[:90]}{n}", "text": f"{WORD} {id}"[:90]} for n, id in enumerate(ids[:3])],
        "facets": counted,
    }
    assert client.post(f"/v1/{system}/search", json=body).status_code == 200
    found = call(client, "search", query=WORD, index=system, hits=DOCUMENTS)
    assert {hit["docid"] for hit in found["hits"]} == {*ids}
    assert {*call(client, "list_indexes")["indexes"][0]["metadata"]} >= {*counted}
    for id in ids:
        place = quote(id, safe="")
        assert get(client, f"/v1/{system}/doc/{place}")["docid"] == id
        get(client, f"/v1/{system}/doc/{place}", parse=False)
        get(client, f"/v1/{system}/explain", query=WORD, docid=id)
        get(client, f"/v1/{system}/search", like=id)
        get(client, f"/v1/{system}/suggest", query=f"{WORD[:-1]} {id}"[:100])
        assert call(client, "document", docid=id, index=system)["docid"] == id
        call(client, "explain", query=WORD, docid=id, index=system)


def check_judging(folder: Path, engine: cai.Engine, ids: list[str], texts: list[str]) -> None:
    """Judge the documents, for queries with their ids and texts, by a rubric of these."""
    topics = {id: " ".join(f"{WORD} {text}".split()) for id, text in zip(ids[:1], texts, strict=False)}
    pool = Pool(topics, {query: {*ids} for query in topics}, engine.document, "en")
    with served(create_judging(pool, Judgments(folder / "judgments.sqlite", [*texts, "good"][-3:]), 0)) as client:
        for query in topics:
            for id in ids:
                links = links_of(get(client, "/", judge="<b>", query=query, document=id), judging)
                answer = client.post(next(link for link in links if "action=0&" in link))
                assert answer.status_code == 200, answer.text
                links_of(answer.text, judging)
        assert "Everything is judged" in answer.text
        assert Judgments(folder / "judgments.sqlite").of("<b>") == {query: dict.fromkeys(ids, 0) for query in topics}


def check_report(texts: list[str]) -> None:
    first, second, third = texts[:3]
    results = Results(
        collection=first,
        encoder=second,
        split=third,
        systems={"bm25": {}},
        searches={},
        settings={},
        published=[{"system": first, "score": 1e308, "source": second}],
        counts={"documents": 10**30, "lost": 5e-324},
        decision=texts,
        versions={first: second},
        quantization_loss={},
    )
    links_of(report.page(results, {}, 1), experiments)
    report.markdown(results)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a failing example
@settings(max_examples=settings().max_examples // 20, phases=[Phase.generate])
@given(collections(), st.sampled_from(["bm25", "joint"]), st.sampled_from([0, 40]))
def test_every_page_and_answer_is_whole(tmp_path_factory, collection, system: str, passages: int) -> None:
    """The faults: a number of 1e308, or http://[bad as an address, and every search that finds it fails."""
    fields, documents = collection
    folder = tmp_path_factory.mktemp("any")
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    ids, texts = [document["_id"] for document in documents], [document["text"] for document in documents]
    options = {"metadata": fields, "passages": passages, "evaluate": False}
    with cai.run(folder, {system, "bm25"}, folder=folder / "run", **options) as made:
        with served(create_app(Service(lambda: open_systems([folder / "run"])))) as client:
            check_pages(client, system, fields)
            check_answers(client, system, fields, ids)
        check_judging(folder, made[system], ids, texts)
    check_report(texts)
    shutil.rmtree(folder)
