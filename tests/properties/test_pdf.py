"""PDF: every word that a person can write is in the text, or the file's `left_out` says what is not read."""

import io
import re
from pathlib import Path

import pikepdf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cai_pyserini.collections.formats import Text, Unreadable
from cai_pyserini.collections.text.pdf import read_pdf
from tests.made_pdf import IN, OUT, SAID, MadePage, Where, body, made_pdf, scan, stale_field

PLACES = [*IN, *OUT, *SAID]
LOCKS = {"none": {}, "owner": {"encryption": pikepdf.Encryption(owner="secret", user="")}}


def word(number: int) -> str:
    return "mark" + "".join(chr(ord("a") + int(digit)) for digit in f"{number:03}") + "x"


@st.composite
def marked_pages(draw: st.DrawFn) -> list[list[tuple[Where, str]]]:
    """Words, and places for them on pages, some of which are empty."""
    pages = draw(st.lists(st.lists(st.sampled_from(PLACES), max_size=8), min_size=1, max_size=6))
    return [[(place, word(20 * page + n)) for n, place in enumerate(places)] for page, places in enumerate(pages)]


def check(pages: list[list[tuple[Where, str]]], read: Text, redraw: bool = True) -> None:
    texts = read.text.split("\f")
    assert len(texts) == len(pages) == read.pages
    for number, places in enumerate(pages):
        for place, mark in places:
            if place in SAID:
                assert any(re.fullmatch(SAID[place], said) for said in read.left_out) or (
                    place is scan and texts[number].strip()
                )
            elif place is not stale_field or redraw:  # else, readers show the stale value
                assert (mark in texts[number]) is (place in IN), (place.__name__, read)


@pytest.mark.parametrize("place", PLACES)
def test_a_word_anywhere_is_read_or_said(place: Where) -> None:
    pages = [[(body, word(1))], [], [(place, word(2))]]
    check(pages, read_pdf(made_pdf(pages)))


@given(marked_pages(), st.sampled_from([0, 90, 180, 270]), st.booleans(), st.sampled_from([*LOCKS]))
def test_words_anywhere_are_read_or_said(
    pages: list[list[tuple[Where, str]]], rotate: int, redraw: bool, lock: str
) -> None:
    check(pages, read_pdf(made_pdf(pages, rotate, redraw, **LOCKS[lock])), redraw)
