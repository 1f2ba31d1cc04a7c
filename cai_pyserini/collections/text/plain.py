"""Text without markup, or with markup that people read."""

import re

from cai_pyserini.collections.formats import SAMPLE, Text, Unreadable
from cai_pyserini.collections.text.charset import decoded

CODE = re.compile(r"(?ms)^```.*?^```")
HEADING = re.compile(
    r"(?m)^#{1,3}\s+(\S.*?)\s*#*$|^(\S.*)\n(?:={3,}|-{3,}|~{3,}|\*{3,}|#{3,}|\+{3,}|\^{3,})\s*$"
    r"|<h1\b[^>]*>((?s:.*?))</h1"
)
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(?:(?!\1|\.\.\.).*\n)*?(?:\1|\.\.\.)[ \t]*\n")  # of Markdown
TITLE = re.compile(r"(?mi)^title[ \t]*[:=][ \t]*[\"']?(.+?)[\"']?[ \t]*$")
TAG = re.compile(r"<[^>]*>")
TERMINAL = re.compile(r".\x08|\x1b\[[0-9;?]*[A-Za-z]")  # overstruck characters, colours


def read_plain(data: bytes) -> Text:
    text = decoded(data)
    if "\0" in text:
        raise Unreadable("is not text")
    return Text("", TERMINAL.sub("", text).replace("\r\n", "\n").replace("\f", "\n"))


def read_marked_up(data: bytes) -> Text:
    read = read_plain(data)
    start = read.text[:SAMPLE]
    front = FRONT_MATTER.match(start)
    named = front and TITLE.search(front[0])
    found = HEADING.finditer(CODE.sub("", start[front.end() if front else 0 :]))
    headings = (each[1] or each[2] or TAG.sub("", each[3]).strip() for each in found)
    return read._replace(title=named[1] if named else next(filter(None, headings), ""))
