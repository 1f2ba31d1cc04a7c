"""The text of HTML and EPUB."""

import re
from posixpath import dirname, join, normpath
from urllib.parse import unquote

from inscriptis import Inscriptis
from inscriptis.model.config import ParserConfig
from lxml import html

from cai_pyserini.collections.formats import Text
from cai_pyserini.collections.text.archive import DUBLIN_CORE, iso_day, open_archive, xml
from cai_pyserini.collections.text.charset import encoding_of, is_utf8

NOT_READ = "//script | //style | //template | //noscript | //nav | //*[@role='navigation'] | //comment()"
CHARSET = re.compile(rb"(?i)charset=|encoding=")


def read_html(data: bytes) -> Text:
    return Text(*html_text(data))


def html_text(data: bytes) -> tuple[str, str]:
    """The title of an HTML page, or its first heading, and its text, with tables and code, without navigation."""
    encoding = "utf-8" if is_utf8(data) else None if CHARSET.search(data[:2048]) else encoding_of(data)
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


def read_epub(data: bytes) -> Text:
    with open_archive(data) as archive:
        names = set(archive.namelist())
        container = xml(archive.read("META-INF/container.xml"))
        package = next(str(path) for path in container.xpath("//*[local-name()='rootfile']/@full-path"))
        book = xml(archive.read(package))
        files = {item.get("id"): item.get("href", "") for item in book.iter("{*}item")}
        order = [files.get(item.get("idref"), "") for item in book.iter("{*}itemref")]
        paths = [normpath(join(dirname(package), unquote(name))) for name in order if name]
        chapters = [html_text(archive.read(path))[1] for path in paths if path in names]
        modified = next((iso_day(item.text) for item in book.iter(f"{DUBLIN_CORE}date")), None)
        return Text(book.findtext(f".//{DUBLIN_CORE}title") or "", "\n\n".join(chapters), modified=modified)
