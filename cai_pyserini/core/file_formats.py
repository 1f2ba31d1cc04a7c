"""The formats of documents in files: one entry here, and a reader in collections/text/."""

from typing import NamedTuple

CHARACTERS = ("charset-normalizer", "webencodings")
HTML = ("lxml", *CHARACTERS)


class Format(NamedTuple):
    reader: str  # module and function in collections/text/
    suffixes: tuple[str, ...]
    packages: tuple[str, ...]  # whose versions determine the text

    @property
    def module(self) -> str:
        return f"collections.text.{self.reader.partition('.')[0]}"


FORMATS = {
    "csv": Format("plain.read_table", (".csv", ".tsv"), CHARACTERS),
    "docx": Format("office.read_docx", (".docx",), HTML),
    "eml": Format("mail.read_mail", (".eml",), HTML),
    "epub": Format("epub.read_epub", (".epub",), HTML),
    "html": Format("web.read_html", (".htm", ".html", ".xhtml"), HTML),
    "md": Format("plain.read_marked_up", (".markdown", ".md"), CHARACTERS),
    "odp": Format("opendocument.read_opendocument", (".odp",), ("lxml",)),
    "ods": Format("opendocument.read_opendocument", (".ods",), ("lxml",)),
    "odt": Format("opendocument.read_opendocument", (".odt",), ("lxml",)),
    "pdf": Format("pdf.read_pdf", (".pdf",), ("pypdfium2",)),
    "pptx": Format("office.read_pptx", (".pptx",), ("lxml",)),
    "rst": Format("plain.read_marked_up", (".rst",), CHARACTERS),
    "rtf": Format("rtf.read_rtf", (".rtf",), CHARACTERS),
    "txt": Format("plain.read_plain", (".txt",), CHARACTERS),
    "xlsx": Format("office.read_xlsx", (".xlsx",), ("lxml", "openpyxl")),
}
FORMAT_OF = {suffix: name for name, format in FORMATS.items() for suffix in format.suffixes}
