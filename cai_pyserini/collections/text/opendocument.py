"""The text of OpenDocument: all of it except what a short list names."""

import re
from collections.abc import Iterable
from posixpath import join, normpath

from lxml import etree

from cai_pyserini.collections.formats import HEADING, NO_TITLE, PAGE, LeftOut, Text, Unreadable
from cai_pyserini.collections.text.archive import DUBLIN_CORE, attribute, iso_day, local_name, open_archive, xml
from cai_pyserini.collections.text.lines import LABEL, PRIVATE_USE, ended_line, in_cell

OUT = {  # deleted text, comments, also of formulas, contents of files, programs, prompts of cells, page numbers
    *("tracked-changes", "annotation", "annotation-xml", "binary-data", "script", "event-listeners"),
    *("content-validations", "page-number"),
}
SPACES = {"s": " ", "tab": "\t", "line-break": "\n"}
BLOCKS = {"p", "h", "math", "header-decl", "footer-decl", "date-time-decl"}
ASIDE = {"note", "text-box", "object", "object-ole"}  # what interrupts a sentence where it is anchored
CELLS = {"table-cell", "covered-table-cell"}
VALUES = ("value", "string-value", "date-value", "time-value", "boolean-value")  # a cell's, if its text is not saved
ENTRIES = {"text", "textarea", "formatted-text", "number", "date", "time", "combobox"}  # fields of forms
GENERATED = {"page-count", "sheet-name", "file-name", "date", "time"}  # elements of headers and footers
TITLE = "//*[local-name()='h'] | //*[local-name()='frame'][@*[local-name()='class']='title']"


def read_opendocument(data: bytes) -> Text:
    """An OpenDocument: text, a spreadsheet or a presentation."""
    document = _Document(data)
    content, meta = document.content, document.part("meta.xml")
    body = content.find("{*}body")
    if body is None:
        raise Unreadable("is broken (it has no body)")
    slides = body.findall("{*}presentation/{*}page")
    sheets = body.findall("{*}spreadsheet/{*}table")
    masters = document.masters(is_all=not slides and not sheets)
    if slides or sheets:
        parent = (slides or sheets)[0].getparent()
        rest = [document.text([each for each in parent if each not in {*slides, *sheets}])]
    if slides:
        texts = []
        for slide in slides:
            master = masters.pop(attribute(slide, "master-page-name"), "")
            parts = (document.text([slide]).strip(), *rest, master)
            texts.append("\n".join(filter(None, parts)))
            rest = []
        text = PAGE.join(texts)
    elif sheets:
        named = [(attribute(sheet, "name"), document.text([sheet])) for sheet in sheets]
        named_texts = [f"{name}\n\n{cells}" for name, cells in named if cells.strip()]
        text = "\n".join((*named_texts, *rest, *masters.values()))
    else:
        text = "\n".join((document.text([body]), *masters.values()))
    title = meta.findtext(f".//{DUBLIN_CORE}title") or ""
    if not title or NO_TITLE.match(title):
        document.labels.clear()  # a title has none
        title = next((document.text([found]) for found in body.xpath(TITLE)), title)
    modified = iso_day(meta.findtext(f".//{DUBLIN_CORE}date"))
    return Text(title, text, len(slides) or None, modified, left_out=document.left_out.said())


