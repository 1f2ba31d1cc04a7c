"""Office files with a marked word wherever a person can write text: it is in the text, or said to be left out.

The fault: text that a reader of the document sees is not found, without a word. Comments and deleted text stay out.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cai_pyserini.collections.file_text import read_file
from cai_pyserini.collections.formats import Text
from tests.collections.test_file_folder import zipped

IN, OUT = "in", "out"  # what becomes of a mark; else what `left_out` says, with * for the plural
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006"
NAMESPACES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "p": "http://schemas.openxmlformats.org/presentationml/2006/main",
    "s": "http://schemas.openxmlformats.org/spreadsheetml/2006/main",
    "r": f"{OFFICE}/relationships",
    "m": f"{OFFICE}/math",
    "a": f"{DRAWING}/main",
    "c": f"{DRAWING}/chart",
    "dgm": f"{DRAWING}/diagram",
    "wp": f"{DRAWING}/wordprocessingDrawing",
    "xdr": f"{DRAWING}/spreadsheetDrawing",
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
    "cx": "http://schemas.microsoft.com/office/drawing/2014/chartex",
    "a14": "http://schemas.microsoft.com/office/drawing/2010/main",
    "v": "urn:schemas-microsoft-com:vml",
    "o": "urn:schemas-microsoft-com:office:office",
    "x": "urn:schemas-microsoft-com:office:excel",
}
VOCABULARIES = ("officeDocument", "wordprocessingml", "presentationml", "spreadsheetml", "drawingml")
STRICT = {
    f"http://schemas.openxmlformats.org/{name}/2006": f"http://purl.oclc.org/ooxml/{name}" for name in VOCABULARIES
}
Place = str | Callable[["File", str], str]  # XML with MARK; or adds a mark to a file, and returns XML
Places = list[tuple[str, Place]]  # with what becomes of the mark


def nest(path: str, content: str = "") -> str:
    """Elements in each other, such as `a>b x="y"`, around content."""
    elements = path.split(">")
    return (
        "".join(f"<{each}>" for each in elements)
        + content
        + "".join(f"</{each.split()[0]}>" for each in elements[::-1])
    )


def root(name: str, content: str, namespaces: dict[str, str] = NAMESPACES) -> str:
    return nest(" ".join([name, *(f'xmlns:{prefix}="{uri}"' for prefix, uri in namespaces.items())]), content)


class File:
    """An Office file in the making."""

    def __init__(self, document: str, kind: str = "", main: str = ""):
        """`main` is the part that places are in, if it is not the document itself."""
        self.main = main or document
        self.parts = dict[str, str | bytes]()
        self.slots = defaultdict[str, str](str)  # XML for places besides the one whose function is called
        self._relations = dict[str, list[str]]()
        self.add("officeDocument", document, of="")
        self.id = self.add(kind, main, of=document) if main else ""

    def add(self, kind: str, target: str, content: str | bytes | None = None, of: str | None = None) -> str:
        """Relate a part, with this content, to another one, and return the id. An address is external."""
        relations = self._relations.setdefault(self.main if of is None else of, [])
        id = f"rId{len(relations) + 1}"
        target, mode = (target, "External") if "//" in target else (f"/{target}", "Internal")
        type = f"{OFFICE}/relationships/{kind}"
        relations.append(f'<Relationship Id="{id}" Type="{type}" Target="{target}" TargetMode="{mode}"/>')
        if content is not None:
            self.parts[target[1:]] = content
        return id

    def new(self, kind: str, content: str | bytes, suffix: str = "xml", of: str | None = None) -> str:
        return self.add(kind, f"parts/{kind}{len(self.parts)}.{suffix}", content, of)

    def saved(self, is_strict: bool) -> bytes:
        parts = dict(self.parts)
        for part, relations in self._relations.items():
            folder, _, name = part.rpartition("/")
            path = f"{folder}/_rels/{name}.rels".lstrip("/")
            parts[path] = root("Relationships", "".join(relations)).replace(
                "xmlns:w=", 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships" xmlns:w='
            )
        for old, new in STRICT.items() if is_strict else ():
            parts = {name: part.replace(old, new) if isinstance(part, str) else part for name, part in parts.items()}
        return zipped(parts)


def placed(place: Place, file: File, mark: str) -> str:
    return place.replace("MARK", mark) if isinstance(place, str) else place(file, mark)


def slot(name: str, xml: Place) -> Place:
    """A mark in XML for another place."""

    def add(file: File, mark: str) -> str:
        file.slots[name] += placed(xml, file, mark)
        return ""

    return add


def part(kind: str, content: str, xml: str = "", suffix: str = "xml") -> Place:
    """A mark in a part, and XML with its id."""
    return lambda file, mark: xml.replace("ID", file.new(kind, content.replace("MARK", mark), suffix))


def around(path: str, place: Place) -> Place:
    return lambda file, mark: nest(path, placed(place, file, mark))


def alternatives(choice: str, fallback: str) -> str:
    return nest("mc:AlternateContent", nest('mc:Choice Requires="x"', choice) + nest("mc:Fallback", fallback))


def places(**by_fate: list[Place]) -> Places:
    return [(fate, place) for fate, each in by_fate.items() for place in each]


def some(places: Places) -> st.SearchStrategy[Places]:
    return st.lists(st.sampled_from(places), min_size=1, max_size=12)


def check(folder: Path, format: str, data: bytes, places: Places) -> Text:
    """Read a file: each mark is there once and as a word of its own, or it is out, or said."""
    path = folder / f"made.{format}"
    path.write_bytes(data)
    _, read = read_file((os.fsencode(path), format))
    assert isinstance(read, Text), read
    for (fate, place), mark in zip(places, marks(places), strict=True):
        found = len(re.findall(rf"\b{mark}\b", read.text))
        assert (found, mark in read.text) == (fate == IN, fate == IN), (fate, place, read)
    said = [fate for fate, _ in places if fate not in (IN, OUT)]
    counts = [f"{said.count(what)} {what.replace('*', 's' * (said.count(what) > 1))}" for what in set(said)]
    assert sorted(read.left_out) == sorted(counts)
    return read


def marks(places: Places) -> list[str]:
    return [f"mark{number}q" for number in range(len(places))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("office")


DRAWN = nest("a:p>a:r>a:t", "MARK")
FRAME = "a:graphic>a:graphicData"


def chart(place: str) -> Place:
    def add(file: File, mark: str) -> str:
        marks = {"title": "", "series": "", "box": "", place: mark}
        name = f"parts/chart{len(file.parts)}.xml"
        file.parts[name] = ""
        box = file.new("chartUserShapes", root("c:userShapes", DRAWN.replace("MARK", marks["box"])), of=name)
        data = file.new("package", "PK", "xlsx", of=name)
        title = nest("c:title>c:tx>c:rich", DRAWN.replace("MARK", marks["title"]))
        series = nest("c:ser>c:tx>c:strRef", "<c:f>A1</c:f>" + nest("c:strCache>c:pt>c:v", marks["series"]))
        more = f'<c:externalData r:id="{data}"/><c:userShapes r:id="{box}"/>'
        id = file.add("chart", name, root("c:chartSpace", nest("c:chart", title + series) + more))
        return nest(FRAME, f'<c:chart r:id="{id}"/>')

    return add


FUNNEL = root("cx:chartSpace", nest("cx:strDim", "<cx:f>A</cx:f>" + nest("cx:lvl>cx:pt", "MARK")))
SMART = root("dgm:dataModel", nest("dgm:ptLst>dgm:pt>dgm:t", DRAWN))
GRAPHICS: list[Place] = [  # in all three formats
    *map(chart, ("title", "series", "box")),
    part("chartEx", FUNNEL, alternatives('<cx:chart r:id="ID"/>', DRAWN.replace("MARK", "not available"))),
    part("diagramData", SMART, nest(FRAME, '<dgm:relIds r:dm="ID"/>')),
]
EQUATION = nest("m:oMath>m:f", nest("m:num>m:r>m:t", "2") + nest("m:den>m:r>m:t", "MARK"))
RUN = nest("w:r>w:t", "MARK")
P = nest("w:p", RUN)
OLD_BOX = nest("w:r>w:pict>v:shape>v:textbox>w:txbxContent", P)
NEW_BOX = nest("w:r>w:drawing>a:graphicData>wps:wsp>wps:txbx>w:txbxContent", P)
HEADER = root("w:hdr", P)


def beside(xml: str) -> str:
    """XML between two paragraphs."""
    return f"</w:p>{xml}<w:p>"


def note(kind: str) -> Place:
    def add(file: File, mark: str) -> str:
        id = file.slots[kind].count("<w:p>") + 1
        file.slots[kind] += nest(f'w:{kind} w:id="{id}"', P.replace("MARK", mark))
        return nest("w:r", f'<w:{kind}Reference w:id="{id}"/>')

    return add


def field(instruction: str, result: str = "", data: str = "") -> str:
    def character(kind: str, more: str = "") -> str:
        return nest(f'w:r>w:fldChar w:fldCharType="{kind}"', more)

    end = (character("separate") + result if result else "") + character("end")
    return character("begin", data) + nest("w:r>w:instrText", instruction) + end


def included_word(file: File, mark: str) -> str:
    other = File("word/document.xml")
    other.parts[other.main] = root("w:document", nest("w:body", P.replace("MARK", mark)))
    return beside(f'<w:altChunk r:id="{file.new("aFChunk", other.saved(False), "docx")}"/>')


def label(file: File, mark: str) -> str:
    """What a list has before the numbers of its items."""
    id = len(file.parts) + 1
    level = nest('w:lvl w:ilvl="0"', f'<w:lvlText w:val="{mark} %1."/>')
    lists = nest(f'w:abstractNum w:abstractNumId="{id}"', level)
    lists += nest(f'w:num w:numId="{id}"', f'<w:abstractNumId w:val="{id}"/>')
    file.new("numbering", root("w:numbering", lists))
    return nest("w:pPr>w:numPr", f'<w:numId w:val="{id}"/>')


CHOICE = '<w:result w:val="1"/><w:listEntry w:val="x"/><w:listEntry w:val="MARK"/>'
CHUNK = beside('<w:altChunk r:id="ID"/>')
WORD = places(
    **{IN: [
        *(around("w:r>w:drawing", each) for each in GRAPHICS),
        *(RUN, nest("w:ins", RUN), nest("w:moveTo", RUN), nest("w:hyperlink", RUN), nest("w:smartTag", RUN)),
        *(nest("w:sdt>w:sdtContent", RUN), nest('w:fldSimple w:instr="DOCPROPERTY x"', RUN), EQUATION),
        *(field("REF x", RUN), field("EQ \\o\\ad(\\s\\up 9(ka),MARK)")),
        field("FORMDROPDOWN", data=nest("w:ffData>w:ddList", CHOICE)),
        nest("w:r>w:ruby", nest("w:rt", RUN) + nest("w:rubyBase>w:r>w:t", "ji")),
        *(note("footnote"), note("endnote"), OLD_BOX, alternatives(NEW_BOX, OLD_BOX), alternatives("<w:r/>", RUN)),
        nest("w:r>w:pict>v:shape", '<v:textpath string="MARK"/>'),
        nest("w:r>w:drawing>wp:inline", '<wp:docPr id="1" name="n" descr="MARK"/>'),
        beside(nest("w:tbl>w:tr>w:tc", P)),
        beside(nest("w:tbl>w:sdt>w:sdtContent>w:tr>w:tc", P)),
        beside(nest("w:tbl>w:tr>w:sdt>w:sdtContent>w:tc", P)),
        part("header", HEADER, nest("w:pPr>w:sectPr", '<w:headerReference r:id="ID"/>')),
        part("footer", HEADER, nest("w:pPr>w:sectPr", '<w:footerReference r:id="ID"/>')),
        *(part("aFChunk", "<p>MARK</p>", CHUNK, "html"), part("aFChunk", "MARK", CHUNK, "txt"), included_word),
        *(part("aFChunk", r"{\rtf1 MARK}", CHUNK, "rtf"), label),
    ], OUT: [
        *(nest("w:del>w:r>w:delText", "MARK"), nest("w:del", EQUATION), nest("w:moveFrom", RUN), field('XE "MARK"')),
        field("IF </w:instrText></w:r>" + field("REF x", RUN) + "<w:r><w:instrText>", nest("w:r>w:t", "x")),
        *(slot("comment", nest("w:comment", P)), part("glossaryDocument", root("w:glossaryDocument", P))),
    ]},
    **{"included document*": [part("aFChunk", "PK\3\4 MARK", CHUNK, "docx")]},
    **{"embedded object*": [part("oleObject", "MARK", nest("w:r>w:object", '<o:OLEObject r:id="ID"/>'), "bin")]},
    **{"linked document*": [lambda file, mark: beside(f'<w:subDoc r:id="{file.add("subDocument", f"file:///{mark}")}"/>')]},
    **{"missing part*": [lambda file, mark: f'<c:chart r:id="{file.add("chart", f"{mark}.xml")}"/>']},
)  # fmt: skip
# What can be around a paragraph.
OUTSIDE = ["w:sdt>w:sdtContent", "w:customXml", "w:tbl>w:tr>w:tc", "w:tbl>w:tr>w:tc>w:tbl>w:tr>w:tc"]
OUTSIDE += [
    "w:p>w:r>w:drawing>a:graphicData>wps:wsp>wps:txbx>w:txbxContent",
    "w:p>w:ins>w:r>w:pict>v:textbox>w:txbxContent",
]


@given(some(WORD), st.sampled_from(OUTSIDE), st.booleans())
@example(WORD, "w:customXml", False)
def test_word(folder: Path, places: Places, outside: str, is_strict: bool) -> None:
    file, body = File("word/document.xml"), ""
    for (_, place), mark in zip(places, marks(places), strict=True):
        before, after = nest("w:r>w:t", "before "), nest("w:r>w:t", " after")
        body += nest(f"{outside}>w:p", before + placed(place, file, mark) + after)
    file.parts[file.main] = root("w:document", nest("w:body", body))
    for kind, xml in file.slots.items():
        file.add(f"{kind}s", f"word/{kind}s.xml", root(f"w:{kind}s", xml))
    check(folder, "docx", file.saved(is_strict), places)


SHAPE = nest("p:sp>p:txBody", DRAWN)
PROMPT = nest("p:sp", nest("p:nvSpPr>p:nvPr", '<p:ph type="body"/>') + nest("p:txBody", DRAWN))
SLIDE = places(
    **{IN: [
        *(around("p:graphicFrame", each) for each in GRAPHICS),
        *(SHAPE, nest("p:grpSp>p:grpSp", SHAPE), alternatives(SHAPE, SHAPE)),
        nest('p:sp>p:txBody>a:p>a:fld type="footer">a:t', "MARK"),
        nest("p:sp>p:txBody>a:p", alternatives(nest("a14:m", EQUATION), nest("a:r>a:t", "formula"))),
        nest(f"{FRAME}>a:tbl>a:tr>a:tc>a:txBody", DRAWN),
        nest("p:pic>p:nvPicPr", '<p:cNvPr id="1" name="n" descr="MARK"/>'),
        *(slot("notesSlide", SHAPE), slot("slideLayout", SHAPE), slot("slideMaster", SHAPE)),
    ], OUT: [
        *(slot("slideLayout", PROMPT), part("comments", root("p:cmLst", nest("p:cm>p:text", "MARK")))),
    ]},
    **{"embedded object*": [part("oleObject", "x", nest("p:graphicFrame", '<p:oleObj r:id="ID"/>'), "bin")]},
)  # fmt: skip


@given(some(SLIDE), st.booleans(), st.booleans())
@example(SLIDE, False, True)
def test_powerpoint(folder: Path, places: Places, is_strict: bool, is_hidden: bool) -> None:
    file = File("ppt/presentation.xml", "slide", "ppt/slide.xml")
    shapes = "".join(placed(place, file, mark) for (_, place), mark in zip(places, marks(places), strict=True))
    for kind, of in (("notesSlide", file.main), ("slideLayout", file.main), ("slideMaster", "ppt/slideLayout.xml")):
        file.add(kind, f"ppt/{kind}.xml", root("p:x", nest("p:cSld>p:spTree", file.slots[kind])), of)
    title = PROMPT.replace("body", "title").replace("MARK", "Always")
    slide = root("p:sld", nest("p:cSld>p:spTree", title + shapes))
    file.parts[file.main] = slide.replace("<p:sld ", f'<p:sld show="{1 - is_hidden}" ')
    slides = nest("p:sldIdLst", f'<p:sldId id="256" r:id="{file.id}"/>')
    file.parts["ppt/presentation.xml"] = root("p:presentation", slides)
    read = check(folder, "pptx", file.saved(is_strict), places)
    assert (read.title, read.pages) == ("Always", 1)


def cell(content: str, attributes: str = "") -> Place:
    return slot("row", nest(f"s:row>s:c {attributes}", content))


def formatted(file: File, mark: str) -> str:
    """A number whose format has the mark."""
    number = file.slots["style"].count("<s:xf ") + 1
    file.slots["format"] += f'<s:numFmt numFmtId="{200 + number}" formatCode="0&quot; {mark}&quot;"/>'
    file.slots["style"] += f'<s:xf numFmtId="{200 + number}"/>'
    return placed(cell(nest("s:v", "3"), f's="{number}"'), file, mark)


def shared(content: str) -> Place:
    def add(file: File, mark: str) -> str:
        number = file.slots["string"].count("<s:si>")
        file.slots["string"] += nest("s:si", content.replace("MARK", mark))
        return placed(cell(nest("s:v", str(number)), 't="s"'), file, mark)

    return add


def in_drawing(place: Place) -> Place:
    def add(file: File, mark: str) -> str:
        sheet, file.main = file.main, "xl/drawing.xml"
        xml = placed(place, file, mark)
        file.main = sheet
        return placed(slot("drawing", nest("xdr:oneCellAnchor", xml)), file, mark)

    return add


def caption(kind: str) -> Place:
    """What a form control or a comment has in Excel's old drawings, which are not XML."""
    box = nest("v:textbox>div", "MARK<br>")
    return slot("vml", nest("v:shape", f"{box}<x:ClientData ObjectType='{kind}'></x:ClientData>"))


