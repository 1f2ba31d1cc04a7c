"""What readers of documents share: zip archives of XML, days, lines and cells, and the font Symbol."""

import io
import re
import zipfile
from datetime import datetime

from lxml import etree

from cai_pyserini.collections.formats import Unreadable

MAX_UNPACKED = 1 << 29  # bytes in an archive such as .docx
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
CORE_DATE = "{http://purl.org/dc/terms/}modified"
XML = {"resolve_entities": False, "no_network": True, "load_dtd": False, "remove_comments": True, "remove_pis": True}
FILE_NAME = re.compile(r"\S*\.\w{2,5}\s*$|\w:\\")  # a description that is only the picture's file
SYMBOLS = {  # of the font Symbol
    **dict(enumerate("ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ", ord("A"))),
    **dict(enumerate("αβχδεφγηιϕκλμνοπθρστυϖωξψζ", ord("a"))),
    **dict(zip(b"\xa3\xa5\xae\xb0\xb1\xb3\xb4\xb5\xb7\xb9\xbb\xd6\xe5\xf2", "≤∞→°±≥×∝•≠≈√∑∫", strict=True)),
}
PRIVATE_USE = {0xF000 + code: character for code, character in SYMBOLS.items()}  # Word and PowerPoint write these


def open_archive(data: bytes) -> zipfile.ZipFile:
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


def xml(data: bytes) -> etree._Element:
    return etree.fromstring(data, etree.XMLParser(**XML))


def local_name(element: etree._Element) -> str:
    """The name of an element in any namespace. Raises Unreadable for an entity, which no office program writes."""
    if not isinstance(element.tag, str):
        raise Unreadable("is broken (it has XML entities)")
    return element.tag.rpartition("}")[2]


def attribute(element: etree._Element, name: str) -> str:
    """An attribute in any namespace."""
    return next((value for key, value in element.items() if key.rpartition("}")[2] == name), "")


def iso_day(text: str | None) -> str | None:
    """The day of a time in ISO 8601; None for anything else."""
    try:
        return datetime.fromisoformat((text or "").strip()).date().isoformat()
    except ValueError:
        return None


def symbol(code: int) -> str:
    """A character of the font Symbol."""
    code = code & 0xFF if 0xF000 <= code <= 0xF0FF else code
    return SYMBOLS.get(code, "" if 0x80 <= code <= 0xFF else chr(code))


def ended_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def without_empty_cells(text: str) -> str:
    return "\n".join("\t".join(filter(str.strip, line.rstrip().split("\t"))) for line in text.split("\n"))
