"""The text of Word, PowerPoint and Excel."""

import re
from collections.abc import Callable, Iterator

from lxml import etree
from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format, is_timedelta_format
from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH, from_excel, from_ISO8601

from cai_pyserini.collections.formats import MAX_CHARACTERS, PAGE, TOO_LONG, Text, Unreadable, counted
from cai_pyserini.collections.text.archive import local_name, xml
from cai_pyserini.collections.text.charset import decoded
from cai_pyserini.collections.text.mail import read_mail
from cai_pyserini.collections.text.openxml import HEADING, Package, attribute, list_of, value_of
from cai_pyserini.collections.text.rtf import read_rtf
from cai_pyserini.collections.text.web import html_text

ZIP = b"PK\3\4"
LABEL = re.compile(r"\w{2,}")  # in the format of a list's numbers


def read_docx(data: bytes) -> Text:
    return _read_docx(data, _read_included)


def _read_docx(data: bytes, include: Callable[[bytes], Text]) -> Text:
    package = Package(data, include)
    main = package.main()
    for part in package.related(main, "styles"):
        for style in xml(package.read(part)).iter("{*}style"):
            id = attribute(style, "styleId")
            if HEADING.match(value_of(style, "name")):
                package.headings.add(id)
            if item := list_of(style.find("{*}pPr")):
                package.lists[id] = item
    for part in package.related(main, "numbering"):
        root = xml(package.read(part))
        lists = {attribute(each, "abstractNumId"): each for each in root.iterfind("{*}abstractNum")}
        for each in root.iterfind("{*}num"):
            for level in lists.get(value_of(each, "abstractNumId"), ()):
                label = " ".join(LABEL.findall(value_of(level, "lvlText")))
                package.labels[attribute(each, "numId"), attribute(level, "ilvl")] = label
    for kind in ("footnote", "endnote"):
        for part in package.related(main, f"{kind}s"):
            links = package.relations(part)
            for note in xml(package.read(part)).iter(f"{{*}}{kind}"):
                package.notes[kind, attribute(note, "id")] = note, links
    text = package.text(main)
    furniture = dict.fromkeys(package.text(part).strip() for part in package.furniture)
    return Text(
        package.best_title(), "\n".join((text, *furniture)), modified=package.modified, left_out=package.left_out()
    )


def _read_included(data: bytes) -> Text:
    """A document in a document. Raises any exception if it cannot be read."""
    if data.startswith(ZIP):
        return _read_docx(data, _refuse)
    if data.startswith(b"{\\rtf"):
        return read_rtf(data)
    if data[:2000].lower().find(b"mime-version:") >= 0:
        return read_mail(data)
    return Text(*html_text(data)) if b"<" in data[:2000] else Text("", decoded(data))


def _refuse(data: bytes) -> Text:
    raise Unreadable("is a document in a document in a document")


def read_pptx(data: bytes) -> Text:
    package = Package(data, _refuse)
    main = package.main()
    slides, links = [], package.relations(main)
    for each in xml(package.read(main)).iterfind("{*}sldIdLst/{*}sldId"):
        slide = package.target(each, links)
        parts = [package.text(slide)]
        for notes in package.related(slide, "notesSlide"):
            parts += [package.text(notes), *_template_texts(package, notes, "notesMaster")]
        parts += _template_texts(package, slide, "slideLayout", "slideMaster")
        slides.append("\n".join(part.strip("\n") for part in parts if part.strip()))
    text = PAGE.join(slides)
    return Text(package.best_title(), text, len(slides), package.modified, left_out=package.left_out())


def _template_texts(package: Package, part: str, *kinds: str) -> Iterator[str]:
    """What a layout and its master show besides placeholders, with the first slide that has them."""
    for template in package.related(part, kinds[0]) if kinds else ():
        package.is_template = True
        yield package.text(template)
        package.is_template = False
        yield from _template_texts(package, template, *kinds[1:])


def read_xlsx(data: bytes) -> Text:
    package = Package(data, _refuse, out=("numCache", "numLit"))  # the numbers of charts are those of cells
    main = package.main()
    book, links = xml(package.read(main)), package.relations(main)
    values = _Values(package, main)
    lines, size, has_text = list[str](), 0, False
    for sheet in book.iterfind("{*}sheets/{*}sheet"):
        part = package.target(sheet, links)
        if not package.has(part):
            package.leave_out("missing sheet", part)
            continue
        start = len(lines)
        for row in package.stream(part, "row"):
            if row.getparent() is None:  # the sheet without its rows
                others = package.text_of(row, package.relations(part))
                lines += dict.fromkeys(line for line in others.splitlines() if line.strip())
            elif cells := [text for cell in row.iterfind("{*}c") if (text := values.text(cell))]:
                lines.append("\t".join(cells))
                size += len(lines[-1])
                if size > MAX_CHARACTERS:
                    raise Unreadable(TOO_LONG)
        has_text |= len(lines) > start
        lines.insert(start, f"{sheet.get('name')}\n")
    if values.unsaved:
        package.also_left_out.append(f"{counted(values.unsaved, 'cell')} without a saved value")
    return Text(
        package.best_title(),
        "\n".join(lines) if has_text else "",
        modified=package.modified,
        left_out=package.left_out(),
    )


class _Values:
    """What cells show, as text."""

    def __init__(self, package: Package, book: str):
        root = xml(package.read(book))
        is_1904 = any(each.get("date1904") in ("1", "true") for each in root.iter("{*}workbookPr"))
        self._epoch = MAC_EPOCH if is_1904 else WINDOWS_EPOCH
        self._strings = list[str]()
        self._dates = list[str]()  # formats by style; empty for numbers
        self.unsaved = 0  # cells whose formula has no saved value
        for part in package.related(book, "sharedStrings"):
            self._strings += [_rich_text(item) for item in package.stream(part, "si") if item.getparent() is not None]
        for part in package.related(book, "styles"):
            styles = xml(package.read(part))
            codes = {
                each.get("numFmtId"): each.get("formatCode", "") for each in styles.iterfind("{*}numFmts/{*}numFmt")
            }
            for style in styles.iterfind("{*}cellXfs/{*}xf"):
                id = style.get("numFmtId", "0")
                code = codes[id] if id in codes else BUILTIN_FORMATS.get(int(id), "")
                self._dates.append(code if is_date_format(code) else "")

    def text(self, cell: etree._Element) -> str:
        inner = {local_name(child): child for child in cell}
        kind, text = cell.get("t", "n"), (inner["v"].text or "") if "v" in inner else ""
        if kind == "inlineStr":
            return _rich_text(inner["is"]) if "is" in inner else ""
        if not text:
            self.unsaved += kind != "str" and "f" in inner
            return ""
        try:
            match kind:
                case "s":
                    return self._strings[int(text)]
                case "b":
                    return str(bool(int(text)))
                case "d":
                    return str(from_ISO8601(text))
                case "n":
                    return str(self._number(text, int(cell.get("s", 0))))
        except (ValueError, OverflowError, IndexError):  # such as a date in the year 10000
            pass
        return text

    def _number(self, text: str, style: int) -> object:
        value = float(text) if set(text) & set(".eE") else int(text)
        if code := self._dates[style] if style < len(self._dates) else "":
            return from_excel(value, self._epoch, timedelta=is_timedelta_format(code))
        return value


def _rich_text(item: etree._Element) -> str:
    """The text of a string without readings."""
    return "".join(part.text or "" for part in (*item.iterfind("{*}t"), *item.iterfind("{*}r/{*}t")))