SHEET = places(
    **{IN: [
        *map(in_drawing, GRAPHICS),
        in_drawing(nest("xdr:grpSp>xdr:sp>xdr:txBody", DRAWN)),
        in_drawing(nest("xdr:pic>xdr:nvPicPr", '<xdr:cNvPr id="1" name="n" descr="MARK"/>')),
        *(formatted, shared(nest("s:t", "MARK_x000D_")), shared(nest("s:r>s:t", "MARK") + nest("s:r>s:t", " rich"))),
        *(cell(nest("s:is>s:t", "MARK"), 't="inlineStr"'), cell(nest("s:is>s:r>s:t", "MARK"), 't="inlineStr"')),
        *(cell('<s:f>"x"</s:f>' + nest("s:v", "MARK"), 't="str"'), caption("Button")),
        *(slot("oddHeader", '&amp;L&amp;"Arial,Bold"&amp;12MARK &amp;P'), slot("oddFooter", "&amp;RMARK&amp;Cx")),
    ], OUT: [
        *(shared(nest("s:t", "kanji") + nest("s:rPh>s:t", "MARK")), cell("<s:f>MARK</s:f><s:v></s:v>", 't="str"')),
        *(caption("Note"), part("comments", root("s:comments", nest("s:text>s:t", "MARK")))),
        slot("book", nest("s:definedNames>s:definedName", "MARK")),
    ]},
    **{"cell* without a saved value": [cell("<s:f>MARK</s:f>")]},
    **{"embedded object*": [slot("sheet", part("oleObject", "MARK", '<s:oleObject r:id="ID"/>', "bin"))]},
)  # fmt: skip


