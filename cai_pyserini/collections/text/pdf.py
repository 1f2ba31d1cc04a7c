"""The text of PDF."""

import ctypes
import re
from collections.abc import Iterator
from itertools import pairwise

import pypdfium2
from pypdfium2 import raw as pdfium

from cai_pyserini.collections.formats import (
    HEADING,
    MAX_CHARACTERS,
    NO_TITLE,
    PAGE,
    TITLE_LENGTH,
    LeftOut,
    Text,
    Unreadable,
)
from cai_pyserini.collections.text.archive import iso_day
from cai_pyserini.collections.text.pages import BREAK, joined, without_contents

CONTROLS = re.compile(r"[\0-\x09\x0b-\x1f\x7f-\x9f]")  # bullets and brackets of fonts that do not name them
UNKNOWN = re.compile(r"[\0-\x09\x0b-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]")
MOST_UNKNOWN = 0.2  # largest share of a page's characters
# What TeX's encodings have instead of these ligatures, where a font does not name them.
LIGATURES = dict(zip("\x0b\x0c\r\x0e\x0f\x1b\x1c\x1d\x1e\x1f", ("ff", "fi", "fl", "ffi", "ffl") * 2, strict=True))
LIGATURE = re.compile(r"(?<=[a-z])[\x0b-\x0f\x1b-\x1f](?!\s*[A-Z\d])|[\x0b-\x0f\x1b-\x1f](?=[a-z]{2})")
RIGHT_TO_LEFT = re.compile("[\u0590-\u065f\u066e-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]{2,}")  # without digits
# Between characters of vertical writing, which PDFium takes for lines.
VERTICAL = re.compile(
    "(?m)(?<=^[\u3001-\u30ff\u3400-\u9fff\uff01-\uff60])\n(?=[\u3001-\u30ff\u3400-\u9fff\uff01-\uff60]$)"
)
HEADING_LINES = 3  # of a heading, at most
LEAST_SPACE = 0.12  # smallest gap between words, as a share of a line's height
NO_TEXT = {  # annotations: links, comments, and marks that comments belong to
    pdfium.FPDF_ANNOT_LINK,
    pdfium.FPDF_ANNOT_TEXT,
    pdfium.FPDF_ANNOT_POPUP,
    pdfium.FPDF_ANNOT_HIGHLIGHT,
    pdfium.FPDF_ANNOT_UNDERLINE,
    pdfium.FPDF_ANNOT_SQUIGGLY,
    pdfium.FPDF_ANNOT_STRIKEOUT,
    pdfium.FPDF_ANNOT_CARET,
    pdfium.FPDF_ANNOT_FILEATTACHMENT,
}
XFA = {pdfium.FORMTYPE_XFA_FULL, pdfium.FORMTYPE_XFA_FOREGROUND}


def read_pdf(data: bytes) -> Text:
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise Unreadable("is encrypted" if "password" in str(error) else f"is broken ({error})") from None
    document.init_forms()  # draws the values of fields
    metadata = document.get_metadata_dict()
    title, has_spaces = metadata["Title"], not metadata["Creator"].startswith("groff")
    changed = re.match(r"D:(\d{4})(\d\d)?(\d\d)?", metadata["ModDate"])
    pages, size, left_out = list[str](), 0, LeftOut()
    left_out["attached file*"] = document.count_attachments()
    left_out["XFA form*"] = document.get_formtype() in XFA
    for number in range(len(document)):
        try:
            page = document[number]
        except pypdfium2.PdfiumError:
            left_out["broken page*"] += 1
            pages.append("")
            continue
        if not number and (not title or NO_TITLE.match(title)):
            title = _largest_line(page.get_textpage())
        on_page, is_empty = list(_annotations(page)), not pdfium.FPDFPage_CountObjects(page)
        left_out["attached file*"] += sum(kind == pdfium.FPDF_ANNOT_FILEATTACHMENT for kind, _ in on_page)
        if not all(kind in NO_TEXT for kind, _ in on_page):
            pdfium.FPDFPage_Flatten(page, pdfium.FLAT_NORMALDISPLAY)
            page.close()
            page = document[number]
        text_page = page.get_textpage()
        text = "\n".join([_text(text_page, has_spaces=has_spaces), *(text for _, text in on_page if text)])
        if not (is_empty or text.strip()):
            left_out["page* without text (scanned?)"] += 1
        if (unknown := UNKNOWN.findall(text)) and len(unknown) > MOST_UNKNOWN * len(text):
            left_out["page* in fonts that do not name their characters"] += 1
        pages.append(CONTROLS.sub(" ", text) if unknown else text)
        text_page.close()
        page.close()
        if (size := size + len(text)) > MAX_CHARACTERS:
            break
    if not any(map(str.strip, pages)):
        del left_out["page* without text (scanned?)"]  # which is said of the whole file
    _add_bookmarks(document, pages)
    return Text(
        title.replace(BREAK, ""),
        PAGE.join(page.strip(" \n\t\r") for page in without_contents(joined(pages))),
        len(document),
        iso_day(changed and "-".join(part or "01" for part in changed.groups())),
        left_out=left_out.said(),
    )


