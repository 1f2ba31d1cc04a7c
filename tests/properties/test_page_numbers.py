"""A word is on the same page in the text, in each passage and in the snippet, whichever pages are empty."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cai_pyserini.collections.file_text import _finished
from cai_pyserini.collections.formats import PAGE, Text
from cai_pyserini.collections.passages import WORDS, passages
from cai_pyserini.engine.highlight import best_snippet

SPACE = st.sampled_from([" ", "\n", "\n\n\n\n", " \n \t\n\n", "\r\n\r\n\r\n", "\x0b", "\x85", "\u2028\n\n\n", "   "])
pages_of_words = st.lists(st.integers(0, 5), min_size=1, max_size=9).filter(any)


def word(page: int, number: int) -> str:
    return f"p{page}w{number}"


@st.composite
def paged_texts(draw: st.DrawFn) -> str:
    """Pages of words that name their page, with any white space around them; some have none."""
    counts = draw(pages_of_words)
    written = (
        "".join(f"{draw(SPACE)}{word(page, number)}{draw(SPACE)}" for number in range(count)) or draw(SPACE)
        for page, count in enumerate(counts, 1)
    )
    return PAGE.join(written)


def check(text: str, first_page: int) -> None:
    for page, on_page in enumerate(text.split("\f"), first_page):
        assert all(each.startswith(f"p{page}w") for each in on_page.split()), (page, text)


@given(paged_texts(), st.integers(1, 9), st.integers(0, 8))
def test_words_stay_on_their_pages(text: str, size: int, overlap: int) -> None:
    """The fault: `\\s` in a pattern removes empty pages, so that page 7 becomes 3."""
    finished = _finished(Text("", text, text.count("\f") + 1)).text
    check(finished, 1)
    assert finished.split() == text.split()
    found = [
        (finished[start:end], page)
        for start, end, page in passages(finished, size, min(overlap, size - 1), is_paged=True)
    ]
    for passage, page in found:
        check(passage, page)
        assert passage.startswith(f"p{page}w")
        strengths = {passage.split()[-1]: 1.0}
        _, breaks = best_snippet(passage, lambda part, of=strengths: of, dict)
        assert passage.split()[-1].startswith(f"p{page + breaks}w")
    assert {each for passage, _ in found for each in passage.split()} == {*text.split()}


@given(pages_of_words, st.integers(1, 9))
def test_characters_stay_on_their_pages(counts: list[int], size: int) -> None:
    """The same in a language without spaces, where two characters count as a word."""
    text = PAGE.join(chr(0x4E00 + page) * count for page, count in enumerate(counts, 1))
    for start, end, first in passages(text, size, 0, "zh", is_paged=True):
        passage = text[start:end]
        for page, on_page in enumerate(passage.split("\f"), first):
            assert {*on_page.strip()} <= {chr(0x4E00 + page)}
        assert passage[0] == chr(0x4E00 + first)


PIECES = [
    "word ",
    "End. ",
    "Big ",
    "E.g. ",
    "x\n",
    "\n\n",
    "\f",
    "- i\n",
    "9 ",
    "a\tb\n",
    " ",
    "文",
    "「はい。」",
    "。",
    "กำ ",
]


@given(st.lists(st.sampled_from(PIECES), max_size=80).map("".join), st.integers(1, 20), st.data())
def test_passages_are_slices_that_cover_the_text(text: str, size: int, data: st.DataObject) -> None:
    """From its first word on: none is empty or too long, and each reaches further than the one before."""
    overlap, language = data.draw(st.integers(0, size - 1)), data.draw(st.sampled_from(["en", "ja", "th"]))
    words = [match.start() for match in re.finditer(WORDS.get(language, r"\S+"), text)] or [0]
    found = passages(text, size, overlap, language)
    assert (found[0].start, found[-1].end) == (words[0], len(text))
    for start, end, _ in found:
        assert start in words and {*words, len(text)} >= {end}
        assert 1 <= sum(start <= word < max(end, 1) for word in words) <= size
    for (start, end, _), (next_start, next_end, _) in pairwise(found):
        assert start < next_start <= end < next_end
