"""Files are found as people look for them: by their names and folders, codes, exact phrases, and in spite of errors."""

from collections.abc import Iterator

import pytest

from cai_pyserini.collections.file_folder import FileFolder, names_of
from cai_pyserini.engine.open import open_index
from cai_pyserini.engine.search import Engine
from cai_pyserini.engine.suggest import unlikelihood
from cai_pyserini.indexes.analyzer import exact_words
from cai_pyserini.indexes.filters import Filters, without_operators
from cai_pyserini.indexes.text_index import index_bm25
from cai_pyserini.service.facets import facets_of

FILES = {
    "debian/handbook/KV-2024_ledger3.txt": "Configure the café of the town: to be or not to be, that is the question.",
    "debian/handbook/en US/annualReport.txt": "Organizing an organization is work. Error E1101 in foo_bar() of Müller.",
    "debian/parts.csv": "screw,12\nnut,7\ncafe,3\nconfigure",
    "readme.txt": "Organized errors in the configuration of a question. "
    + "Filler words go on and on. " * 4
    + "Zebra ends.",
}
KV, ANNUAL, PARTS, README = FILES


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """BM25 over the files, in passages of twelve words."""
    folder = tmp_path_factory.mktemp("files")
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "scan.pdf").write_bytes(b"")  # so that a table is a document
    collection = FileFolder(folder, "files").in_passages(12, 6)
    index = index_bm25(collection, tmp_path_factory.mktemp("index") / "bm25", threads=1)
    with open_index(index) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "filter", "expected"),
    [
        ("handbook", None, {KV, ANNUAL}),
        ("parts.csv", None, {PARTS}),
        ("parts", None, {PARTS}),
        ("ledger3", None, {KV}),
        ("ledger", None, {KV}),
        ('"KV-2024_ledger3"', None, {KV}),
        ("annual report", None, {ANNUAL}),
        ('"e1101"', None, {ANNUAL}),
        ('"bar()"', None, {ANNUAL}),
        ('"to be or not to be"', None, {KV}),  # all of these are stop words
        ('"be or to be"', None, set()),
        ('"organized errors"', None, {README}),
        ('"organizing errors"', None, set()),  # which have the same stems
        ('"a question"', None, {README}),
        ('"CAFE of"', None, {KV}),
        ('"café"', None, {KV, PARTS}),
        ('"Mueller"', None, {ANNUAL}),
        ("question -zebra", None, {KV}),  # in another passage of the document
        ("question -zebras", None, {KV}),
        ('question -"zebras"', None, {KV, README}),
        ("organization", r"NOT (contents:zebra OR path:debian/hand*/*\ US/*)", set()),
        ("organized", "contents:zebra", set()),  # in another passage
        ("question", "folder:debian/handbook", {KV}),
        ("cafe", "folder:debian", {KV, PARTS}),
        ("cafe", "path:debian/*.csv", {PARTS}),
        ("work", {"path": {"like": "debian/*/en US/*"}}, {ANNUAL}),
    ],
)
def test_what_is_found(engine: Engine, query: str, filter: Filters, expected: set[str]) -> None:
    text, filters = without_operators(query)
    found = {hit.id.replace("%20", " ") for hit in engine.search(text, filter=[filter, filters])}
    assert found == expected
    assert (matches := engine.matches(text, [filter, filters])) and matches.documents == len(expected)


@pytest.mark.slow
def test_folders_unfold(engine: Engine) -> None:
    """The fault: the folders of all levels are beside each other, as values of a list are."""

    def folders(filter: str) -> list[tuple[str, int, bool, list[tuple[str, int]]]]:
        _, facets = facets_of(engine, "configure organizing", filter, ())
        (facet,) = (facet for facet in facets if facet.field == "folder")
        return [
            (each.label, each.documents, each.chosen, [(one.label, one.documents) for one in each.finer])
            for each in facet.options
        ]

    assert folders("") == [("debian", 3, False, [])]
    assert folders('folder:"debian"') == [("debian", 3, True, [("handbook", 2)])]
    assert folders('folder:"debian/handbook"')[0][3] == [("handbook", 2)]


@pytest.mark.slow
def test_the_word_that_is_meant_is_suggested(engine: Engine) -> None:
    """The fault: `confgure` becomes a word of another ending with the same stem."""
    assert [engine.suggestion(typed) for typed in ("confgure", "hte qestion", "E1101", "cofnigure")] == [
        *("configure", "the question", None, "configure")
    ]


@pytest.mark.parametrize(
    ("typed", "likelier", "other"),
    [
        ("form", "from", "farm"),
        ("comited", "committed", "omitted"),
        ("hellp", "hello", "hells"),
        ("tge", "the", "tie"),
        ("wark", "work", "dark"),
    ],
)
def test_some_errors_are_likelier(typed: str, likelier: str, other: str) -> None:
    assert unlikelihood(typed, likelier) < unlikelihood(typed, other)


def test_words_of_names_and_of_texts() -> None:
    assert names_of("a/HTTPServer_v2.md") == "a HTTPServer_v2.md HTTPServer v2 HTTP Server v 2"
    assert exact_words("Foo_bar() can't 東京タワー हिन्दी") == ["foo", "bar", "can", "t", *"東京タワー", "हिन्दी"]