@given(some(SHEET), st.booleans(), st.booleans())
@example(SHEET, False, True)
def test_excel(folder: Path, places: Places, is_strict: bool, is_hidden: bool) -> None:
    file = File("xl/workbook.xml", "worksheet", "xl/sheet.xml")
    for (_, place), mark in zip(places, marks(places), strict=True):
        placed(place, file, mark)
    drawing = file.add("drawing", "xl/drawing.xml", root("xdr:wsDr", file.slots["drawing"]))
    old = file.add("vmlDrawing", "xl/old.vml", root("xml", file.slots["vml"]))
    printed = "".join(nest(f"s:{name}", file.slots[name]) for name in ("oddHeader", "oddFooter"))
    parts = f'<s:drawing r:id="{drawing}"/><s:legacyDrawing r:id="{old}"/>{file.slots["sheet"]}'
    rows = nest("s:sheetData", file.slots["row"] + nest("s:row>s:c>s:v", "7.5"))
    file.parts[file.main] = root("s:worksheet", rows + nest("s:headerFooter", printed) + parts)
    state = "hidden" if is_hidden else "visible"
    sheet = f'<s:sheet name="Sizes" state="{state}" r:id="{file.id}"/>'
    file.parts["xl/workbook.xml"] = root("s:workbook", nest("s:sheets", sheet) + file.slots["book"])
    styles = nest("s:numFmts", file.slots["format"]) + nest("s:cellXfs", "<s:xf/>" + file.slots["style"])
    file.add("styles", "xl/styles.xml", root("s:styleSheet", styles), of="xl/workbook.xml")
    file.add("sharedStrings", "xl/strings.xml", root("s:sst", file.slots["string"]), of="xl/workbook.xml")
    read = check(folder, "xlsx", file.saved(is_strict), places)
    assert read.text.startswith("Sizes\n\n")


