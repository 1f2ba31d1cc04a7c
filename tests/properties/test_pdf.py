"""PDF: every word that a person can write is in the text, or the file's `left_out` says what is not read."""

import io
import re

import pikepdf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cai_pyserini.collections.formats import Text, Unreadable
from cai_pyserini.collections.text.pdf import read_pdf
from tests.made_pdf import IN, PLACES, MadePage, made_pdf

LEFT_OUT = {
    "attached file": r"\d+ attached files?",
    "attached note": r"\d+ attached files?",
    "XFA form": "1 XFA form",
    "scan": r"\d+ pages? without text \(scanned\?\)",
}
Marked = list[list[tuple[str, str]]]  # places and words, by page
LOCKS = {"none": {}, "owner": {"encryption": pikepdf.Encryption(owner="secret", user="")}}


def word(number: int) -> str:
    return "mark" + "".join(chr(ord("a") + int(digit)) for digit in f"{number:03}") + "x"


@st.composite
def marked_pages(draw: st.DrawFn) -> Marked:
    """Words, and places for them on pages, some of which are empty."""
    pages = draw(st.lists(st.lists(st.sampled_from([*PLACES]), max_size=8), min_size=1, max_size=6))
    return [[(place, word(20 * page + n)) for n, place in enumerate(places)] for page, places in enumerate(pages)]


def check(pages: Marked, read: Text, redraw: bool = True) -> None:
    texts = read.text.split("\f")
    assert len(texts) == len(pages) == read.pages
    for number, places in enumerate(pages):
        for place, mark in places:
            if place in LEFT_OUT:
                is_said = any(re.fullmatch(LEFT_OUT[place], said) for said in read.left_out)
                assert is_said or (place == "scan" and texts[number].strip())
            elif place != "stale field" or redraw:  # else, readers show the stale value
                assert (mark in texts[number]) is (place in IN), (place, read)


@pytest.mark.parametrize("place", PLACES)
def test_a_word_anywhere_is_read_or_said(place: str) -> None:
    pages = [[("body", word(1))], [], [(place, word(2))]]
    check(pages, read_pdf(made_pdf(pages)))


@given(marked_pages(), st.sampled_from([0, 90, 180, 270]), st.booleans(), st.sampled_from([*LOCKS]))
def test_words_anywhere_are_read_or_said(pages: Marked, rotate: int, redraw: bool, lock: str) -> None:
    check(pages, read_pdf(made_pdf(pages, rotate, redraw, **LOCKS[lock])), redraw)


@given(marked_pages(), st.data())
def test_a_broken_file_is_read_or_named(pages: Marked, data: st.DataObject) -> None:
    """Cut anywhere, or with a damaged byte: there is a text, or one reason for people."""
    whole = made_pdf(pages)
    place = data.draw(st.integers(0, len(whole) - 1))
    for broken in (whole[:place], whole[:place] + b"\0" + whole[place + 1 :]):
        try:
            read_pdf(broken)
        except Unreadable as error:
            assert re.match(r"is (broken|encrypted)", str(error))


def test_a_page_that_is_not_there_is_said() -> None:
    pdf = pikepdf.open(io.BytesIO(made_pdf([[("body", word(page))] for page in range(3)])))
    pdf.Root.Pages.Kids[1] = pikepdf.Dictionary(Type=pikepdf.Name.Nothing)
    pdf.save(buffer := io.BytesIO())
    read = read_pdf(buffer.getvalue())
    assert read.text.split() == [word(0), word(2)] and read.pages == 3
    assert read.left_out == ("1 broken page",)


def lines(*texts: str) -> list[tuple[str, str]]:
    return [("body", text) for text in texts]


def test_turned_lines_have_breaks() -> None:
    def turned_lines(page: MadePage, text: str) -> None:
        for number, line in enumerate(text.split("|")):
            page.line(line, "0 1 -1 0", x=100 + 14 * number)
            page.lines -= 1

    read = read_pdf(made_pdf([[(turned_lines, "one end1|two end2|three end3")]], rotate=90))
    assert read.text.split("\n") == ["one end1", "two end2", "three end3"]


