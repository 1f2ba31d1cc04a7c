"""Read the text of documents in files, in a process that core.isolated limits: PDF, Office, HTML, EPUB, mail, text.

Nothing is fetched from a network: scripts, images and style sheets are not loaded, entities not resolved.
"""

import codecs
import email
import email.policy
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from email.message import EmailMessage
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote

import mammoth
import openpyxl
import pptx
import py3langid
import pypdfium2
from inscriptis import Inscriptis
from inscriptis.model.config import ParserConfig
from lxml import etree, html
from pypdfium2 import raw as pdfium
from striprtf.striprtf import rtf_to_text

from cai_pyserini.collections.formats import Text
from cai_pyserini.core import isolated

MAX_UNPACKED = 1 << 29  # bytes in an archive such as .docx
MAX_CHARACTERS = 20_000_000  # of a text
MIN_LETTERS = 200  # for guessing a language
SAMPLE = 20_000  # characters for guessing a language
TITLE_LENGTH = 200
PAGE = "\n\f"  # between pages; with white space, as some tokenizers drop the form feed
NOT_READ = "//script | //style | //template | //noscript | //nav | //*[@role='navigation'] | //comment()"
NO_TITLE = re.compile(r"(?i)(microsoft \w+ - )|untitled|document\d*$|presentation\d*$|slide \d+$|\W*$|.*\.\w{2,5}$")
HEADING = re.compile(r"(?m)^#{1,3}\s+(\S.*?)\s*#*$|^(\S.*)\n(?:={3,}|-{3,}|~{3,}|\*{3,})\s*$")
FRONT_MATTER = re.compile(r"---\n(?:(?!---\n).*\n)*---\n")  # of Markdown
TITLE = re.compile(r"(?mi)^title:[ \t]*[\"']?(.+?)[\"']?[ \t]*$")
HYPHEN = re.compile("[\ufffe\x02]\r?\n?")  # a hyphen at the end of a line, as PDFium writes it
LEADERS = re.compile(r"(?:\. ?){5,}")  # from a title to its page number, in a table of contents
CHARSET = re.compile(rb"(?i)charset=|encoding=")
SPACES = re.compile(r"(?<=\S)[^\S\n\f]{2,}")  # in tables; code keeps its indentation
BLANK_LINES = re.compile(r"\n\s*?\n(\s*?\n)+")
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
CORE_DATE = "{http://purl.org/dc/terms/}modified"
ODF_NOT_READ = {"tracked-changes", "annotation", "forms"}  # deleted text, comments
ODF_SPACES = {"s": " ", "tab": "\t", "line-break": "\n"}
ODF_TITLE = "//*[local-name()='h'] | //*[local-name()='frame'][@*[local-name()='class']='title']"
ODF_NAME = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}name"
XML = {"resolve_entities": False, "no_network": True, "load_dtd": False}
Reader = Callable[[bytes], Text]


class Unreadable(Exception):
    """The reason why a file has no text, for people."""


def read_file(call: tuple[bytes, str]) -> tuple[str, Text | isolated.Failed]:
    """The SHA-256 of a file, given its path and format, and its text, or why it has none."""
    path, format = call
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read()
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        return sha256, _finished(READERS[format](data))
    except Unreadable as error:
        return sha256, isolated.Failed(str(error))


def _finished(read: Text) -> Text:
    """The text without needless white space, with title and language. Raises Unreadable if it is empty or too long."""
    text = "".join(character for character in read.text if not "\ud800" <= character <= "\udfff").replace("\0", "")
    text = BLANK_LINES.sub("\n\n", SPACES.sub(" ", text.replace("\r\n", "\n"))).strip(" \n\t\r")
    if not text.strip():
        raise Unreadable("has no text" + (" (scanned?)" if read.pages else ""))
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"has more than {MAX_CHARACTERS:,} characters of text")
    title = " ".join(read.title.encode(errors="ignore").decode().replace("\0", "").split())
    title = "" if NO_TITLE.match(title) else title[:TITLE_LENGTH]
    sample = text[:SAMPLE]
    language = py3langid.classify(sample)[0] if sum(map(str.isalpha, sample)) >= MIN_LETTERS else None
    return read._replace(title=title, text=text, language=language)


def _pdf(data: bytes) -> Text:
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
    return Text(title, PAGE.join(pages), len(document), changed and _day(*(changed[i] or "1" for i in (1, 2, 3))))


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