ODF = {
    name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"
    for name in ("office", "text", "table", "style", "presentation", "form", "chart")
} | {
    "draw": "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0",
    "svg": "urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0",
    "xlink": "http://www.w3.org/1999/xlink",
    "math": "http://www.w3.org/1998/Math/MathML",
}


def embedded(content: str) -> Place:
    def add(file: File, mark: str) -> str:
        name = f"Object {len(file.parts)}"
        file.parts[f"{name}/content.xml"] = content.replace("MARK", mark)
        return nest("draw:frame", f'<draw:object xlink:href="./{name}"/>')

    return add


def labelled(file: File, mark: str) -> str:
    level = f'<text:list-level-style-number text:level="1" style:num-prefix="{mark} "/>'
    file.slots["automatic"] += nest(f'text:list-style style:name="{mark}"', level)
    return between(nest(f'text:list text:style-name="{mark}">text:list-item>text:p', "x"))


TEXT = nest("text:p", "MARK")
BOX = nest("draw:text-box", TEXT)
ROW = "table:table>table:table-row>table:table-cell"
INDEX = "text:table-of-content"
QUOTIENT = nest("math:mfrac", nest("math:mn", "2") + nest("math:mi", "MARK"))
FORMULA = nest("math:semantics", QUOTIENT + nest("math:annotation", "MARK"))


