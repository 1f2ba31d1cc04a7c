"""Documents that are zip archives of XML; days as documents write them."""

import io
import zipfile
from datetime import datetime

from lxml import etree

from cai_pyserini.collections.formats import Unreadable

MAX_UNPACKED = 1 << 29  # bytes in an archive such as .docx
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
CORE_DATE = "{http://purl.org/dc/terms/}modified"
XML = {"resolve_entities": False, "no_network": True, "load_dtd": False, "remove_comments": True, "remove_pis": True}


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
