"""The text of RTF."""

import re
from codecs import lookup
from dataclasses import dataclass, replace

from cai_pyserini.collections.formats import LeftOut, Text, Unreadable
from cai_pyserini.collections.text.lines import FILE_NAME, ended_line, shown_by_field, symbol, without_empty_cells

TOKEN = re.compile(
    r"\\([a-zA-Z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]+|([^\\{}\r\n]+)", re.DOTALL
)
# Groups without text of the document, besides those that \* marks as such for readers that do not know them.
OUT = {
    *("fonttbl", "colortbl", "stylesheet", "filetbl", "info", "pict", "objdata", "objclass", "objname", "mmathPict"),
    *("shprslt", "nonshppict", "nonesttables", "annotation", "xe", "tc", "rxe", "txe", "template", "private"),
    *("ftnsep", "ftnsepc", "ftncn", "aftnsep", "aftnsepc", "aftncn"),
}
ASIDE = {"footnote", "shptxt", "dptxbxtext"}  # put after the paragraph, whose sentences they would interrupt
FURNITURE = {"header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr", "footerf"}
OWN = {*ASIDE, *FURNITURE, "title", "picprop", "fldinst", "ffl", "sn", "sv"}  # groups whose text is put elsewhere
READ = {*OWN, "shpinst", "do", "moMath", "moMathPara", "background", "sp", "ud", "formfield"}  # read in spite of \*
SHOWN_PROPERTIES = {"gtextUNICODE", "wzDescription"}  # properties of shapes: WordArt, and what a picture shows
LINES = {"par", "row", "nestrow", "sect", "page"}
CELLS = {"cell", "nestcell"}
CHARACTERS = {
    **dict.fromkeys((*LINES, "line", "column", "lbr"), "\n"),
    **dict.fromkeys((*CELLS, "tab"), "\t"),
    **dict.fromkeys(("emspace", "enspace", "qmspace"), " "),
    **{"mden": "/", "me": " "},  # in equations
    **{"emdash": "—", "endash": "–", "bullet": "•", "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”"},
}
CONTROLS = {"~": " ", "_": "-", "\n": "\n", "\r": "\n"}
CHARSETS = {  # of fonts
    **{0: "cp1252", 77: "mac_roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gbk", 136: "cp950", 161: "cp1253"},
    **{162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874"},
    **{238: "cp1250", 254: "cp437", 255: "cp850"},
}
PLATFORMS = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}
UNDEFINED = 25  # means that the default of a form field is shown
SYMBOL = "symbol"  # stands for the encoding of the font Symbol


def read_rtf(data: bytes) -> Text:
    source = data.decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise Unreadable("is not RTF")
    reader = _Reader()
    reader.read(source)
    text = without_empty_cells("\n".join((reader.body.text(), *reader.furniture)))
    return Text(_characters(reader.title), _characters(text), left_out=reader.left_out.said())