def between(xml: str) -> str:
    """XML between two paragraphs."""
    return f"</text:p>{xml}<text:p>"


OPEN = places(
    **{IN: [
        *(labelled, "MARK", nest("text:span", "MARK"), nest("text:user-field-get", "MARK"), nest("text:a", "MARK")),
        nest("text:ruby", nest("text:ruby-base", "ji") + nest("text:ruby-text", "MARK")),
        nest("text:note", nest("text:note-citation", "1") + nest("text:note-body", TEXT)),
        nest("text:note", nest("text:note-citation", "MARK") + nest("text:note-body>text:p", "x")),
        *(nest("draw:frame", BOX), nest("draw:custom-shape", TEXT), nest("draw:frame>svg:desc", "MARK")),
        embedded(root("math:math", FORMULA, ODF)),
        embedded(root("office:document-content", nest("office:body>office:chart>chart:chart>chart:title", TEXT), ODF)),
        between(nest(ROW, TEXT)),
        between(nest(f'{ROW} office:value-type="string" office:string-value="MARK"')),
        between(nest('text:section text:display="none"', TEXT)),
        between(nest(INDEX, nest(f"{INDEX}-source>text:index-title-template", "x") + nest("text:index-body", TEXT))),
        between(nest('office:forms>form:form>form:button form:label="MARK"')),
        between(nest('office:forms>form:form>form:text form:value="x" form:current-value="MARK"')),
        *(slot("master", nest(each, TEXT)) for each in ("style:header", "style:footer", "draw:custom-shape")),
    ], OUT: [
        *(nest("office:annotation", TEXT), nest("draw:frame>draw:image>office:binary-data", "MARK")),
        between(nest("text:tracked-changes>text:changed-region>text:deletion", TEXT)),
        slot("master", nest('style:header-left style:display="false"', TEXT)),
        slot("master", nest('draw:frame presentation:class="title"', BOX)),
    ]},
    **{"embedded object*": [nest("draw:frame", '<draw:object-ole xlink:href="./MARK"/>')]},
    **{"cell* without a saved value": [between(nest(f'{ROW} table:formula="MARK"'))]},
)  # fmt: skip
BODIES = {
    "odt": "office:text",
    "odp": 'office:presentation>draw:page draw:master-page-name="M"',
    "ods": 'office:spreadsheet>table:table table:name="Sizes">table:table-row>table:table-cell',
}


