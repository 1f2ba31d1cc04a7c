"""The text of Word, PowerPoint, Excel and RTF."""

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import mammoth
import openpyxl
import pptx
from striprtf.striprtf import rtf_to_text

from cai_pyserini.collections.formats import MAX_CHARACTERS, NO_TITLE, PAGE, SAMPLE, Text, Unreadable
from cai_pyserini.collections.text.archive import office_properties, open_archive
from cai_pyserini.collections.text.web import html_text


def read_docx(data: bytes) -> Text:
    with open_archive(data) as archive:
        title, modified = office_properties(archive)
    without_images = mammoth.images.img_element(lambda image: {})
    body = mammoth.convert_to_html(io.BytesIO(data), convert_image=without_images).value
    heading, text = html_text(body.encode())
    return Text(title or heading, text, modified=modified)


def read_pptx(data: bytes) -> Text:
    with open_archive(data) as archive:
        title, modified = office_properties(archive)
    slides, first = [], ""
    for slide in pptx.Presentation(io.BytesIO(data)).slides:
        lines = [*_shape_texts(slide.shapes)]
        if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame):
            lines.append(frame.text)
        slides.append("\n".join(lines))
        first = first or (slide.shapes.title.text_frame.text if slide.shapes.title else "")
    title = first if not title or NO_TITLE.match(title) else title
    return Text(title, PAGE.join(slides), len(slides), modified)


def _shape_texts(shapes: Iterable[Any]) -> Iterator[str]:
    for shape in shapes:
        if (inner := getattr(shape, "shapes", None)) is not None:
            yield from _shape_texts(inner)
        elif getattr(shape, "has_table", False):
            for row in shape.table.rows:
                yield "\t".join(cell.text for cell in row.cells)
        elif getattr(shape, "has_text_frame", False):
            yield shape.text_frame.text
        elif getattr(shape, "has_chart", False):
            yield "\t".join(each.text or "" for each in shape.chart.element.iter("{*}t", "{*}v"))


def read_xlsx(data: bytes) -> Text:
    with open_archive(data) as archive:
        title, modified = office_properties(archive)
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    lines, size = [], 0
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # or a cell far away makes all rows as wide
        lines.append(f"{sheet.title}\n")
        for row in sheet.iter_rows(values_only=True):
            if cells := [str(value) for value in row if value is not None]:
                lines.append("\t".join(cells))
                size += len(lines[-1])
        if size > MAX_CHARACTERS:
            break
    return Text(title, "\n".join(lines) if size else "", modified=modified)


def read_rtf(data: bytes) -> Text:
    source = data.decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise Unreadable("is not RTF")
    found = re.search(r"\{\\info\b.*?\{\\title ([^{}\\]+)\}", source[:SAMPLE], re.DOTALL)
    return Text(found[1] if found else "", rtf_to_text(source, errors="replace"))
