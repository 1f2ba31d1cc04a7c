"""Excerpts within a budget of tokens, and the places of quotes."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

import cai_pyserini as cai
from cai_pyserini.core.errors import CaiError
from cai_pyserini.engine.quotes import find_quote
from cai_pyserini.engine.search import Engine
from cai_pyserini.indexes.searcher import Stored

FILLER = "Nobody knows why this was written down at all. "
CHAPTER = (
    f"{FILLER * 30}\n\nFractures\n\nA hip fracture heals within twelve weeks. It needs rest. {FILLER * 20}\f"
    f"{FILLER * 30}The hip of a child seldom breaks. {FILLER * 30}"
)
TEXTS = {
    "long#1": {"title": "Bones", "text": CHAPTER},
    "short": {"title": "Hip", "text": "A fracture of the hip."},
    "empty": {"title": "hip fracture", "text": ""},
    "other": {"title": "", "text": "Über Zähne: «l’os» 🦴 " + FILLER * 3},
}
QUERY = "how long does a hip fracture take to heal"


@pytest.fixture(scope="module", params=[0, 20], ids=["documents", "passages"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An index of whole documents, and one of passages."""
    folder = tmp_path_factory.mktemp("excerpts") / "run"
    with cai.index(TEXTS, folder, system="bm25", passages=request.param) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 30, 60, 150, 400, 5000])
def test_excerpts_are_slices_of_their_documents_within_the_budget(engine: Engine, budget: int) -> None:
    """The faults: titles or the words before are not counted; letters of several bytes count as one; a cut piece keeps
    the place of the whole; joined passages have a text twice."""
    found = engine.excerpts(QUERY, budget)
    size = sum(len(f"{each.docid}{each.title}{each.before}{each.text}".encode()) for each in found)
    assert size <= 4 * budget and [each.score for each in found] == sorted((e.score for e in found), reverse=True)
    places: dict[str, list[tuple[int, int]]] = {}
    for each in found:
        text = engine.quote(each.docid, each.text)
        assert text.found and each.text == each.text.strip() != ""
        stored = engine.document(each.docid)
        assert stored and stored.contents.removeprefix(f"{stored.title} ")[each.start : each.end] == each.text
        places.setdefault(each.docid, []).append((each.start, each.end))
    for of_document in map(sorted, places.values()):
        assert all(end < start for (_, end), (start, _) in pairwise(of_document))
    assert found or budget < 30


@pytest.mark.slow
def test_the_best_sentences_come_first_with_what_is_before_them(engine: Engine) -> None:
    """The faults: the beginning of a long document in place of what matches; pages counted from the passage; an excerpt
    that begins within a sentence."""
    found = engine.excerpts(f"{QUERY} weeks", 400)
    (chapter,) = (each for each in found if "within twelve weeks" in each.text)
    has_pages = not engine.parts.has_passages  # those of passages are stored, of files that have them
    assert (chapter.docid, chapter.page) == ("long#1", 1 if has_pages else None) and len(chapter.before) <= 80
    assert all(each.text[0].isupper() and each.text[-1] in ".s" for each in found)
    (child,) = (each for each in engine.excerpts("the hip of a child", 200) if "child" in each.text)
    assert child.page == (2 if has_pages else None) and child.before.endswith("written down at all.")
    assert engine.excerpts("xyzzy") == []
    for wrong in ("", " "):
        with pytest.raises(CaiError, match="empty"):
            engine.excerpts(wrong)
    with pytest.raises(CaiError, match="budget_tokens"):
        engine.excerpts(QUERY, 0)


@pytest.mark.slow
def test_a_quote_is_found_by_document(engine: Engine) -> None:
    quote = engine.quote("long#1", "THE HIP of a\nchild seldom breaks")
    assert (quote.found, quote.page, quote.text) == (True, 2, "The hip of a child seldom breaks")
    with pytest.raises(CaiError, match="stores no document 'long'"):
        engine.quote("long", "hip")


@pytest.mark.parametrize(
    ("quote", "there"),
    [
        ("quick brown 'Fox' jumps OVER", "quick-brown “fox” jumps\nover"),
        ("lazy dog.", "la-\nzy dog."),
        ("… istanbul party, and …", "İstanbul party, and"),
        ("血圧の治療", "血圧の治療"),
    ],
)
def test_white_space_hyphens_quotation_marks_and_case_may_differ(quote: str, there: str) -> None:
    text = "The quick-brown “fox” jumps\nover the la-\nzy dog. İstanbul party, and a cat sat on a mat.\f高血圧の治療。"
    found = find_quote(Stored("d", "T", f"T {text}", start=7), quote)
    assert found.found and found.text == there and found.similarity == 1
    assert (found.start, found.end) == (7 + text.index(there), 7 + text.index(there) + len(there))


def test_the_nearest_place_of_a_quote_that_is_not_there() -> None:
    """The faults: a part of a word, or a place that shares a few common words, counts."""
    document = Stored("d", "", FILLER * 1000 + "The cat sat on a mat, and a party began. " + FILLER * 1000)
    near = find_quote(document, "a cat sat on the mat, and the party began")
    assert not near.found and "cat sat on a mat, and a party began" in near.text and 0.5 < near.similarity < 1
    for absent in ("art", "elephants never forget anything"):
        assert find_quote(document, absent).start is None
    with pytest.raises(CaiError, match="no words"):
        find_quote(document, "…!")