@given(some(OPEN), st.sampled_from(sorted(BODIES)))
@example(OPEN, "odt")
@example(OPEN, "odp")
@example(OPEN, "ods")
def test_open_document(folder: Path, places: Places, format: str) -> None:
    file, text = File("x"), ""
    for (_, place), mark in zip(places, marks(places), strict=True):
        text += nest("text:p", f"before {placed(place, file, mark)} after")
    style = nest('style:style style:master-page-name="M"') + file.slots["automatic"]
    content = nest("office:automatic-styles", style) + nest(f"office:body>{BODIES[format]}", text)
    master = nest('office:master-styles>style:master-page style:name="M"', file.slots["master"])
    parts = {
        "content.xml": root("office:document-content", content, ODF),
        "styles.xml": root("office:document-styles", master, ODF),
    }
    check(folder, format, zipped({**file.parts, **parts}), places)


RTF = places(
    **{IN: [
        *("MARK", r"{\b MARK}", r"{\revised MARK}", r"{\unknown MARK}", r"{\listtext\tab MARK}"),
        r'{\field{\*\fldinst HYPERLINK "x"}{\fldrslt MARK}}',
        r"{\field{\*\fldinst {EQ \\o\\ad(x,MARK)}}{\fldrslt }}",
        *(r"{\footnote \chftn MARK}", r"{\*\footnote MARK}", r"{\header\pard MARK\par}", r"{\footerf MARK\par}"),
        r"{\shp{\*\shpinst{\sp{\sn x}{\sv 202}}{\shptxt MARK\par}}{\shprslt{\*\do{\dptxbxtext MARK}}}}",
        *(r"{\*\do\dptxbx{\dptxbxtext MARK\par}}", r"{\shp{\*\shpinst{\sp{\sn gtextUNICODE}{\sv MARK}}}}"),
        r"\par\trowd\cellx100 MARK\cell x\cell\row\pard ",
        r"\par\trowd\itap2 MARK\nestcell{\*\nesttableprops\nestrow}{\nonesttables\par}\cell\row\pard ",
        r"{\mmath{\*\moMath{\mf{\mfPr{\mctrlPr x}}{\mnum{\mr 2}}{\mden{\mr MARK}}}}}",
        r"{\*\shppict{\pict{\*\picprop{\sp{\sn wzDescription}{\sv MARK}}}}}",
        r"{\upr{ASCII}{\*\ud MARK}}",
        r"{\field{\*\fldinst FORMDROPDOWN{\*\formfield\ffres25\ffdefres1{\*\ffname x}{\*\ffl y}{\*\ffl MARK}}}}",
    ], OUT: [
        *(r"{\deleted MARK}", r"{\*\atnid x}{\*\annotation MARK}", r"{\*\unknown MARK}", r"{\pict\bin9 }{{}MARK}"),
        r"{\field{\*\fldinst XE MARK}{\fldrslt x}}",
        r"{\*\shppict{\pict\pngblip MARK}}{\nonshppict{\pict MARK}}",
    ]},
    **{"embedded object*": [r"{\object\objemb{\*\objclass x}{\*\objdata MARK}{\result x}}"]},
)  # fmt: skip


