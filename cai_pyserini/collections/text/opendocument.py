"""The text of OpenDocument."""

from lxml import etree

from cai_pyserini.collections.formats import PAGE, Text, Unreadable
from cai_pyserini.collections.text.archive import DUBLIN_CORE, iso_day, open_archive, xml

ODF_NOT_READ = {"tracked-changes", "annotation", "forms"}  # deleted text, comments
ODF_SPACES = {"s": " ", "tab": "\t", "line-break": "\n"}
ODF_TITLE = "//*[local-name()='h'] | //*[local-name()='frame'][@*[local-name()='class']='title']"
ODF_NAME = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}name"


def read_opendocument(data: bytes) -> Text:
    """An OpenDocument: text, a spreadsheet or a presentation."""
    with open_archive(data) as archive:
        if b"encryption-data" in archive.read("META-INF/manifest.xml"):
            raise Unreadable("is encrypted")
        body = xml(archive.read("content.xml")).find("{*}body")
        meta = xml(archive.read("meta.xml")) if "meta.xml" in archive.namelist() else etree.Element("none")
    if body is None:
        raise Unreadable("is broken (it has no body)")
    title, modified = meta.findtext(f".//{DUBLIN_CORE}title"), iso_day(meta.findtext(f".//{DUBLIN_CORE}date"))
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