def _characters(text: str) -> str:
    """The text with pairs of surrogates as characters."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class _Stream:
    """Text in order, and what follows the current paragraph."""

    def __init__(self) -> None:
        self.out, self.later = list[str](), list[str]()

    def end_paragraph(self) -> None:
        self.out += self.later
        self.later.clear()

    def text(self) -> str:
        self.out.append("\n")
        self.end_paragraph()
        return "".join(self.out).strip()


@dataclass(slots=True)
class _Group:
    stream: _Stream
    font: int = -1
    skipped: int = 1  # bytes after a character of Unicode, for readers without it
    destination: str = ""
    is_font_table: bool = False
    is_starred: bool = False
    is_hidden: bool = False
    is_deleted: bool = False
    skips_group: bool = False  # the next one


class _Reader:
    """What is known while a file is read."""

    def __init__(self) -> None:
        self.body = _Stream()
        self.title = ""
        self.furniture = dict[str, None]()
        self.left_out = LeftOut()
        self._encoding = "cp1252"
        self._fonts = dict[int, str]()
        self._font = -1  # which the font table describes
        self._default_font = -1
        self._property = ""  # of a shape
        self._choices, self._choice = list[str](), 0  # of a drop-down list
        self._group = _Group(self.body)
        self._bytes = bytearray()

    def read(self, source: str) -> None:
        stack, place, skip = list[_Group](), 0, 0
        while place < len(source) and (token := TOKEN.search(source, place)):
            word, number, code, control, brace, text = token.groups()
            place = token.end()
            if text or code or control in ("{", "}", "\\"):
                raw = bytes.fromhex(code) if code else (text or control).encode("latin-1")
                self._bytes += raw[skip:]
                skip = max(0, skip - len(raw))
                continue
            if token[0].isspace():  # the end of a line of the source
                continue
            self._decode()
            skip = 0
            if brace == "{":
                stack.append(self._group)
                hidden = self._group.is_hidden or self._group.skips_group
                self._group.skips_group = False
                self._group = replace(self._group, destination="", is_starred=False, is_hidden=hidden)
            elif brace:
                ended = self._group
                if not stack:
                    return
                self._group = stack.pop()
                if ended.destination:
                    self._close(ended)
                if not stack:
                    return
            elif control == "*":
                self._group.is_starred = True
            elif control:
                self._write(CONTROLS.get(control, ""))
            elif word == "bin":
                place += max(0, int(number or 0))
            elif word == "u" and number:
                self._write(self._unicode(int(number) & 0xFFFF))
                skip = self._group.skipped
            else:
                self._word(word, int(number) if number else None)
        self._decode()

    def _word(self, word: str, number: int | None) -> None:
        group = self._group
        if word in OUT or (group.is_starred and word not in READ) or (word.startswith("m") and word.endswith("Pr")):
            group.is_hidden = True
            self.left_out["embedded object*"] += word == "objdata"
            group.is_font_table |= word == "fonttbl"
        elif word in OWN:
            group.is_hidden &= word not in ("title", "picprop")
            group.destination, group.stream = word, _Stream()
        elif word in CHARACTERS:
            while word in CELLS and group.stream.out[-1:] == ["\n"]:  # the end of the last paragraph in a cell
                group.stream.out.pop()
            self._write(CHARACTERS[word])
            if word in LINES:
                group.stream.end_paragraph()
        group.is_starred = False
        match word:
            case "ansicpg":
                self._encoding = _encoding(number, self._encoding)
            case "mac" | "pc" | "pca":
                self._encoding = PLATFORMS[word]
            case "deff":
                self._default_font = group.font = number or 0
            case "f":
                self._font = group.font = number or 0
            case "fcharset" if number in CHARSETS:
                self._fonts[self._font] = CHARSETS[number]
            case "cpg":
                self._fonts[self._font] = _encoding(number, self._encoding)
            case "plain":
                group.font, group.is_deleted = self._default_font, False
            case "deleted" | "mvf":
                group.is_deleted = number != 0
            case "uc":
                group.skipped = max(0, number or 0)
            case "ffres" | "ffdefres" if number != UNDEFINED:
                self._choice = number or 0
            case "upr":
                group.skips_group = True

    def _decode(self) -> None:
        """Write the bytes that have been read, in the encoding of their font."""
        data, self._bytes = self._bytes, bytearray()
        if self._group.is_font_table and data.startswith(b"Symbol"):
            self._fonts[self._font] = SYMBOL
        elif data:
            encoding = self._encoding_of_font()
            self._write("".join(map(symbol, data)) if encoding == SYMBOL else data.decode(encoding, "replace"))

    def _encoding_of_font(self) -> str:
        return self._fonts.get(self._group.font, self._encoding)

    def _unicode(self, code: int) -> str:
        if self._encoding_of_font() == SYMBOL:
            return symbol(code)
        return "" if 0xE000 <= code <= 0xF8FF else chr(code)  # private use: pictures of a font

    def _write(self, text: str) -> None:
        if not self._group.is_hidden and not self._group.is_deleted:
            self._group.stream.out.append(text)

    def _close(self, group: _Group) -> None:
        """Put the text of a group where it is read."""
        text, later = group.stream.text(), self._group.stream.later
        match group.destination:
            case "title":
                self.title = text
            case "fldinst":
                shown = shown_by_field(text)
                self._write(shown or "".join(self._choices[self._choice :][:1]))
                self._choices.clear()
                self._group.skips_group = bool(shown)  # or it would be there twice
            case "ffl":
                self._choices.append(text)
            case "sn":
                self._property = text
            case "sv" if self._property not in SHOWN_PROPERTIES or FILE_NAME.match(text):
                pass
            case name if name in FURNITURE:
                self.furniture[text] = None
            case _:
                later.append(ended_line(text))


def _encoding(number: int | None, default: str) -> str:
    name = {65001: "utf-8", 10000: "mac_roman"}.get(number or 0, f"cp{number}")
    try:
        return lookup(name).name
    except LookupError:
        return default