def _text(page: pypdfium2.PdfTextPage, start: int = 0, count: int = -1, has_spaces: bool = True) -> str:
    """Text of a page. PDFium leaves words of Arabic as they are drawn, from left to right, if each letter is drawn
    apart, as Chromium does."""

    def turned(word: re.Match[str]) -> str:
        letters = [place for place, letter in enumerate(word[0], word.start()) if letter.isalpha()]
        if len(letters) < 2:
            return word[0]
        (left, bottom, *_), (last_left, last_bottom, *_) = (_box(page, first + letters[i]) for i in (0, -1))
        return word[0][::-1] if last_left - left > abs(last_bottom - bottom) else word[0]

    text, first = page.get_text_range(start, count), max(0, pdfium.FPDFText_GetTextIndexFromCharIndex(page, start))
    read = RIGHT_TO_LEFT.sub(turned, text)
    read = VERTICAL.sub("", (read if has_spaces else _spaced(page, read)).replace("\r\n", "\n"))
    return LIGATURE.sub(lambda found: LIGATURES[found[0]], read)


def _box(page: pypdfium2.PdfTextPage, place: int) -> tuple[float, float, float, float]:
    """Left, bottom, right and top of a character of the text."""
    return page.get_charbox(max(0, pdfium.FPDFText_GetCharIndexFromTextIndex(page, place)), loose=True)


def _spaced(page: pypdfium2.PdfTextPage, text: str) -> str:
    """A text with all spaces. Ghostscript makes spacing of characters of groff's distances, which PDFium ignores."""
    boxes = ((character, _box(page, place)) for place, character in enumerate(text))
    gaps = [0.0]
    for (one, (_, bottom, right, top)), (other, (left, *_)) in pairwise(boxes):
        gaps.append(0.0 if one.isspace() or other.isspace() else (left - right) / (top - bottom or 1.0))
    around = zip(text, gaps, [0.0, *gaps], [*gaps[1:], 0.0], strict=False)
    return "".join(
        f" {character}" if gap > max(LEAST_SPACE, 2 * before, 2 * after) else character
        for character, gap, before, after in around
    )


def _annotations(page: pypdfium2.PdfPage) -> Iterator[tuple[int, str]]:
    """The kinds of a page's annotations, and their text if none is drawn."""
    for number in range(pdfium.FPDFPage_GetAnnotCount(page)):
        annotation = pdfium.FPDFPage_GetAnnot(page, number)
        kind = pdfium.FPDFAnnot_GetSubtype(annotation)
        has_text = kind == pdfium.FPDF_ANNOT_FREETEXT and not pdfium.FPDFAnnot_HasKey(annotation, b"AP")
        yield kind, _contents(annotation) if has_text else ""
        pdfium.FPDFPage_CloseAnnot(annotation)


def _contents(annotation: pdfium.FPDF_ANNOTATION) -> str:
    length = pdfium.FPDFAnnot_GetStringValue(annotation, b"Contents", None, 0)
    buffer = (ctypes.c_ushort * (length // 2))()
    pdfium.FPDFAnnot_GetStringValue(annotation, b"Contents", buffer, length)
    return bytes(buffer).decode("utf-16-le", errors="ignore").rstrip("\0").replace("\r", "\n")


def _add_bookmarks(document: pypdfium2.PdfDocument, pages: list[str]) -> None:
    """Mark lines that are bookmarks as headings. Put bookmarks with words that their page does not have, or no page, at
    its beginning, or that of the first."""
    words = dict[int, set[str]]()
    for bookmark in document.get_toc():
        target = bookmark.get_dest()
        page = min((target and target.get_index()) or 0, len(pages) - 1)
        title = CONTROLS.sub(" ", bookmark.get_title())
        mark = HEADING * (bookmark.level + 1)
        if page not in words:
            words[page] = set(re.findall(r"\w+", pages[page].casefold().replace(BREAK, "")))
        if title in pages[page] or words[page].issuperset(re.findall(r"\w+", title.casefold())):
            pages[page] = _with_heading(pages[page], title, mark)
        else:
            pages[page] = f"{mark}{title}\n\n{pages[page]}"


def _with_heading(page: str, title: str, mark: str) -> str:
    """A page with a mark before the first lines that are a title, perhaps numbered."""
    lines, sought = page.split("\n"), _letters(title)
    for first, line in enumerate(lines):
        found, end = _letters(line), first + 1
        while found and found != sought and sought.startswith(found) and end < min(len(lines), first + HEADING_LINES):
            found, end = found + _letters(lines[end]), end + 1
        if found and found == sought:
            heading = [f"\n{mark}{line}", *lines[first + 1 : end], ""]
            return "\n".join([*lines[:first], *heading, *lines[end:]])
    return page


def _letters(text: str) -> str:
    """What tells titles apart, without the number before one."""
    return "".join(filter(str.isalnum, text.casefold())).lstrip("0123456789")


def _largest_line(page: pypdfium2.PdfTextPage) -> str:
    """The first characters in a row in the largest font of a page, at most TITLE_LENGTH of them."""
    count = min(page.count_chars(), 3000)
    sizes = [round(pdfium.FPDFText_GetFontSize(page, number)) for number in range(count)]
    if not sizes or max(sizes) == min(sizes):
        return ""
    start = sizes.index(max(sizes))
    end = next((number for number in range(start, count) if 1 < sizes[number] < max(sizes)), count)
    line = _text(page, start, end - start) if end - start <= TITLE_LENGTH else ""
    return line if sum(map(str.isalpha, line)) > len(line) / 2 and not line.startswith("arXiv:") else ""