def hyphenated(page: MadePage, text: str) -> None:
    for line in text.split("|"):
        page.line(line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the infor-|mation, an information", "the information, an information"),
        ("a well-|known, the well-known pump", "a well-known, the well-known pump"),
        ("a well-|known", "a wellknown well-known"),  # either can be found
        ("on COVID-|19 and a|line", "on COVID-19 and a line"),
        ("Smith-|Jones, T-|cells", "Smith-Jones, T-cells"),
        ("INFOR-|MATION or information", "INFORMATION or information"),
        ("http://example.org/a-|bc.html", "http://example.org/a-bc.html"),
        ("state-of-|the-|art, it is the-art", "state-ofthe-art, state-of-the-art, it is the-art"),
        ("multi-|plex-|ing, multiplex, multiplexing", "multiplexing, multiplex, multiplexing"),
        (r"di\013erent, \014eld, e\036cient \015ow, \015|c", "different, field, efficient flow, c"),  # codes of TeX
    ],
)
def test_hyphens_at_ends_of_lines_are_joined_or_stay(text: str, expected: str) -> None:
    """The faults: `COVID-19` and `Smith-Jones` are indexed as one word; `infor-mation` is not found."""
    assert " ".join(read_pdf(made_pdf([[(hyphenated, text)]])).text.split()) == expected


def test_letters_that_are_drawn_apart_are_in_reading_order() -> None:
    """The faults: words of Arabic are reversed if, as Chromium writes them, each letter is drawn and named apart; each
    character of vertical writing is a line."""

    def drawn_apart(page: MadePage, text: str, move: str = "") -> None:
        letters = (f"/Span <</ActualText <FEFF{ord(letter):04X}>>> BDC {move} (n) Tj EMC" for letter in reversed(text))
        page.content.append(f"BT /F1 10 Tf 50 {700 - 99 * page.lines} Td {' '.join(letters)} ET")
        page.lines += 1

    def vertical(page: MadePage, text: str) -> None:
        drawn_apart(page, text[::-1], "0 -12 Td")

    texts = "\u0627\u0644\u0644\u063a\u0629 \u0641\u064a", "\u05e9\u05dc\u05d5\u05dd"
    read = read_pdf(made_pdf([[(drawn_apart, text) for text in texts]]))
    assert read.text.split() == " ".join(texts).split()
    read = read_pdf(made_pdf([[(vertical, "\u7e26\u66f8\u304d\u3002"), *lines("A line of words", "and another")]]))
    assert [*map(str.strip, read.text.split("\n"))] == ["\u7e26\u66f8\u304d\u3002", "A line of words", "and another"]


def test_words_by_groff_have_spaces() -> None:
    """The fault: Ghostscript writes a space as spacing of characters, and two words are read as one."""

    def spaced(page: MadePage, _: str) -> None:
        page.content.append("BT /F1 10 Tf 50 700 Td (prunes) Tj 31.12 0 Td 4 Tc (ss) Tj 14 0 Td 0 Tc (ubgraphs) Tj ET")

    pdf = pikepdf.open(io.BytesIO(made_pdf([[(spaced, "")]])))
    pdf.docinfo["/Creator"] = "groff version 1.22.4"
    pdf.save(buffer := io.BytesIO())
    assert read_pdf(buffer.getvalue()).text == "pruness subgraphs"


CHAPTERS = ["Pumps and valves", "Gaskets", "The turbine hall", "Safety of boilers", "Spare parts"]
TABLE = ["Sweden 4", "Norway 5", "Denmark 6", "Finland 3"]


@pytest.mark.parametrize("leaders", [" . . . . . . . . ", "..........", " "])
@pytest.mark.parametrize("before", [0, 3])
def test_lists_of_contents_are_left_out_and_nothing_is_lost(leaders: str, before: int) -> None:
    """The fault: the entry of a list outranks the chapter. Pages are numbered from 1, after `before` others."""
    contents = [f"{number}. {title}{leaders}{1 + number}" for number, title in enumerate(CHAPTERS, 1)]
    chapters = [lines(f"{number}. {title}", "A text.", *TABLE) for number, title in enumerate(CHAPTERS, 1)]
    index = ["gaskets, 3", "boilers, 5", "turbine, 4, 4-5", "safety, 5", "unknown words, 5"]
    pages = [*[[]] * before, lines("Contents", *contents), *chapters, lines("Index", *index)]
    read = [text.strip() for text in read_pdf(made_pdf(pages)).text.split("\f")]
    assert read[before] == "Contents" and read[-1] == "Index\nunknown words, 5"
    for number, title in enumerate(CHAPTERS, 1):
        assert read[before + number].split("\n") == [f"{number}. {title}", "A text.", *TABLE]


def test_a_list_that_points_elsewhere_stays() -> None:
    """The fault: prices are taken for pages."""
    menu = ["Coffee . . . . . . 3", "Tea . . . . . . 2", "Cake . . . . . . 5"]
    read = read_pdf(made_pdf([lines(*menu), lines("Our coffee, tea and cake are good.")]))
    assert read.text.split()[:6] == ["Coffee", "3", "Tea", "2", "Cake", "5"]
