"""Text without markup, or with markup that people read."""

import re

from cai_pyserini.collections.formats import HEADING, SAMPLE, Text, Unreadable, heading_text
from cai_pyserini.collections.text.charset import decoded

MARKED_UP = re.compile(
    r"(?m)^(?P<code>```|~~~)(?s:.*?)^(?P=code)"  # which has comments
    r"|^ {0,3}(?P<signs>#{1,6})[ \t]+\S.*$"
    r"|^<h(?P<tag>[1-6])\b[^>]*>(?s:.{0,300}?)</h(?P=tag)>"
    r"|(?<![^\n]\n)^(?P<over>([-=~^\"'`#*+:_])\5{2,}[ \t]*\n)?(?=.*[^\W_])(?P<title>.+)\n"
    r"(?P<under>([-=~^\"'`#*+:_])\8{2,})[ \t]*$"
)
ALONE = re.compile(  # a line after more than a blank line, or with a number
    r"(?m)(?<=\n\n\n)^(?=.*[^\W_])[ \t]*\S.{,80}(?<![.,;])$(?=\n\n|\s*\Z)"
    r"|(?<=\n\n)^(?P<number>\d{1,3}(?:\.\d{1,3})*)\.?[ \t]+(?=[^\W_]).{,80}(?<![.,;:])$(?=\n\n)"
)
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(?:(?!\1|\.\.\.).*\n)*?(?:\1|\.\.\.)[ \t]*\n")  # of Markdown
TITLE = re.compile(r"(?mi)^title[ \t]*[:=][ \t]*[\"']?(.+?)[\"']?[ \t]*$")
TERMINAL = re.compile(r".\x08|\x1b\[[0-9;?]*[A-Za-z]")  # overstruck characters, colours


def read_table(data: bytes) -> Text:
    text = decoded(data)
    if "\0" in text:
        raise Unreadable("is not text")
    return Text("", TERMINAL.sub("", text).replace("\r\n", "\n").replace("\f", "\n").replace(HEADING, " "))


def read_plain(data: bytes) -> Text:
    read = read_table(data)
    text = ALONE.sub(lambda line: _heading(line[0], len((line["number"] or "1").split("."))), read.text)
    return read._replace(text=_with_headings(text, only_underlined=True))


def read_marked_up(data: bytes) -> Text:
    read = read_table(data)
    front = FRONT_MATTER.match(read.text[:SAMPLE])
    named, start = front and TITLE.search(front[0]), front.end() if front else 0
    text = _with_headings(read.text[start:])
    headings = (heading_text(each.split("\n\n")[0]) for each in text[:SAMPLE].split(f"\n{HEADING}")[1:])
    return Text(named[1] if named else next(filter(None, headings), ""), read.text[:start] + text)


def _with_headings(text: str, only_underlined: bool = False) -> str:
    """A text with marks before its headings. Levels of underlined ones are in the order of their first use."""
    styles = list[tuple[bool, str]]()

    def marked(found: re.Match[str]) -> str:
        if found["under"] and 2 * len(found["under"]) >= len(found["title"]):
            style = bool(found["over"]), found["under"][0]
            styles.extend([style] * (style not in styles))
            return _heading(found[0], styles.index(style) + 1)
        level = 0 if only_underlined else int(found["tag"] or len(found["signs"] or ""))
        return _heading(found[0], level) if level else found[0]

    return MARKED_UP.sub(marked, text)


def _heading(text: str, level: int) -> str:
    return f"\n{HEADING * level}{text}\n"