def _docx(data: bytes) -> Text:
    with _archive(data) as archive:
        title, modified = _properties(archive)
    without_images = mammoth.images.img_element(lambda image: {})
    body = mammoth.convert_to_html(io.BytesIO(data), convert_image=without_images).value
    heading, text = _html_text(body.encode())
    return Text(title or heading, text, modified=modified)


def _pptx(data: bytes) -> Text:
    with _archive(data) as archive:
        title, modified = _properties(archive)
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


def _xlsx(data: bytes) -> Text:
    with _archive(data) as archive:
        title, modified = _properties(archive)
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


def _odf(data: bytes) -> Text:
    """An OpenDocument: text, a spreadsheet or a presentation."""
    with _archive(data) as archive:
        if b"encryption-data" in archive.read("META-INF/manifest.xml"):
            raise Unreadable("is encrypted")
        body = _xml(archive.read("content.xml")).find("{*}body")
        meta = _xml(archive.read("meta.xml")) if "meta.xml" in archive.namelist() else etree.Element("none")
    if body is None:
        raise Unreadable("is broken (it has no body)")
    title, modified = meta.findtext(f".//{DUBLIN_CORE}title"), _iso_day(meta.findtext(f".//{DUBLIN_CORE}date"))
    title = title or next(map(_odf_text, body.xpath(ODF_TITLE)), "")
    if slides := [_odf_text(slide).strip() for slide in body.iterfind("{*}presentation/{*}page")]:
        return Text(title, PAGE.join(slides), len(slides), modified)
    sheets = [(sheet.get(ODF_NAME), _odf_text(sheet)) for sheet in body.iterfind("{*}spreadsheet/{*}table")]
    text = "\n".join(f"{name}\n\n{cells}" for name, cells in sheets if cells.strip()) if sheets else _odf_text(body)
    return Text(title, text, modified=modified)


def _odf_text(element: etree._Element, in_paragraph: bool = False) -> str:
    """The text of an element, with a line per paragraph and per row of a table."""
    name = etree.QName(element).localname if isinstance(element.tag, str) else "comment"
    if name == "comment" or name in ODF_NOT_READ:
        return ""
    if name == "table-row":
        cells = "\t".join(filter(None, (_odf_text(cell).strip() for cell in element)))
        return cells and f"{cells}\n"
    is_paragraph = name in ("p", "h")
    in_paragraph |= is_paragraph  # white space elsewhere is indentation
    parts = [ODF_SPACES.get(name, ""), (in_paragraph and element.text) or ""]
    for child in element:
        parts += [_odf_text(child, in_paragraph), (in_paragraph and child.tail) or ""]
    return "".join(parts) + "\n" * is_paragraph


def _html(data: bytes) -> Text:
    return Text(*_html_text(data))


def _html_text(data: bytes) -> tuple[str, str]:
    """The title of an HTML page, or its first heading, and its text, with tables and code, without navigation."""
    encoding = "utf-8" if _is_utf8(data) else None if CHARSET.search(data[:2048]) else _encoding(data)
    tree = html.document_fromstring(data, html.HTMLParser(encoding=encoding, no_network=True)) if data.strip() else None
    if tree is None:
        return "", ""
    for element in tree.xpath(NOT_READ):
        if element.getparent() is not None:
            element.drop_tree()
    title = next((element.text_content() for name in ("title", "h1", "h2") for element in tree.iter(name)), "")
    for element in tree.xpath("//title"):
        element.drop_tree()
    return title, Inscriptis(tree, ParserConfig()).get_text()


def _epub(data: bytes) -> Text:
    with _archive(data) as archive:
        names = set(archive.namelist())
        container = _xml(archive.read("META-INF/container.xml"))
        package = next(str(path) for path in container.xpath("//*[local-name()='rootfile']/@full-path"))
        book = _xml(archive.read(package))
        files = {item.get("id"): item.get("href", "") for item in book.iter("{*}item")}
        order = [files.get(item.get("idref"), "") for item in book.iter("{*}itemref")]
        paths = [normpath(join(dirname(package), unquote(name))) for name in order if name]
        chapters = [_html_text(archive.read(path))[1] for path in paths if path in names]
        modified = next((_iso_day(item.text) for item in book.iter(f"{DUBLIN_CORE}date")), None)
        return Text(book.findtext(f".//{DUBLIN_CORE}title") or "", "\n\n".join(chapters), modified=modified)


