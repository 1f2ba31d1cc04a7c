"""Documents to read: what readers of files leave of lines and headings, and what the page makes of them."""

import io
import re
import time
from pathlib import Path

import odfdo
import pikepdf
import pytest

from cai_pyserini.collections.file_text import read_file
from cai_pyserini.collections.formats import Text
from cai_pyserini.service.reading import PART, SLACK, blocks, headings, kind_of, part_starts
from tests.collections.test_file_folder import OFFICE, W, open_document, paragraph, pdf, saved, slides, zipped

STYLES = f'<w:styles xmlns:w="{W}"><w:style w:styleId="U2"><w:name w:val="heading 2"/></w:style></w:styles>'
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


def word(body: str) -> bytes:
    def relations(kind: str, target: str) -> str:
        return (
            f'<Relationships xmlns="{PACKAGE}"><Relationship Id="r" Type="{kind}" Target="{target}"/></Relationships>'
        )

    document = f'<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>'
    parts = {"_rels/.rels": relations(OFFICE, "word/document.xml"), "word/document.xml": document}
    kind = f"{OFFICE.rpartition('/')[0]}/styles"
    return zipped({**parts, "word/styles.xml": STYLES, "word/_rels/document.xml.rels": relations(kind, "styles.xml")})


def outlined() -> bytes:
    made = pikepdf.open(io.BytesIO(pdf("One", "2.1 Of toes", "Three")))
    with made.open_outline() as outline:
        outline.root.append(pikepdf.OutlineItem("One", 0))
        outline.root[0].children.append(pikepdf.OutlineItem("Of toes", 1))
    return saved(made)


ROW = "".join(f"<w:tc>{paragraph('a')}{paragraph(text)}</w:tc>" for text in "bc")
TITLED = paragraph("Of toes").replace("<w:p>", '<w:p><w:pPr><w:pStyle w:val="U2"/></w:pPr>')
FILES = {
    "md": b"Hands\n# Of toes #\nText\n## B\n```\n# comment\n\n\nprint()\n```\n* item\n  * inner",
    "rst": b"Hands\n\nOf toes\n=======\n\n* item\n\nB\n-\n\n=====\nNone\n\nB\n---\nText",
    "txt": b"Hands\n\n\nOf toes\n\n# comment\n\n1.2 B\n\n3. is no heading.\n\nName:  Value",
    "html": b"<p>Hands<h1>Of toes</h1><ul><li>x<li>y</ul><h2>B</h2><pre>if x:\n\n\n    y\n\n</pre>"
    b"<table><tr><td><p>a</p><td><p>b</p><tr><td><p>c</p><td>d</table><h3></h3>z",
    "docx": word(f"{paragraph('Hands')}{TITLED}{paragraph('Text')}<w:tbl><w:tr>{ROW}</w:tr></w:tbl>"),
    "odt": open_document(
        "text", "", odfdo.Paragraph("Hands"), odfdo.Header(2, "Of toes"), odfdo.Paragraph("x"), odfdo.Paragraph("y")
    ),
    "pptx": slides(),
    "pdf": outlined(),
}
EXPECTED = {
    "md": ([(1, "Of toes"), (2, "B")], "# Of toes #|Text|## B|```|# comment|print()|```|* item|  * inner"),
    "rst": ([(1, "Of toes"), (2, "B")], "Of toes|=======|* item|B|-|=====|None|B|---|Text"),
    "txt": ([(1, "Of toes"), (2, "1.2 B")], "Of toes|# comment|1.2 B|3. is no heading.|Name:  Value"),
    "html": ([(1, "Of toes"), (2, "B")], "Of toes|* x|* y|B|if x:|    y|a\tb|c\td|z"),
    "docx": ([(2, "Of toes")], "Of toes|Text|a b\ta c"),
    "odt": ([(2, "Of toes")], "Of toes|x|y"),
    "pptx": ([(1, "Long toes")], "|\f|Long toes|notes on Long toes"),
    "pdf": ([(2, "2.1 Of toes")], "One|\f|2.1 Of toes|\fThree"),
}


@pytest.mark.parametrize("format", FILES)
def test_lines_and_headings_of_files_stay(tmp_path: Path, format: str) -> None:
    """The faults: a table, a list or code becomes a line; headings are lost; a comment in code is one."""
    (tmp_path / "file").write_bytes(FILES[format])
    _, read = read_file((bytes(tmp_path / "file"), format))
    assert isinstance(read, Text)
    found, lines = EXPECTED[format]
    assert [(heading.level, heading.text) for heading in headings(read.text)] == found
    assert re.sub(r"\n+", "|", read.text).endswith(lines)


def test_blocks_are_what_their_lines_look_like() -> None:
    kinds = {
        "def f():\n    return 1": "code",
        "    indented\n    too": "code",
        "import a;\nimport b;": "code",
        "a\tb\nc\td": "table",
        "a,b,c\nd,e,f\ng,h,i": "table",
        "a, b\nc, d\ne, f": "lines",
        "a\tb\tc\nd\te": "lines",
        "* item\n  goes on": "lines",
        f"{'long ' * 12}\nshort": "wrapped",
        f"- {'long ' * 12}\nshort": "lines",
    }
    assert {block: kind_of(block) for block in kinds} == kinds
    text = "A\n\n\n\nTitle\n\n```\nx\n\ny\n```\nz\n\fNew page"
    found = [
        (block.kind, text[block.start : block.end]) for block in blocks(text, 0, len(text), {5: headings(text)[0]})
    ]
    assert [kind for kind, _ in found] == ["page", "lines", "heading", "code", "code", "page", "lines"]
    assert [shown for _, shown in found[1:3]] == ["A", "Title"] and found[-1][1] == "New page"


@pytest.mark.parametrize(
    "unit", ["x" * 70 + "\n", "word " * 9 + "\n\n", "字", "a\n\n\n\n", " ", "\f", "\n", "```\n", "\t"]
)
def test_parts_of_any_text_are_all_of_it_in_a_moment(unit: str) -> None:
    """The faults: a character is in no part or in two; time that grows with the square of the length."""
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()
    starts, contents = part_starts(text), {heading.start: heading for heading in headings(text)}
    ends = [*starts[1:], len(text)]
    assert all(0 < end - first <= PART + SLACK + 2 for first, end in zip(starts, ends, strict=True))
    for first, end in list(zip(starts, ends, strict=True))[:2]:
        shown = "".join(text[block.start : block.end] for block in blocks(text, first, end, contents))
        assert "".join(shown.split()) == "".join(text[first:end].split())
    assert time.process_time() - start < 2
