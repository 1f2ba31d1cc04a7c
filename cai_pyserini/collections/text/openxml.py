"""The text of the XML parts of Office files, transitional and strict: all of it except what a short list names.

Elements are known by their local names. A paragraph and a row of a table become lines. What interrupts a sentence where
it is anchored (notes, text boxes, charts, readings of characters, descriptions of pictures) follows its paragraph.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from posixpath import basename, dirname, join, normpath
from typing import ClassVar, NamedTuple
from urllib.parse import unquote

from lxml import etree, html

from cai_pyserini.collections.formats import HEADING, NO_TITLE, LeftOut, Text, Unreadable
from cai_pyserini.collections.text.archive import (
    CORE_DATE,
    DUBLIN_CORE,
    XML,
    attribute,
    iso_day,
    local_name,
    open_archive,
    xml,
)
from cai_pyserini.collections.text.lines import (
    FILE_NAME,
    PRIVATE_USE,
    ended_line,
    in_cell,
    shown_by_field,
    symbol,
    without_empty_cells,
)

OUT = {  # deleted and moved text; positions of tabs; the workbook of a chart; readings that Excel does not show
    *("del", "moveFrom", "delText", "delInstrText", "tabs", "tabLst", "externalData", "rPh", "phoneticPr")
}
BREAKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
PRINTED = {"oddHeader", "evenHeader", "firstHeader", "oddFooter", "evenFooter", "firstFooter"}  # of sheets and charts
PRINT_CODE = re.compile(r'&(?:"[^"]*"|K[\dA-F]{6}|\d+|([LCR])|(&)|[A-Z])')
RESULT = "\0"
ESCAPED = re.compile(r"_x([\dA-Fa-f]{4})_")
STYLE = re.compile(r"(?i)(?:title|heading ([1-9]))$")
TITLES = 2  # levels of headings that can be the title of a document
SILENT = {  # relations to what has no text of its own, or is read at another place or not at all
    *("hyperlink", "image", "comments", "slide", "slideLayout", "slideMaster", "notesSlide", "notesMaster", "ctrlProp"),
    *("diagramDrawing", "diagramLayout", "diagramQuickStyle", "diagramColors", "audio", "video", "media", "theme"),
    *("font", "attachedTemplate", "mailMergeSource", "printerSettings", "customProperty", "footnotes", "endnotes"),
}


class Relation(NamedTuple):
    kind: str
    target: str  # the name of a part, or an address
    is_external: bool


Relations = dict[str, Relation]


class Flow(NamedTuple):
    """Where text goes: `later` follows the paragraph, and outside of a paragraph is `out`."""

    links: Relations
    out: list[str]
    later: list[str]

    def inner(self, later: list[str] | None = None) -> "Flow":
        out = list[str]()
        return Flow(self.links, out, out if later is None else later)

    def text(self) -> str:
        return "".join(self.out)


class Package:
    """An Office file, and what is known of it while its parts are read."""

    def __init__(self, data: bytes, include: Callable[[bytes], Text], out: Iterable[str] = ()):
        """`include` reads a document in the document; `out` are more elements that are not read."""
        self.archive = open_archive(data)
        self._names = {name.replace("\\", "/").lower(): name for name in self.archive.namelist()}
        self._include = include
        self._out = OUT.union(out)
        self._seen = set[str]()
        self._fields = list[list[str]]()  # the instructions of open fields, with RESULT while their result is read
        core = next(
            (part for part in ("docProps/core.xml", *self.related("", "core-properties")) if self.has(part)), ""
        )
        properties = xml(self.read(core)) if core else etree.Element("none")
        self.title = unescaped(properties.findtext(f"{DUBLIN_CORE}title") or "")
        self.modified = iso_day(properties.findtext(CORE_DATE))
        self.heading = ""
        self.headings = dict[str, int]()  # levels of styles
        self.lists = dict[str, tuple[str, str]]()  # id and level of the list by style
        self.labels = dict[tuple[str, str], str]()  # words before the number, such as "Article", by list and level
        self.notes = dict[tuple[str, str], tuple[etree._Element, Relations]]()
        self.furniture = dict[str, None]()  # parts with headers and footers
        self.is_template = False  # while masters and layouts are read, whose placeholders are not shown
        self.left_out = LeftOut()

    def finished(self, text: str, pages: int | None = None) -> Text:
        """What a reader returns, titled by a heading if the properties have no title that says something."""
        title = self.heading if not self.title or NO_TITLE.match(self.title) else self.title
        return Text(title, text, pages, self.modified, left_out=self.left_out.said())

    def has(self, part: str) -> bool:
        return part.lower() in self._names

    def read(self, part: str) -> bytes:
        return self.archive.read(self._names[part.lower()])

    def stream(self, part: str, name: str) -> Iterator[etree._Element]:
        """Yield elements with a name while a large part is parsed, and at last its root without them."""
        with self.archive.open(self._names[part.lower()]) as file:
            for _, element in (parsed := etree.iterparse(file, tag=f"{{*}}{name}", **XML)):
                if element.getroottree().docinfo.internalDTD is not None:
                    raise Unreadable("is broken (it has a DTD)")
                yield element
                element.clear()
                while element.getprevious() is not None:
                    del element.getparent()[0]
            yield parsed.root

    def relations(self, part: str) -> Relations:
        """The relations of a part by id; those of the package for an empty name."""
        name = join(dirname(part), "_rels", f"{basename(part)}.rels")
        if not self.has(name):
            return {}
        found = {}
        for each in xml(self.read(name)).iter("{*}Relationship"):
            target, is_external = each.get("Target", ""), each.get("TargetMode") == "External"
            if not is_external:
                target = normpath(join("/", dirname(part), unquote(target.replace("\\", "/")))).lstrip("/")
            found[each.get("Id", "")] = Relation(each.get("Type", "").rpartition("/")[2], target, is_external)
        return found

    def target(self, element: etree._Element, links: Relations) -> str:
        """The part that an element, such as a slide in a list of slides, stands for."""
        ids = [value for key, value in element.items() if key.endswith("/relationships}id")]
        return next((links[id].target for id in ids if id in links), f"{local_name(element)} {ids}")

    def related(self, part: str, kind: str) -> Iterator[str]:
        for relation in self.relations(part).values():
            if relation.kind == kind and self.has(relation.target):
                yield relation.target

    def main(self) -> str:
        """The part with the document itself. Raises Unreadable if there is none."""
        for part in self.related("", "officeDocument"):
            return part
        raise Unreadable("is broken (it has no main part)")

    def text(self, part: str) -> str:
        """The text of a part, with what it refers to; empty if it has been read."""
        if part in self._seen:
            return ""
        self._seen.add(part)
        if not self.has(part):
            self.left_out["missing part*"] += 1
            return ""
        if part.lower().endswith(".vml"):
            return self._controls(part)
        return without_empty_cells(self.text_of(xml(self.read(part)), self.relations(part)))

    def text_of(self, element: etree._Element, links: Relations) -> str:
        out = list[str]()
        self._walk(element, Flow(links, out, out))
        return "".join(out)

    def _walk(self, element: etree._Element, flow: Flow) -> None:
        name = local_name(element)
        if name in self._out:
            return
        for key, value in element.items():
            if "/relationships}" in key and (relation := flow.links.get(value)):
                self._follow(relation, flow)
        if block := self._BLOCKS.get(name):
            block(self, element, flow)
            return
        flow.out.append(self._own_text(element, name, flow))
        self._walk_children(element, flow)
        if name == "num":  # of a fraction
            flow.out.append("/")

    def _walk_children(self, element: etree._Element, flow: Flow, after: str = "") -> Flow:
        for child in element:
            self._walk(child, flow)
            flow.out.append(after)
        return flow

    def _own_text(self, element: etree._Element, name: str, flow: Flow) -> str:
        """The text of an element without its children."""
        text = element.text or ""
        match name:
            case "t":
                if self._fields and RESULT not in self._fields[-1]:
                    self._fields.pop()  # it has no end
                if any(RESULT not in each for each in self._fields):  # the result of a field in another's instruction
                    return ""
                return (text if "wordprocessingml" in element.tag else unescaped(text)).translate(PRIVATE_USE)
            case "v" | "pt":  # values in charts
                return text.strip() and f"{text.strip()}\t"
            case "fldChar" | "instrText" | "ddList":
                return self._field(element, name, text)
            case "sym" if code := attribute(element, "char"):
                is_symbol = attribute(element, "font") == "Symbol"
                return symbol(int(code, 16)) if is_symbol else _visible(chr(int(code, 16)))
            case "footnoteReference" | "endnoteReference":
                if note := self.notes.pop((name.removesuffix("Reference"), attribute(element, "id")), None):
                    flow.later.append(ended_line(self.text_of(*note).strip()))
            case "textpath":  # WordArt
                flow.later.append(ended_line(element.get("string", "")))
            case "docPr" | "cNvPr":  # descriptions of pictures
                lines = [ended_line(text) for text in (element.get("title"), element.get("descr")) if text]
                flow.later.extend(line for line in lines if line not in flow.later[-2:] and not FILE_NAME.match(line))
            case _ if name in PRINTED:
                return ended_line(printed(text))
        return BREAKS.get(name, "")

    def _field(self, element: etree._Element, name: str, text: str) -> str:
        """The text of a field that has no other result than its instruction."""
        match attribute(element, "fldCharType"):
            case "begin":
                self._fields.append([])
            case "separate" if self._fields:
                self._fields[-1].append(RESULT)
            case "end" if self._fields:
                return shown_by_field("".join(self._fields.pop()))
        if name == "instrText" and self._fields:
            self._fields[-1].append(text)
        if name == "ddList":
            entries = [attribute(each, "val") for each in element.iterfind("{*}listEntry")]
            return "".join(entries[int(value_of(element, "result", "0")) :][:1])
        return ""

    def _choose(self, element: etree._Element, flow: Flow) -> None:
        """Read the first alternative that has text: the others are the same for other programs."""
        for choice in element:
            inner = flow.inner(None if flow.later is flow.out else [])
            if self._walk_children(choice, inner).text().strip() or "".join(inner.later).strip():
                flow.out.extend(inner.out)
                if inner.later is not inner.out:
                    flow.later.extend(inner.later)
                return

    def _paragraph(self, element: etree._Element, flow: Flow) -> None:
        properties = element.find("{*}pPr")
        style = value_of(properties, "pStyle") if properties is not None else ""
        item = list_of(properties) or self.lists.get(style, ("0", ""))
        own = self._walk_children(element, flow.inner([]))
        text, level = own.text(), self.headings.get(style, 0)
        if level and level <= TITLES:
            self.heading = self.heading or text.strip()
        label = self.labels.get(item) or ("" if level or item[0] == "0" else "*")
        gap = "\n" if "wordprocessingml" in element.tag and (level or item[0] == "0") else ""
        mark = HEADING * level if text.strip() else ""
        flow.out.extend([gap, mark, f"{label} " if label and text.strip() else "", text, f"\n{gap}"])
        flow.out.append(ended_line("".join(own.later)))

    def _cell(self, element: etree._Element, flow: Flow) -> None:
        if text := in_cell(self._walk_children(element, flow.inner()).text()):
            flow.out.append(f"{text}\t")

    def _row(self, element: etree._Element, flow: Flow) -> None:
        flow.out.append(ended_line(self._walk_children(element, flow.inner()).text().rstrip()))

    def _aside(self, element: etree._Element, flow: Flow) -> None:
        flow.later.append(ended_line(self._walk_children(element, flow.inner()).text()))

    def _reading(self, element: etree._Element, flow: Flow) -> None:
        """The pronunciation above characters."""
        flow.later.append(self._walk_children(element, flow.inner()).text() + " ")

    def _spaced(self, element: etree._Element, flow: Flow) -> None:
        self._walk_children(element, flow, " ")

    def _bracketed(self, element: etree._Element, flow: Flow) -> None:
        """Part of an equation between brackets, which are parentheses unless it names others."""
        flow.out.append(value_of(element, "dPr/{*}begChr", "("))
        self._walk_children(element, flow)
        flow.out.append(value_of(element, "dPr/{*}endChr", ")"))

    def _shape(self, element: etree._Element, flow: Flow) -> None:
        place = element.find("{*}nvSpPr/{*}nvPr/{*}ph")
        if place is not None and self.is_template:
            return
        inner = self._walk_children(element, flow.inner())
        if place is not None and place.get("type") in ("title", "ctrTitle"):
            self.heading = self.heading or inner.text().strip()
            flow.out.append(f"\n\n{HEADING}" if inner.text().strip() else "")
        flow.out.extend([*inner.out, "\n"])

    _BLOCKS: ClassVar[dict[str, Callable[["Package", etree._Element, Flow], None]]] = {
        **{"AlternateContent": _choose, "p": _paragraph, "tc": _cell, "tr": _row, "sp": _shape},
        **{"txbxContent": _aside, "rt": _reading, "d": _bracketed},
        **dict.fromkeys(("mr", "eqArr", "func", "nary", "rad", "limLow", "limUpp"), _spaced),
    }

    def _follow(self, relation: Relation, flow: Flow) -> None:
        """Read what an element refers to, or note that it is left out."""
        kind, part, is_external = relation
        if kind in SILENT or part in self._seen:
            return
        if kind in ("header", "footer"):
            self.furniture[part] = None
        elif kind == "aFChunk" and self.has(part):
            self._seen.add(part)
            try:
                included = self._include(self.read(part))
            except Exception:  # of any of the readers
                self.left_out["included document*"] += 1
            else:
                flow.later.append(ended_line(included.text))
                what = f"included document* without {', '.join(included.left_out)}"
                self.left_out[what] += bool(included.left_out)
        elif is_external or kind == "control" or (self.has(part) and not part.lower().endswith((".xml", ".vml"))):
            self._seen.add(part)
            what = "linked document*" if is_external else "form control*" if kind == "control" else "embedded object*"
            self.left_out[what] += 1
        else:
            flow.later.append(ended_line(self.text(part)))

    def _controls(self, part: str) -> str:
        """The captions of form controls on a sheet, in its old drawings; comments are in them too."""
        lines = []
        root = html.document_fromstring(self.read(part), html.HTMLParser(encoding="utf-8", no_network=True))
        for shape in root.iter("v:shape"):  # in HTML's syntax: Excel does not close <br>
            if all(data.get("objecttype") != "Note" for data in shape.iter("x:clientdata")):
                lines += [" ".join(box.text_content().split()) for box in shape.iter("v:textbox")]
        return "".join(map(ended_line, lines))


def printed(text: str) -> str:
    """A header or footer of a sheet without its codes."""
    return PRINT_CODE.sub(lambda code: "\t" if code[1] else code[2] or "", text).strip()


def unescaped(text: str) -> str:
    """Text of Excel and PowerPoint, which write `_x000D_` for what XML cannot have, with a space for a control."""
    return ESCAPED.sub(lambda code: chr(max(32, int(code[1], 16))), text) if "_x" in text else text


def value_of(element: etree._Element, path: str, default: str = "") -> str:
    """The attribute `val` of a child."""
    found = element.find(f"{{*}}{path}")
    return default if found is None else attribute(found, "val")


def list_of(properties: etree._Element | None) -> tuple[str, str] | None:
    """The list and the level of a paragraph or a style that names them; list 0 is none."""
    id = value_of(properties, "numPr/{*}numId") if properties is not None else ""
    return (id, value_of(properties, "numPr/{*}ilvl", "0")) if id else None


def _visible(character: str) -> str:
    """A space for characters of private use, which are pictures of a font."""
    return " " if unicodedata.category(character) in ("Co", "Cs", "Cn") else character
