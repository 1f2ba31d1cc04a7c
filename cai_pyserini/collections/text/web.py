"""The text of HTML."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice, takewhile
from typing import NamedTuple

from lxml import etree

from cai_pyserini.collections.formats import HEADING, NO_TITLE, TITLE_LENGTH, Text, Unreadable
from cai_pyserini.collections.text.charset import decoded

VOID = "area|base|basefont|br|col|frame|hr|img|input|link|meta|param"  # elements that libxml2 takes for empty
UNNESTED = f"{VOID}|body|head|html|iframe|option|plaintext|pre|script|style|textarea|title|xmp"
NESTED = re.compile(rf"(?i)<(/?)(?!(?:{UNNESTED})[\s/>])([a-z][^\s/>]*)")
AS_BROWSERS = (  # what libxml2 understands otherwise, and tags that it understands like browsers
    (re.compile(r"(?i)</(?:body|html)(?=[\s>])"), "</param"),  # ignored; what follows is text as well
    (re.compile(r"(?i)<(?:bgsound|keygen|source|track|wbr)(?=[\s/>])"), "<param"),
    (re.compile(r"(?i)<embed(?=[\s/>])"), "<img"),
    (re.compile(r"(?i)</br(?=[\s/>])"), "<br"),
    (re.compile(r"(?i)</p(?=[\s>])"), "</p><p></p"),
    (re.compile(rf"(?i)<(?!(?:{VOID})[\s/])([a-z][^\s<>/]*)((?:\s[^<>]*[\s\"'])?)/>"), r"<\1\2></\1>"),  # of XHTML
)
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
PARAGRAPHS = HEADINGS | {"blockquote", "dl", "figure", "hr", "ol", "p", "pre", "table", "ul"}
LINES = {"address", "article", "aside", "body", "br", "caption", "center", "dd", "desc", "details", "dialog", "dir"}
LINES |= {"div", "dt", "fieldset", "figcaption", "footer", "form", "frameset", "header", "hgroup", "iframe", "legend"}
LINES |= {"li", "listing", "main", "menu", "noframes", "noscript", "optgroup", "option", "plaintext", "search"}
LINES |= {"section", "select", "summary", "tbody", "text", "textarea", "tfoot", "thead", "title", "xmp"}
SPACED = {"annotation", "area", "audio", "button", "canvas", "img", "input", "mtd", "mtr", "object", "tspan", "video"}
SPACED |= {"kbd", "label", "meter", "progress", "script", "time"}
NOTHING, SPACE, LINE, PARAGRAPH, CELL = range(5)  # between pieces of text; the stronger replaces the weaker
GAPS = ("", " ", "\n", "\n\n", "\t")
VERBATIM = {"listing", "plaintext", "pre", "textarea", "xmp"}
MARKUP = {"iframe", "noembed", "noframes"}  # elements whose text is markup
NOT_READ = {"nav", "rp", "style"}
APART = {"badge", "classifier", "label", "line-number", "lineno", "linenos", "mlabel", "sourcelineno"}  # by style
TOOLTIPS = ("title", "aria-label", "aria-description", "placeholder", "label", "summary", "alttext")
WITHOUT_VALUE = {"checkbox", "color", "file", "hidden", "image", "password", "radio", "range"}  # that people read
DESCRIPTIONS = {"author", "description", "keywords", "og:description"}
NAVIGATION = {"breadcrumb", "breadcrumbs", "headerlink", "nav", "navbar", "navfooter", "navheader", "navigation"}
OFTEN_NAVIGATION = NAVIGATION | {"aside", "banner", "complementary", "contentinfo", "footer", "header", "menu"}
OFTEN_NAVIGATION |= {"menubar", "pager", "pagination", "sidebar", "toolbar", "topbar"}
NAMED_NAVIGATION = re.compile(r"(?i)(?<![a-z])nav|nav(?![a-z])")
NEVER_NAVIGATION = {"article", "body", "html", "main"}
END_OF_WORD = re.compile(r"[^\W\d_]{3}$")  # a raised number after it is a note, not a power
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
ELSEWHERE = re.compile(r"\s*(?:[a-zA-Z][\w+.-]*:|//)")  # an address with a server
WHITE_SPACE = re.compile(r"[ \t\n\r]+")


class _Piece(NamedTuple):
    gap: str
    text: str
    link: int  # the number of the link that it is in; 0 outside of links; negative if the link leaves the site
    heading: bool


class _Opened(NamedTuple):
    """The state at the start of an element."""

    pieces: int
    gap: int
    size: int
    linked: int
    later: int


def read_html(data: bytes) -> Text:
    return Text(*html_text(data))


def html_text(data: bytes, label: str | None = None) -> tuple[str, str]:
    """The title of an HTML page, or its first heading, and its text, with tables and code, without navigation."""
    page = _Page(decoded(data, label, markup=True))
    return page.title(), page.text()


def _parsed(source: str) -> etree._Element | None:
    """The tree of a page; of one that is nested too deeply for the parser, a flat one."""
    for tag, understood in AS_BROWSERS:
        source = tag.sub(understood, source)
    for _ in range(2):
        parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, no_network=True)
        try:
            tree = etree.fromstring(source.encode("utf-8", "replace"), parser)
        except etree.XMLSyntaxError:  # it is empty
            return None
        if all(error.type_name != "ERR_RESOURCE_LIMIT" for error in parser.error_log):
            return tree
        source = NESTED.sub(_flat, source)
    raise Unreadable("is nested too deeply")


def _flat(tag: re.Match[str]) -> str:
    """The start of a void element that has the attributes of another and parts words like it."""
    name = tag[2].lower()
    if name in PARAGRAPHS or name in LINES or name in ("td", "th", "tr"):
        return "<br"
    return "<img" if name in SPACED or "-" in name else f"<{tag[1]}param"


class _Page:
    """The text of a page, which is written in pieces."""

    def __init__(self, source: str):
        self._pieces: list[_Piece] = []
        self._titles: dict[str, str] = {}  # the first of each kind
        self._gap = NOTHING
        self._bullet = ""
        self._row = False  # whether the row of a table has text before this cell
        self._size = self._linked = 0  # characters
        self._links = self._link = self._headed = 0
        self._later: list[tuple[str, int]] = []  # what is not a part of the line, with its link
        self._told: set[str] = set()
        self._inside: Counter[str] = Counter()
        self._verbatim = self._headings = 0
        self._numbers: list[int | None] = []
        self._navigation: list[tuple[int, int, int]] = []  # pieces from, to, and their characters
        tree = _parsed(source.replace("\f", " ").replace("\r\n", "\n"))
        if tree is not None:
            self._walk(tree)

    def title(self) -> str:
        return next(filter(None, map(self._titles.get, ("title", "h1", "h2"))), "").strip()

    def text(self) -> str:
        pieces = []
        start = 0
        for begin, end, size in sorted(self._navigation, key=lambda each: (each[0], -each[1])):
            if begin >= start:
                pieces += self._pieces[start : begin if 4 * size < 3 * self._size else end]
                start = end
        return _joined(_without_bars(pieces + self._pieces[start:]))

    def _walk(self, tree: etree._Element) -> None:
        opened: list[_Opened | None] = []
        events = etree.iterwalk(tree, events=("start", "end", "comment", "pi"))
        for event, element in events:
            if event == "start":
                name = element.tag.rpartition(":")[2].lower()
                if _is_unread(element, name):
                    opened.append(None)
                    events.skip_subtree()
                else:
                    self._break(element, name)
                    opened.append(_Opened(len(self._pieces), self._gap, self._size, self._linked, len(self._later)))
                    self._enter(element, name)
            elif event == "end":
                if start := opened.pop():
                    self._leave(element, element.tag.rpartition(":")[2].lower(), start)
            elif (element.text or "").startswith("[CDATA["):
                self._read(element.text[7:].removesuffix("]]"))
            if event != "start" and element is not tree:
                self._read(element.tail)

    def _enter(self, element: etree._Element, name: str) -> None:
        self._inside[name] += 1
        self._verbatim += name in VERBATIM
        self._headings += name in HEADINGS
        if name == "a":
            self._links += 1
            address = element.get("href")
            self._link = 0 if address is None else -self._links if ELSEWHERE.match(address) else self._links
        elif name == "button":
            self._links += 1
            self._link = self._links
        elif name in ("ol", "ul"):
            start = element.get("start", "1")
            self._numbers.append((int(start) if start.isdecimal() else 1) if name == "ol" else None)
        elif name == "li":
            number = self._numbers[-1] if self._numbers else None
            self._bullet = "* " if number is None else f"{number}. "
            self._numbers[-1:] = [number and number + 1]
        elif name in ("table", "tr"):
            self._row = False
        elif name in HEADINGS and self._gap != CELL:
            self._bullet = HEADING * int(name[1]) + self._bullet
        elif name in ("td", "th") and self._row:
            self._gap = CELL
        elif name == "input" and element.get("type", "").lower() not in WITHOUT_VALUE:
            self._read(element.get("value"))
        elif name == "meta" and (element.get("name") or element.get("property") or "").lower() in DESCRIPTIONS:
            self._tell(element.get("content"))
        self._read(element.get("alt"))
        for markup in (element.get("srcdoc"), element.text if name in MARKUP else ""):
            self._write(_Page(markup).text() if markup else "")
        if name not in MARKUP:
            self._read(element.text)

    def _leave(self, element: etree._Element, name: str, start: _Opened) -> None:
        written = self._pieces[start.pieces :] if name in ("h1", "h2", "rt", "title") else []
        if name == "rt":  # or the readings would part the characters of a word
            self._later.append((_joined(written), 0))
            self._forget(start)
        elif written and not self._inside["svg"]:
            first = self._titles.setdefault(name, _joined(written)) if name not in self._titles else ""
            if name == "title" and first and len(first) <= TITLE_LENGTH and not NO_TITLE.match(first):
                self._forget(start)
        if element.keys() and name != "link":
            for attribute in TOOLTIPS:
                self._tell(element.get(attribute))
        if name == "h1" and element.find(".//a") is None:  # no name of the site
            self._headed = len(self._pieces)
        kind = _navigation_kind(element, name)
        if kind:
            tooltips = self._later[start.later :]
            del self._later[start.later :]
            self._write_lines(tooltips)
            size, linked = self._size - start.size, self._linked - start.linked
            if size and (kind > 1 or (2 * linked > size and self._headed <= start.pieces)):
                self._navigation.append((start.pieces, len(self._pieces), size))
        self._inside[name] -= 1
        self._verbatim -= name in VERBATIM
        self._headings -= name in HEADINGS
        if name in ("ol", "ul"):
            self._numbers.pop()
        elif name == "li":
            self._bullet = ""
        elif name in HEADINGS:
            self._bullet = self._bullet.lstrip(HEADING)
        if name != "br":
            self._break(element, name)

    def _break(self, element: etree._Element, name: str) -> None:
        """End the line or paragraph at the start or end of an element."""
        if name == "tr":
            gap = LINE
            self._gap = LINE if self._row else self._gap % CELL
        elif name == "br":
            gap = LINE if self._gap < LINE else PARAGRAPH
        elif name in PARAGRAPHS:
            gap = PARAGRAPH if self._row or not self._inside["tr"] else LINE
        else:
            gap = LINE if name in LINES else SPACE if self._is_apart(element, name) else NOTHING
        if gap >= LINE and self._later and not self._inside["tr"]:
            later, self._later = self._later, []
            self._write_lines(later)
        self._gap = max(self._gap, gap)

    def _is_apart(self, element: etree._Element, name: str) -> bool:
        """Whether an element within a line is no part of the words beside it."""
        classes = element.get("class")
        if name in SPACED or "-" in name or (classes and not APART.isdisjoint(classes.lower().split())):
            return True
        if name not in ("a", "sup") or self._gap or not self._pieces or not END_OF_WORD.search(self._pieces[-1].text):
            return False
        text = "".join(islice(element.itertext(), 9))
        return any(map(str.isdigit, text)) and not any(map(str.isalpha, text))

    def _read(self, text: str | None) -> None:
        """Write a text of the page, with white space as people see it."""
        if not text:
            return
        if self._verbatim:
            return self._write(text)
        text = WHITE_SPACE.sub(" ", text)
        if text[0] == " ":
            self._gap = max(self._gap, SPACE)
        self._write(text.strip(" "))
        if text[-1] == " ":
            self._gap = max(self._gap, SPACE)

    def _tell(self, text: str | None) -> None:
        """Write a text for the end of the line, once, unless it has just been written."""
        text = " ".join((text or "").split())
        if text and text not in self._told and (not self._pieces or text != self._pieces[-1].text):
            self._told.add(text)
            self._later.append((text, self._current_link()))

    def _write_lines(self, lines: list[tuple[str, int]]) -> None:
        for text, link in lines:
            self._gap = max(self._gap, LINE)
            self._write(text, link)

    def _write(self, text: str, link: int | None = None) -> None:
        if text:
            link = self._current_link() if link is None else link
            last = self._pieces[-1] if self._pieces else None
            if last and not self._gap and link and last.link not in (0, link) and last.text[-1] < "\u2e80":
                self._gap = SPACE  # between two links, but in scripts without spaces
            self._pieces.append(
                _Piece(GAPS[self._gap] if last else "", self._bullet + text, link, bool(self._headings))
            )
            self._gap, self._bullet, self._row = NOTHING, "", True
            self._size += len(text)
            self._linked += len(text) if link else 0

    def _current_link(self) -> int:
        return self._link if not self._headings and (self._inside["a"] or self._inside["button"]) else 0

    def _forget(self, start: _Opened) -> None:
        """Remove what has been written since the start of an element."""
        del self._pieces[start.pieces :]
        self._gap, self._size, self._linked = start.gap, start.size, start.linked


def _joined(pieces: Iterable[_Piece]) -> str:
    return "".join(f"{piece.gap}{piece.text}" for piece in pieces)


def _is_unread(element: etree._Element, name: str) -> bool:
    """Whether an element has no text of the page; only scripts make text of a template."""
    if name == "script":
        return not element.get("type", "").startswith("math/")
    if name == "template":
        return not (element.get("shadowrootmode") or element.get("shadowroot"))
    return name in NOT_READ or element.get("role") == "navigation"


def _navigation_kind(element: etree._Element, name: str) -> int:
    """2 if an element says that it is navigation, 1 if it is where it has mostly links, or else 0."""
    if name in NEVER_NAVIGATION or element.get("epub:type") or element.get("role", "").startswith("doc-"):
        return 0
    if not element.keys():
        return 1 if name in OFTEN_NAVIGATION else 0
    names = " ".join(filter(None, (element.get("class"), element.get("id"), element.get("role"))))
    if not NAVIGATION.isdisjoint(names.lower().split()):
        return 2
    words = [name, *(word.lower() for word in WORD.findall(names))]
    return 1 if NAMED_NAVIGATION.search(names) or not OFTEN_NAVIGATION.isdisjoint(words) else 0


def _without_bars(pieces: list[_Piece]) -> list[_Piece]:
    """Leave out lines at both ends that are only links to other pages of the site, unless they are most of the page."""
    lines: list[list[_Piece]] = []
    for piece in pieces:
        if not lines or "\n" in piece.gap:
            lines.append([])
        lines[-1].append(piece)
    leading = [*takewhile(_links, lines)]
    if sum(map(_links, leading)) < 3:
        leading = []
    rest = lines[len(leading) :]
    trailing = [*takewhile(lambda line: _links(line) > 1, reversed(rest))]
    above = rest[-len(trailing) - 1 : -len(trailing)]
    if len(trailing) > 3 or any("\n\n" not in trailing[-1][0].gap or line[-1].heading for line in above):
        trailing = []  # it belongs to the table or heading above it
    bars = sum(len(piece.text) for piece in chain(*leading, *trailing))
    if 2 * bars >= sum(len(piece.text) for piece in pieces):
        return pieces
    return [*chain(*rest[: len(rest) - len(trailing)])]


def _links(line: list[_Piece]) -> int:
    """How many links within the site a line has, if it has nothing else but punctuation; or else 0."""
    if any(piece.link <= 0 and any(map(str.isalnum, piece.text)) for piece in line):
        return 0
    return len({piece.link for piece in line if piece.link > 0})
