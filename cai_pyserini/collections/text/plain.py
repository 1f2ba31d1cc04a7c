"""Text without markup, or with markup that people read."""

import re

from cai_pyserini.collections.formats import SAMPLE, Text, Unreadable
from cai_pyserini.collections.text.charset import decoded

HEADING = re.compile(r"(?m)^#{1,3}\s+(\S.*?)\s*#*$|^(\S.*)\n(?:={3,}|-{3,}|~{3,}|\*{3,})\s*$")
FRONT_MATTER = re.compile(r"---\n(?:(?!---\n).*\n)*---\n")  # of Markdown
TITLE = re.compile(r"(?mi)^title:[ \t]*[\"']?(.+?)[\"']?[ \t]*$")


def read_plain(data: bytes) -> Text:
    text = decoded(data)
    if "\0" in text:
        raise Unreadable("is not text")
    return Text("", text.replace("\f", "\n"))


def read_marked_up(data: bytes) -> Text:
    read = read_plain(data)
    front = FRONT_MATTER.match(read.text[:SAMPLE])
    named = front and TITLE.search(front[0])
    found = named or HEADING.search(read.text[front.end() if front else 0 : SAMPLE])
    return read._replace(title=next(filter(None, found.groups()), "") if found else "")