@given(some(RTF))
@example(RTF)
def test_rtf(folder: Path, places: Places) -> None:
    all_marks = zip(places, marks(places), strict=True)
    body = "".join(f"before {placed(place, File('x'), mark)} after\\par\n" for (_, place), mark in all_marks)
    data = rf"{{\rtf1\ansi{{\fonttbl{{\f0 Arial;}}}}{{\info{{\title Taxes}}}}{body}}}"
    assert check(folder, "rtf", data.encode(), places).title == "Taxes"


def test_a_note_and_a_text_box_do_not_interrupt_a_sentence(folder: Path) -> None:
    """The fault: `Short1a note` is no word that anybody looks for, and `Short fingers` is no phrase."""
    file = File("word/document.xml")
    heading = nest("w:p", nest("w:pPr", '<w:pStyle w:val="1"/>') + RUN.replace("MARK", "Of hands"))
    first, last = nest("w:r>w:t", "Short"), nest("w:r>w:t", " fingers")
    marked = placed(note("footnote"), file, "note") + NEW_BOX.replace("MARK", "box")
    cells = nest("w:tc", P.replace("MARK", "a")) + nest("w:tc>w:p") + nest("w:tc", P.replace("MARK", "b"))
    body = heading + nest("w:p", first + marked + last) + nest("w:tbl>w:tr", cells)
    file.parts[file.main] = root("w:document", nest("w:body", body))
    file.add("footnotes", "word/footnotes.xml", root("w:footnotes", file.slots["footnote"]))
    style = nest('w:style w:styleId="1"', '<w:name w:val="heading 1"/>')
    file.add("styles", "word/styles.xml", root("w:styles", style))
    marked = nest("text:note", nest("text:note-body>text:p", "note")) + nest("draw:frame>draw:text-box>text:p", "box")
    cells = "".join(nest("table:table-cell>text:p", each) for each in ("a", "", "b"))
    content = nest("text:p", f"Short{marked} fingers") + nest("table:table>table:table-row", cells)
    content = nest("office:body>office:text", nest("text:h", "Of hands") + content)
    rtf = (
        r"{\rtf1{\info{\title Of hands}}Of hands\par Short{\footnote note}{\shp{\shptxt box\par}} fingers\par "
        r"{\intbl a\par}\cell\cell b\cell\row}"
    )
    odt = zipped({"content.xml": root("office:document-content", content, ODF)})
    for format, data in (("docx", file.saved(False)), ("odt", odt), ("rtf", rtf.encode())):
        read = check(folder, format, data, [])
        assert re.split("\n+", read.text) == ["Of hands", "Short fingers", "note", "box", "a\tb"], format
        assert read.title == "Of hands"