def _eml(data: bytes) -> Text:
    message = email.message_from_bytes(data, policy=email.policy.default)
    body = message.get_body(("plain", "html")) if isinstance(message, EmailMessage) else None
    content = body.get_payload(decode=True) if body else None
    text = ""
    if body and isinstance(content, bytes):
        is_html = body.get_content_subtype() == "html"
        text = _html_text(content)[1] if is_html else _decoded(content, body.get_content_charset())
    names = [name for part in message.walk() if (name := part.get_filename())]
    headers = [f"{name}: {message[name]}" for name in ("From", "To", "Cc", "Date") if message[name]]
    if not headers and not message["Subject"]:
        raise Unreadable("is not a mail: it has no headers")
    attached = [f"Attachments: {', '.join(names)}"] if names else []
    sent = getattr(message["Date"], "datetime", None)
    return Text(
        str(message["Subject"] or ""), "\n".join([*headers, *attached, "", text]), modified=sent and _text(sent)
    )


def _text(day: date) -> str:
    return f"{day.year:04}-{day.month:02}-{day.day:02}"


def _rtf(data: bytes) -> Text:
    source = data.decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise Unreadable("is not RTF")
    found = re.search(r"\{\\info\b.*?\{\\title ([^{}\\]+)\}", source[:SAMPLE], re.DOTALL)
    return Text(found[1] if found else "", rtf_to_text(source, errors="replace"))


def _plain(data: bytes) -> Text:
    text = _decoded(data)
    if "\0" in text:
        raise Unreadable("is not text")
    return Text("", text.replace("\f", "\n"))


def _marked_up(data: bytes) -> Text:
    read = _plain(data)
    front = FRONT_MATTER.match(read.text[:SAMPLE])
    named = front and TITLE.search(front[0])
    found = named or HEADING.search(read.text[front.end() if front else 0 : SAMPLE])
    return read._replace(title=next(filter(None, found.groups()), "") if found else "")


READERS: dict[str, Reader] = {
    "csv": _plain,
    "docx": _docx,
    "eml": _eml,
    "epub": _epub,
    "html": _html,
    "md": _marked_up,
    "odp": _odf,
    "ods": _odf,
    "odt": _odf,
    "pdf": _pdf,
    "pptx": _pptx,
    "rst": _marked_up,
    "rtf": _rtf,
    "txt": _plain,
    "xlsx": _xlsx,
}


def _archive(data: bytes) -> zipfile.ZipFile:
    """Open a zip file. Raises Unreadable for an encrypted one, and for one that would take much memory."""
    if data.startswith(b"\xd0\xcf\x11\xe0"):  # Office's encrypted files, and its old formats
        raise Unreadable("is encrypted, or in a format older than Office 2007")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise Unreadable(f"is broken ({error})") from None
    if any(entry.flag_bits & 1 for entry in archive.infolist()):
        raise Unreadable("is encrypted")
    if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED:
        raise Unreadable(f"unpacks to more than {MAX_UNPACKED >> 20} MiB")
    return archive


def _properties(archive: zipfile.ZipFile) -> tuple[str, str | None]:
    """The title and the day of the last change of an Office file."""
    if "docProps/core.xml" not in archive.namelist():
        return "", None
    core = _xml(archive.read("docProps/core.xml"))
    return core.findtext(f"{DUBLIN_CORE}title") or "", _iso_day(core.findtext(CORE_DATE))


def _xml(data: bytes) -> etree._Element:
    return etree.fromstring(data, etree.XMLParser(**XML))


def _iso_day(text: str | None) -> str | None:
    try:
        return _text(datetime.fromisoformat((text or "").strip()))
    except ValueError:
        return None


def _day(year: str, month: str, day: str) -> str | None:
    return _iso_day(f"{year}-{month}-{day}")


def _decoded(data: bytes, charset: str | None = None) -> str:
    try:
        return data.decode(charset or _encoding(data), errors="replace")
    except LookupError:  # an unknown charset
        return data.decode(_encoding(data), errors="replace")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encoding(data: bytes) -> str:
    """The encoding of a text that does not name one; as browsers assume, if it is not Unicode."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig" if _is_utf8(data) else "cp1252"


if __name__ == "__main__":
    isolated.serve(read_file)
