"""The text of PDF."""

import re

import pypdfium2
from pypdfium2 import raw as pdfium

from cai_pyserini.collections.formats import MAX_CHARACTERS, NO_TITLE, PAGE, TITLE_LENGTH, Text, Unreadable
from cai_pyserini.collections.text.archive import day_of

HYPHEN = re.compile("[\ufffe\x02]\r?\n?")  # a hyphen at the end of a line, as PDFium writes it
LEADERS = re.compile(r"(?:\. ?){5,}")  # from a title to its page number, in a table of contents


def read_pdf(data: bytes) -> Text:
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise Unreadable("is encrypted" if "password" in str(error) else f"is broken ({error})") from None
    pages, title = [], document.get_metadata_dict(skip_empty=True).get("Title", "")
    changed = re.match(r"D:(\d{4})(\d\d)?(\d\d)?", document.get_metadata_dict().get("ModDate", ""))
    size = 0
    for page in document:
        text_page = page.get_textpage()
        pages.append(LEADERS.sub(" ", HYPHEN.sub("", text_page.get_text_bounded())).replace("\f", " ").strip())
        size += len(pages[-1])
        if size > MAX_CHARACTERS:
            break
        if len(pages) == 1 and (not title or NO_TITLE.match(title)):
            title = _largest_line(text_page)
        text_page.close()
        page.close()
    return Text(title, PAGE.join(pages), len(document), changed and day_of(*(changed[i] or "1" for i in (1, 2, 3))))


def _largest_line(page: pypdfium2.PdfTextPage) -> str:
    """The first characters in a row in the largest font of a page, at most TITLE_LENGTH of them."""
    count = min(page.count_chars(), 3000)
    sizes = [round(pdfium.FPDFText_GetFontSize(page, number)) for number in range(count)]
    if not sizes or max(sizes) == min(sizes):
        return ""
    start = sizes.index(max(sizes))
    end = next((number for number in range(start, count) if 1 < sizes[number] < max(sizes)), count)
    line = HYPHEN.sub("", page.get_text_range(start, end - start)) if end - start <= TITLE_LENGTH else ""
    return line if sum(map(str.isalpha, line)) > len(line) / 2 and not line.startswith("arXiv:") else ""