FONTS = (
    r"{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset204 Arial Cyr;}{\f2\fcharset128 MS Mincho;}"
    r"{\f3\fcharset2{\*\panose 05}Symbol;}}"
)
CHARACTERS = {  # RTF, and its text
    r"\f0 caf\'e9": "café",
    r"\f1\'e3\'ee\'e4": "год",
    r"\f2\'93\'fa\'96\'7b": "日本",
    r"\f2\'83A\'95\\": "ア表",
    r"TNF-{\f3 a\u8364?\u-3998?}": "TNF-α€β",
    r"\u8364\'80uro": "€uro",
    r'{\field{\*\fldinst SYMBOL 97 \\f "Symbol"}{\fldrslt\f3 }}-x': "α-x",
    r"\uc0\u22823\u-10179\u-8704": "大😀",
    r"{\uc2\u26085\'93\'fa}x": "日x",
    r"a\_b\~c\{\}\\": "a-b c{}\\",
    r"{\f1 \plain caf\'e9}": "café",
}


@given(st.lists(st.sampled_from(sorted(CHARACTERS)), min_size=1))
@example(sorted(CHARACTERS))
def test_characters_of_rtf(folder: Path, parts: list[str]) -> None:
    body = "\\par\n".join(f"{{{part}}}" for part in parts)
    path = folder / "characters.rtf"
    path.write_text(rf"{{\rtf1\ansi\ansicpg1252\deff0{FONTS}{body}}}")
    _, read = read_file((os.fsencode(path), "rtf"))
    assert isinstance(read, Text) and read.text.split("\n") == [CHARACTERS[part] for part in parts]


NUMBERS = [  # of cells, their formats, and what is read
    *((3.5, '0.0" kg"', "3.5 kg"), (0.07, "0.0%", "7%"), (1234, "00000", "01234"), (42, '"INV-"00000', "INV-00042")),
    *((5551234567, "[<=9999999]###-####;(###) ###-####", "(555) 123-4567"), (5551234, "000-0000", "555-1234")),
    *((-7, "#,##0_);[Red](#,##0)", "(7)"), (0, '0;-0;"none"', "none"), (12, "[$€-407] #,##0.00", "€ 12")),
    *((2500000, '0.0,,"M"', "2.5M"), (0.1 + 0.2, "General", "0.3"), (-3, ";;;", "-3"), (1.5, "# ?/?", "1.5")),
    *((44197, "[$-409]d mmm yyyy", "2021-01-01"), (1.25, "[h]:mm", "30:00:00"), (0.5, "h:mm AM/PM", "12:00:00")),
]


def test_numbers_of_excel(folder: Path) -> None:
    """The fault: a unit, a percent sign and zeros are in the format of a number."""
    book = openpyxl.Workbook()
    for row, (value, code, _) in enumerate(NUMBERS, 1):
        book.active.cell(row, 1, value).number_format = code
    book.save(folder / "numbers.xlsx")
    _, read = read_file((os.fsencode(folder / "numbers.xlsx"), "xlsx"))
    assert isinstance(read, Text) and read.text.split("\n")[2:] == [shown for *_, shown in NUMBERS]
