"""The text of a document as blocks to read: headings, paragraphs, tables, code and page breaks, in parts if it is long.

Texts come from strangers, so nothing in them is markup: what a block is depends on its lines and the blank lines before
it, which readers of files leave (collections.formats).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from cai_pyserini.collections.formats import LEVELS, heading_text

PART = 50_000  # characters that are shown at once; each new word takes 0.1 ms to mark
SLACK = 5_000  # characters that a part can be longer, to end with a paragraph
MOST_HEADINGS = 10_000  # of a text
MOST_COLUMNS = 12  # of a table
WRAPPED = range(45, 101)  # characters of lines that end because a page is so wide
HEADING = re.compile(r"(?<!\n)\n\n(\n+)([^\n\f]{1,200}(?:\n[^\n\f]{1,200}){0,2})(?=\n[ \t]*(?:\n|\f|\Z)|\f|\Z)")
BLOCK = re.compile(r"(?m)\f|(?:(?:^|(?<=\f))(?=[^\n\f]*\S)[^\n\f]+(?:\n|(?=\f)|\Z))+")
FENCE = re.compile(r"(?m)^\s*(?:```|~~~)")
INDENTED = re.compile(r"(?m)^(?: {2}|\t)")
BULLET = re.compile(r"(?m)^\s*(?:[-*+•–]|\w{1,3}[.)])\s")
OPENED = re.compile(r"[:({\[,;=\\>]\n(?: {2}|\t)")  # the end of a line of code before an indented one
STATEMENT = re.compile(r"(?m)[;{}]$")
Kind = Literal["page", "heading", "table", "code", "wrapped", "lines"]


class Heading(NamedTuple):
    """Where a heading begins and ends in a text, in characters, without markup; its level from 1, and its text."""

    start: int
    end: int
    level: int
    text: str


class Block(NamedTuple):
    """Lines between blank lines, or a page break; `number` is that of the page that begins, or a heading's level."""

    kind: Kind
    start: int
    end: int
    number: int = 0


def part_starts(text: str) -> list[int]:
    """Where the parts of a text begin, in characters: after blank lines, or else after a line or a word."""
    starts = [0]
    while len(text) > (end := starts[-1] + PART) + SLACK:
        found = ((text.find(separator, end, end + SLACK), len(separator)) for separator in ("\n\n", "\n", " "))
        starts.append(next((place + length for place, length in found if place >= 0), end))
    return starts


def headings(text: str) -> list[Heading]:
    """The headings of a text: up to three lines with more than a blank line before them, the more the higher."""
    found = []
    for match in islice(HEADING.finditer(text), MOST_HEADINGS):
        if any(map(str.isalnum, shown := heading_text(match[2]))):
            place = text.find(shown, match.start(2), match.end(2))
            start, end = (place, place + len(shown)) if place >= 0 else match.span(2)
            found.append(Heading(start, end, max(1, LEVELS + 1 - len(match[1])), shown))
    return found


def blocks(text: str, start: int, end: int, headings: Mapping[int, Heading]) -> Iterator[Block]:
    """Yield the blocks of a part of a text. `headings` are those of the text, by their beginnings."""
    page = text.count("\f", 0, start) + 1
    if page > 1 or text.find("\f") >= 0:
        yield Block("page", start, start, page)
    is_fenced = False
    for found in BLOCK.finditer(text[start:end]):
        first, lines = start + found.start(), found[0].rstrip()
        last = first + len(lines)
        heading = next((headings[place] for place in range(first, last) if place in headings), None)
        if found[0] == "\f":
            page += 1
            yield Block("page", first, first, page)
        elif heading:
            yield Block("heading", heading.start, heading.end, heading.level)
        else:
            fences = len(FENCE.findall(lines))
            yield Block("code" if is_fenced or FENCE.match(lines) else kind_of(lines), first, last)
            is_fenced ^= fences % 2 == 1


def separator_of(lines: Sequence[str]) -> str:
    """What separates the cells of lines that are the rows of a table; empty if they are not."""
    for separator, fewest in (("\t", 2), (",", 3)):  # of columns, and of rows
        columns = {line.count(separator) + 1 for line in lines}
        if len(lines) >= fewest <= min(columns) == max(columns) <= MOST_COLUMNS:
            is_quoted = separator == "," and any('"' in line or ", " in line for line in lines)
            return "" if is_quoted else separator
    return ""


def kind_of(block: str) -> Kind:
    """What the lines of a block look like."""
    lines = block.split("\n")
    indented = len(INDENTED.findall(block))
    has_statements = len(lines) > 1 and 2 * len(STATEMENT.findall(block)) >= len(lines)
    if indented == len(lines) or OPENED.search(block) or has_statements:
        return "code"
    if separator_of(lines):
        return "table"
    is_wrapped = len(lines) > 1 and not indented and all(len(line) in WRAPPED for line in lines[:-1])
    return "wrapped" if is_wrapped and not BULLET.search(block) else "lines"
