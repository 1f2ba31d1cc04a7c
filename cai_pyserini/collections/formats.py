"""The formats of files that `files` reads as documents."""

from functools import cache
from importlib.metadata import version
from typing import NamedTuple

from cai_pyserini.core.packages import require_modules

VERSION = 2  # raise it if a reader returns another text for the same file
HTML = ("inscriptis", "lxml")


class Text(NamedTuple):
    """What a reader returns for a file."""

    title: str  # empty if the file has none
    text: str  # with a form feed before each page but the first
    pages: int | None = None
    modified: str | None = None  # a day, as the document itself says
    language: str | None = None


SUFFIXES = {
    ".csv": "csv",
    ".docx": "docx",
    ".eml": "eml",
    ".epub": "epub",
    ".htm": "html",
    ".html": "html",
    ".markdown": "md",
    ".md": "md",
    ".odp": "odp",
    ".ods": "ods",
    ".odt": "odt",
    ".pdf": "pdf",
    ".pptx": "pptx",
    ".rst": "rst",
    ".rtf": "rtf",
    ".tsv": "csv",
    ".txt": "txt",
    ".xhtml": "html",
    ".xlsx": "xlsx",
}
PACKAGES: dict[str, tuple[str, ...]] = {  # whose versions determine the text
    "docx": ("mammoth", *HTML),
    "eml": HTML,
    "epub": HTML,
    "html": HTML,
    "odp": ("lxml",),
    "ods": ("lxml",),
    "odt": ("lxml",),
    "pdf": ("pypdfium2",),
    "pptx": ("python-pptx",),
    "rtf": ("striprtf",),
    "xlsx": ("openpyxl",),
}
MODULES = ("inscriptis", "mammoth", "openpyxl", "pptx", "py3langid", "pypdfium2", "striprtf")


@cache
def reader_of(format: str) -> str:
    """What a text depends on besides the file: the format, and versions. Raises CaiError without the extra `files`."""
    require_modules(MODULES, "files")
    names = (*PACKAGES.get(format, ()), "py3langid")
    return " ".join([f"{format} {VERSION}", *(f"{name} {version(name)}" for name in names)])
