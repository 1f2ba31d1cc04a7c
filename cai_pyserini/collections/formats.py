"""What readers of documents in files return, and what their texts depend on."""

import re
from collections import Counter
from importlib.metadata import version
from typing import NamedTuple

from cai_pyserini.core.file_formats import FORMATS
from cai_pyserini.core.identity import code
from cai_pyserini.core.packages import require_modules

MAX_CHARACTERS = 20_000_000  # longest text
TOO_LONG = f"has more than {MAX_CHARACTERS:,} characters of text"
SAMPLE = 20_000  # characters for guessing a language
TITLE_LENGTH = 200
HEADING = "\x1d"  # before a heading, as often as its level; white space, so that it is no part of a word
LEVELS = 4  # of headings
PAGE = "\n\f"  # separates pages; with white space, as some tokenizers drop the form feed
MARKUP = re.compile(r"^\W+\n|\n\W+$|^[\s#]+|[\s#]+$")  # of headings
TAG = re.compile(r"<[^>]*>")
NO_TITLE = re.compile(  # of applications and templates, names of files, headings of sections, ends of sentences
    r"(?i:\s*(?:microsoft \w+ - .*|untitled.*|(?:do[ck]umento?|pr[eäéæ]sentation|presentación|title|unknown)\s*\d*"
    r"|(?:slide|page|folie|dia|diapositiv[ae]|слайд|幻灯片|スライド) ?\d+"
    r"|power ?point\W*(?:pr[eäæ][sz]ent\w*|bemutató|esitys|sunusu|演示文稿|簡報|プレゼンテーション|프레젠테이션)"
    r"|a?(?:pr[eé][sz]ent|презент)\w*(?: \w+){0,2} power ?point"
    r"|[a-z]?\W*|.*\.(?:docx?|dotx?|dvi|eps|fm|html?|indd|md|od[pst]|p65|pages|pdf|png|pptx?|ps|pub|qxd|rtf|tex|txt|vsd|xlsx?)"
    r"|name|(?:table of )?contents|inhalt(?:sverzeichnis)?|inhoud(?:sopgave)?|sommaire|table des matières|índice|indice"
    r"|sumário|содержание|оглавление|目次|目录|목차|an?|and|are|as|at|by|for|from|in|is|it|of|on|or|that|the|this|to|with"
    r"|\(anonymous\))\W*$)|[a-zß-öø-ÿа-я].*\w\.$"
)


def heading_text(heading: str) -> str:
    """A heading without the markup of Markdown or reStructuredText."""
    heading = heading.strip()
    return " ".join(MARKUP.sub("", TAG.sub("", heading) if heading.startswith("<h") else heading).split())


class Text(NamedTuple):
    """What a reader returns for a file."""

    title: str  # empty if the file has none
    text: str  # with a form feed before each page but the first
    pages: int | None = None
    modified: str | None = None  # a day, as the document itself says
    language: str | None = None
    left_out: tuple[str, ...] = ()  # what of the file is not in the text, such as "2 cells without a saved value"


class LeftOut(Counter[str]):
    """How often a file has what is not in its text, such as `cell* without a saved value`, with * for the plural."""

    def said(self) -> tuple[str, ...]:
        return tuple(f"{count:,} {what.replace('*', 's' * (count > 1))}" for what, count in self.items() if count)


class Unreadable(Exception):
    """The reason why a file has no text, for people."""


MODULES = ("charset_normalizer", "lxml", "openpyxl", "py3langid", "pypdfium2", "webencodings")


def reader_of(format: str) -> str:
    """What a text depends on besides the file: the format, our code, and versions of packages. Raises CaiError without
    the extra `files`."""
    require_modules(MODULES, "files")
    names = (*FORMATS[format].packages, "py3langid")
    return " ".join([format, *map(str, code("text", format).values()), *(f"{name} {version(name)}" for name in names)])
