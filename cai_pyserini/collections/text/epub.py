"""The text of EPUB."""

from posixpath import dirname, join, normpath
from unicodedata import normalize
from urllib.parse import unquote

from lxml import etree

from cai_pyserini.collections.formats import HEADING, LeftOut, Text, Unreadable
from cai_pyserini.collections.text.archive import DUBLIN_CORE, iso_day, open_archive, xml
from cai_pyserini.collections.text.web import html_text

CHAPTERS = {"application/x-dtbook+xml", "application/xhtml+xml", "image/svg+xml", "text/html", "text/x-oeb1-document"}
WITHOUT_TEXT = ("audio/", "image/", "video/")
OBFUSCATIONS = {"http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"}  # of fonts
ABOUT = ("creator", "contributor", "subject", "description", "publisher")

Items = dict[str, etree._Element]  # of the manifest, by id


def read_epub(data: bytes) -> Text:
    """An e-book: what it says about itself, its chapters in their order, and those that are in no order."""
    with open_archive(data) as archive:
        names = {_folded(name): name for name in archive.namelist()} | {name: name for name in archive.namelist()}
        encryption = _found(names, "META-INF/encryption.xml")
        encrypted = _encrypted(xml(archive.read(encryption)), names) if encryption else set()
        container = xml(archive.read(_found(names, "META-INF/container.xml") or "META-INF/container.xml"))
        package = next(str(path) for path in container.xpath("//*[local-name()='rootfile']/@full-path"))
        book = xml(archive.read(_found(names, package) or package))
        chapters: dict[str, tuple[str, str]] = {}  # titles and texts
        left_out = LeftOut()
        for item in _in_order(book):
            path = "" if item is None else _found(names, join(dirname(package), item.get("href", "")))
            if item is None or not path:
                left_out["missing chapter*"] += 1
            elif path in encrypted:
                left_out["encrypted chapter*"] += 1
            elif _type(item) not in CHAPTERS:
                left_out[f"{_type(item)} chapter*"] += 1
            elif path not in chapters:
                chapters[path] = html_text(archive.read(path))
    if left_out["encrypted chapter*"] and not any(text for _, text in chapters.values()):
        raise Unreadable("is encrypted")
    title, *more = [element.text or "" for element in book.iter(f"{DUBLIN_CORE}title")] or [""]
    about = more + [element.text or "" for name in ABOUT for element in book.iter(f"{DUBLIN_CORE}{name}")]
    told, texts = {title.strip()}, ["\n".join(html_text(each.encode())[1] for each in about)]
    for heading, text in chapters.values():
        texts.append(text if heading.strip() in text or heading.strip() in told else f"{HEADING}{heading}\n\n{text}")
        told.add(heading.strip())
    return Text(
        title,
        "\n\n".join(texts),
        modified=next((iso_day(date.text) for date in book.iter(f"{DUBLIN_CORE}date")), None),
        left_out=left_out.said(),
    )


def _found(names: dict[str, str], path: str) -> str:
    """The name in an archive of a path that may be percent-encoded or in other case; empty if it is not there."""
    path = normpath(path.partition("#")[0].replace("\\", "/")).lstrip("/")
    return next((names[each] for each in (path, unquote(path), _folded(unquote(path))) if each in names), "")


def _folded(name: str) -> str:
    """A name as file systems compare it that ignore case and compose characters."""
    return normalize("NFC", name).casefold()


def _encrypted(encryption: etree._Element, names: dict[str, str]) -> set[str]:
    """The names of encrypted files, without those of fonts that are only obfuscated."""
    return {
        _found(names, reference.get("URI", ""))
        for each in encryption.iter("{*}EncryptedData")
        if each.find("{*}EncryptionMethod") is None
        or each.find("{*}EncryptionMethod").get("Algorithm") not in OBFUSCATIONS
        for reference in each.iter("{*}CipherReference")
    }


def _in_order(book: etree._Element) -> list[etree._Element | None]:
    """The items of the spine, None if the manifest lacks one, and then other chapters, but not the navigation."""
    items: Items = {item.get("id"): item for item in book.iter("{*}item")}
    order = [_readable(items.get(each.get("idref")), items) for each in book.iter("{*}itemref")]
    others = [item for item in items.values() if item.get("media-type") in CHAPTERS and item not in order]
    order += [item for item in others if "nav" not in item.get("properties", "").split()]
    return [
        item for item in order if item is None or _type(item) in CHAPTERS or not _type(item).startswith(WITHOUT_TEXT)
    ]


def _readable(item: etree._Element | None, items: Items) -> etree._Element | None:
    """An item, or its fallback if it is in a format that readers may lack."""
    seen = set()
    while item is not None and item not in seen and _type(item) not in CHAPTERS:
        seen.add(item)
        item = items.get(item.get("fallback"), item)
    return item


def _type(item: etree._Element) -> str:
    return str(item.get("media-type", "text/html")).partition(";")[0].strip().lower()