class _Document:
    """A file, and what is known of it while it is read."""

    def __init__(self, data: bytes):
        self._archive = open_archive(data)
        self._names = set(self._archive.namelist())
        if "META-INF/manifest.xml" in self._names and b"encryption-data" in self._archive.read("META-INF/manifest.xml"):
            raise Unreadable("is encrypted")
        self._seen = set[str]()
        self._controls = list[str]()  # what forms show, which are at the beginning of a text or a page
        self.left_out = LeftOut()
        self._is_template = False  # while master pages are read
        self._lists = list[str]()  # styles of open lists
        self.labels = dict[tuple[str, str], str]()  # words around the numbers of a list, by style and level
        self.styles, self.content = self.part("styles.xml"), self.part("content.xml")
        self._is_text = self.content.find("{*}body/{*}text") is not None
        for part in (self.styles, self.content):
            for level in part.iter("{*}list-level-style-number", "{*}outline-level-style"):
                words = LABEL.findall(f"{attribute(level, 'num-prefix')} {attribute(level, 'num-suffix')}")
                place = attribute(level.getparent(), "name"), attribute(level, "level")
                self.labels[place] = " ".join([*words, ""])

    def part(self, name: str) -> etree._Element:
        return xml(self._archive.read(name)) if name in self._names else etree.Element("none")

    def text(self, elements: Iterable[etree._Element]) -> str:
        out = list[str]()
        for element in elements:
            self._walk(element, out, out, False)
        out += map(ended_line, self._controls)
        self._controls.clear()
        return "".join(out)

    def masters(self, is_all: bool) -> dict[str, str]:
        """The headers, footers and shapes of master pages in use, by name."""
        used = set(self.content.xpath("//@*[local-name()='master-page-name']"))
        texts = {}
        self._is_template = True
        for page in self.styles.iterfind("{*}master-styles/{*}master-page"):
            if is_all or attribute(page, "name") in used:
                lines = dict.fromkeys(map(str.strip, self.text([page]).splitlines()))
                texts[attribute(page, "name")] = "\n".join(line for line in lines if any(map(str.isalnum, line)))
        self._is_template = False
        return texts

    def _walk(self, element: etree._Element, out: list[str], later: list[str], in_text: bool) -> None:
        """Append the text of an element to `out`, and to `later` what follows its paragraph."""
        name = local_name(element)
        if name in OUT or name.endswith("-source") or (self._is_template and self._is_not_shown(element, name)):
            return
        is_description = name in ("title", "desc") and "svg" in element.tag
        if name == "forms":
            for control in element.iter("{*}*"):
                self._controls += _shown_by_control(control)
                self._controls += ["".join(control.itertext())] * (local_name(control) == "p")
        elif name == "table-row":
            aside = list[str]()
            row = self._children(element, [], aside, False)
            out += [ended_line("".join(row).rstrip()), *aside]
        elif name in CELLS:
            if text := in_cell("".join(self._children(element, [], later, False))) or self._value(element):
                out.append(f"{text}\t")
        elif name == "list":
            self._lists.append(attribute(element, "style-name") or "".join(self._lists[-1:]))
            self._children(element, out, later, in_text)
            self._lists.pop()
        elif name in BLOCKS:
            aside = list[str]()
            level = attribute(element, "outline-level") or "1"
            text = "".join(self._children(element, [], aside, name in ("p", "h")))
            is_heading = name == "h" and bool(text.strip())
            gap = "\n" * (is_heading or (self._is_text and not self._lists))
            label = self.labels.get(("Outline", attribute(element, "outline-level")), "")
            out += [gap, HEADING * int(level) if is_heading else "", label, text, f"\n{gap}", *aside]
        elif name in ASIDE or is_description:
            inner = list[str]()
            if name.startswith("object"):
                self._object(element, name, inner)
            text = "".join(self._children(element, inner, inner, is_description)).strip()
            if name == "object" and in_text and "\n" not in text:  # a formula
                out.append(text)
            else:
                later.append(ended_line(text))
        elif name == "ruby-text":  # the pronunciation above characters
            later.append("".join(self._children(element, [], [], True)) + "\n")
        else:
            if name == "list-item":
                out.append(self.labels.get(("".join(self._lists[-1:]), str(len(self._lists))), ""))
            out += [SPACES.get(name, ""), attribute(element, "string-value") if name == "hidden-text" else ""]
            self._children(element, out, later, in_text, "/" if name == "mfrac" else "")
            if name in ("number", "note-citation"):
                out.append(" ")

    def _children(
        self, element: etree._Element, out: list[str], later: list[str], in_text: bool, between: str = ""
    ) -> list[str]:
        out.append(_spaced(element.text, in_text))
        for number, child in enumerate(element):
            out.append(between if number else "")
            self._walk(child, out, later, in_text)
            out.append(_spaced(child.tail, in_text))
        return out

    def _is_not_shown(self, element: etree._Element, name: str) -> bool:
        """Whether an element of a master page is a place for text, or generated, or hidden."""
        return (
            name in GENERATED
            or attribute(element, "display") == "false"
            or (name in ("frame", "custom-shape") and bool(attribute(element, "class")))
        )

    def _value(self, cell: etree._Element) -> str:
        values = [attribute(cell, name) for name in VALUES]
        is_unsaved = attribute(cell, "formula") and not attribute(cell, "value-type")
        self.left_out["cell* without a saved value"] += bool(is_unsaved)
        return next(filter(None, values), "")

    def _object(self, element: etree._Element, name: str, out: list[str]) -> None:
        """Read a formula, a chart or a document in the document."""
        folder = attribute(element, "href")
        part = normpath(join(folder, "content.xml"))
        if part in self._seen or not folder:
            return
        self._seen.add(part)
        if name == "object-ole" or part not in self._names:
            self.left_out["embedded object*"] += 1
        else:
            self._walk(self.part(part), out, out, False)


def _shown_by_control(control: etree._Element) -> list[str]:
    name = local_name(control)
    if name in ("item", "option") and attribute(control, "current-selected") != "true":
        return []
    value = attribute(control, "current-value") or attribute(control, "value")
    return [attribute(control, "label"), value if name in ENTRIES else ""]


def _spaced(text: str | None, in_text: bool) -> str:
    """Text as it is shown: outside of paragraphs, white space is indentation, and single letters are of formulas."""
    shown = re.sub(r"\s+", " ", text or "").translate(PRIVATE_USE)
    return shown if in_text else f" {shown.strip()} " if len(shown.strip()) > 1 else shown.strip()
