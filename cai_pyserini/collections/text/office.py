"""The text of Word, PowerPoint and Excel."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from operator import eq, ge, gt, le, lt, ne

from lxml import etree
from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format, is_timedelta_format
from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH, from_excel, from_ISO8601

from cai_pyserini.collections.formats import MAX_CHARACTERS, PAGE, TOO_LONG, Text, Unreadable
from cai_pyserini.collections.text.archive import attribute, local_name, xml
from cai_pyserini.collections.text.charset import decoded
from cai_pyserini.collections.text.lines import LABEL
from cai_pyserini.collections.text.mail import read_mail
from cai_pyserini.collections.text.openxml import STYLE, Package, list_of, unescaped, value_of
from cai_pyserini.collections.text.rtf import read_rtf
from cai_pyserini.collections.text.web import html_text

ZIP = b"PK\3\4"
EAST_ASIAN_DATES = {*range(27, 37), *range(50, 59)}  # formats that files do not define
FORMAT = re.compile(  # parts of the format of a number: literals, a currency, a condition, what is not shown, digits
    r'"([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[(<[=>]?|>=?|=)(-?\d+\.?\d*)\]|\[[^\]]*\]|[_*].'
    r"|((?i:General)|@|[0#?][0#?.,/]*(?:E[+-]0+)?)|(.)"
)
CONDITIONS = {"<": lt, "<=": le, "=": eq, ">": gt, ">=": ge, "<>": ne}


def read_docx(data: bytes) -> Text:
    return _read_docx(data, _read_included)


def _read_docx(data: bytes, include: Callable[[bytes], Text]) -> Text:
    package = Package(data, include)
    main = package.main()
    for part in package.related(main, "styles"):
        for style in xml(package.read(part)).iter("{*}style"):
            id = attribute(style, "styleId")
            if heading := STYLE.match(value_of(style, "name")):
                package.headings[id] = int(heading[1] or 1)
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
    return package.finished("\n".join((text, *furniture)))


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
        slides.append("\n\n".join(part.strip("\n") for part in parts if part.strip()))
    return package.finished(PAGE.join(slides), len(slides))


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
            package.left_out["missing sheet*"] += 1
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
    return package.finished("\n".join(lines) if has_text else "")


class _Values:
    """What cells show, as text."""

    def __init__(self, package: Package, book: str):
        root = xml(package.read(book))
        is_1904 = any(each.get("date1904") in ("1", "true") for each in root.iter("{*}workbookPr"))
        self._epoch = MAC_EPOCH if is_1904 else WINDOWS_EPOCH
        self._strings = list[str]()
        self._formats = list[str]()  # by style
        self._left_out = package.left_out
        for part in package.related(book, "sharedStrings"):
            self._strings += [_rich_text(item) for item in package.stream(part, "si") if item.getparent() is not None]
        for part in package.related(book, "styles"):
            styles = xml(package.read(part))
            codes = {
                each.get("numFmtId"): each.get("formatCode", "") for each in styles.iterfind("{*}numFmts/{*}numFmt")
            }
            for style in styles.iterfind("{*}cellXfs/{*}xf"):
                id = style.get("numFmtId", "0")
                default = "yyyy-mm-dd" if int(id) in EAST_ASIAN_DATES else BUILTIN_FORMATS.get(int(id), "")
                self._formats.append(codes.get(id, default))

    def text(self, cell: etree._Element) -> str:
        inner = {local_name(child): child for child in cell}
        kind, text = cell.get("t", "n"), (inner["v"].text or "") if "v" in inner else ""
        if kind == "inlineStr":
            return _rich_text(inner["is"]) if "is" in inner else ""
        if not text:
            self._left_out["cell* without a saved value"] += kind != "str" and "f" in inner
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
                    return self._number(text, int(cell.get("s", 0)))
        except (ValueError, OverflowError, IndexError):  # such as a date in the year 10000
            pass
        return text

    def _number(self, text: str, style: int) -> str:
        value = float(text) if set(text) & set(".eE") else int(text)
        code = self._formats[style] if style < len(self._formats) else ""
        if _is_duration(code):
            seconds = round(value * 86400)
            return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        if _is_date(code):
            return str(from_excel(value, self._epoch)).removesuffix(" 00:00:00")
        return _shown(value, code)


_is_date, _is_duration = cache(is_date_format), cache(is_timedelta_format)


def _shown(value: float, code: str) -> str:
    """A number in its format: the whole value without separators, with the format's words, signs and leading zeros."""
    section, is_negative = _section(value, code)
    value = -value if is_negative and section else value
    runs = [part[6] for part in section if part[6]]
    value *= 100 ** sum(part[0] == "%" for part in section)
    if scale := sum(len(run) - len(run.rstrip(",")) for run in runs):
        value /= 1000**scale
    number = f"{value:.15g}" if isinstance(value, float) else str(value)
    if not runs and not any(part[1] or part[2] for part in section):
        return number
    zeros = "".join(runs).partition(".")[0].count("0")
    whole, point, rest = number.partition(".")
    filled = [whole.zfill(zeros + (value < 0)) + point + rest]
    if len(runs) > 1 and not re.search("[./E]", "".join(runs)):  # such as (000) 000-0000
        filled = [f"{value:.0f}".zfill(zeros)]
        for run in runs[:0:-1]:
            filled[:1] = [filled[0][: -len(run)], filled[0][-len(run) :]]
    digits = iter(filled)
    pieces = (next(digits, "") if part[6] else part[1] or part[2] or part[3] or part[7] or "" for part in section)
    return "".join(pieces).strip()


def _section(value: float, code: str) -> tuple[list[re.Match[str]], bool]:
    """The section of a format for a value, and whether it is for negative numbers, whose sign is one of its words."""
    sections = _sections(code)
    tests = [next(((CONDITIONS[part[4]], float(part[5])) for part in each if part[4]), None) for each in sections]
    if any(tests):
        for section, test in zip(sections, tests, strict=True):
            if test is None or test[0](value, test[1]):
                return section, False
    place = 1 if value < 0 else 2 if value == 0 else 0
    return (sections[place], place == 1) if place < len(sections) else (sections[0], False)


@cache
def _sections(code: str) -> list[list[re.Match[str]]]:
    sections: list[list[re.Match[str]]] = [[]]
    for part in FORMAT.finditer(code):
        if part[0] == ";":
            sections.append([])
        else:
            sections[-1].append(part)
    return sections


def _rich_text(item: etree._Element) -> str:
    """The text of a string without readings."""
    return unescaped("".join(part.text or "" for part in (*item.iterfind("{*}t"), *item.iterfind("{*}r/{*}t"))))
