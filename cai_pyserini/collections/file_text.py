"""Read the text of documents in files, in a process that `isolated` limits: PDF, Office, HTML, EPUB, mail, text.

Nothing is fetched from a network: scripts, images and style sheets are not loaded, entities not resolved.
"""

import hashlib
import os
import re
from collections.abc import Callable
from importlib import import_module

import py3langid

from cai_pyserini.collections import isolated
from cai_pyserini.collections.formats import (
    HEADING,
    LEVELS,
    MAX_CHARACTERS,
    NO_TITLE,
    SAMPLE,
    TITLE_LENGTH,
    TOO_LONG,
    Text,
    Unreadable,
)
from cai_pyserini.core.file_formats import FORMATS

MIN_LETTERS = 200  # a language is not guessed from fewer
GAP = re.compile(  # form feeds stay, because they count the pages
    rf"(?:\n(?:[^\S\n\f]*\n)+)?({HEADING}+)|\n(?:[^\S\n\f]*\n){{2,}}"
)


def reader(format: str) -> Callable[[bytes], Text]:
    module, _, function = FORMATS[format].reader.partition(".")
    found: Callable[[bytes], Text] = getattr(import_module(f"cai_pyserini.collections.text.{module}"), function)
    return found


def read_file(call: tuple[str, str]) -> tuple[str, Text | isolated.Failed]:
    """The SHA-256 of a file, given its path and format, and its text, or why it has none."""
    path, format = call
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read()
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        return sha256, _finished(reader(format)(data))
    except Unreadable as error:
        if isinstance(error.__context__, MemoryError):  # nothing that the contents say
            raise error.__context__ from None
        return sha256, isolated.Failed(str(error))


def _finished(read: Text) -> Text:
    """The text, with more than a blank line only before headings, title and language. Raises Unreadable if it is empty
    or too long."""
    text = read.text.encode(errors="ignore").decode().replace("\0", "")  # without unpaired surrogates
    text = GAP.sub(_gap, text.replace("\r\n", "\n")).strip(" \n\t\r")
    if not text.strip():
        hint = ", ".join(read.left_out) or "scanned?" * bool(read.pages)
        raise Unreadable(f"has no text ({hint})" if hint else "has no text")
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(TOO_LONG)
    title = " ".join(read.title.encode(errors="ignore").decode().replace("\0", "").split())
    title = "" if NO_TITLE.match(title) else title[:TITLE_LENGTH]
    sample = text[:SAMPLE]
    language = py3langid.classify(sample)[0] if sum(map(str.isalpha, sample)) >= MIN_LETTERS else None
    return read._replace(title=title, text=text, language=language)


def _gap(between: re.Match[str]) -> str:
    """A blank line; before a heading more, up to LEVELS + 1 before the highest."""
    return "\n\n" + "\n" * (LEVELS + 1 - min(len(between[1]), LEVELS)) if between[1] else "\n\n"


if __name__ == "__main__":
    isolated.serve(read_file)
