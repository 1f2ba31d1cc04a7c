"""Folders of files: what a document becomes, which files are left out, and when something is read again."""

import io
import logging
import os
import re
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from email.message import EmailMessage
from http.server import HTTPServer
from pathlib import Path

import odfdo
import openpyxl
import pikepdf
import pytest
from pptx import Presentation

from cai_pyserini.collections import file_folder as module
from cai_pyserini.collections import isolated, text_cache
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Record
from cai_pyserini.collections.file_folder import FileFolder
from cai_pyserini.collections.readers import load_collection, open_collection
from cai_pyserini.core.config import IndexConfig
from cai_pyserini.core.errors import CaiError
from tests.made_pdf import made_pdf
from tests.servers import Handler, answering

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"


def opened(folder: Path, **settings: object) -> FileFolder:
    """A folder of files, opened as a run opens it."""
    collection = open_collection(IndexConfig(name="made", source=str(folder), **settings))
    assert isinstance(collection, FileFolder)
    return collection


def records(folder: Path, **settings: object) -> dict[str, Record]:
    return {record.id: record for record in opened(folder, **settings).records()}


def pdf(*pages: str, title: str = "", **saving: object) -> bytes:
    """A PDF with a line per page."""
    made = pikepdf.open(io.BytesIO(made_pdf([[("body", text)] * bool(text) for text in pages])))
    made.docinfo["/Title"], made.docinfo["/ModDate"] = title, "D:20200517120000"
    return saved(made, **saving)


def zipped(parts: dict[str, str | bytes]) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return buffer.getvalue()


def docx(body: str) -> bytes:
    """A Word file with this body, as Word writes it."""
    target = f'<Relationship Id="r1" Type="{OFFICE}" Target="word/document.xml"/>'
    document = f'<?xml version="1.0"?><w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>'
    return zipped(
        {"_rels/.rels": f'<Relationships xmlns="{RELATIONS}">{target}</Relationships>', "word/document.xml": document}
    )


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def saved(document: object, **settings: object) -> bytes:
    document.save(buffer := io.BytesIO(), **settings)  # type: ignore[attr-defined]
    return buffer.getvalue()


def slides() -> bytes:
    show = Presentation()
    for title in ("Short fingers", "Long toes"):
        slide = show.slides.add_slide(show.slide_layouts[5])
        slide.shapes.title.text = title
        slide.notes_slide.notes_text_frame.text = f"notes on {title}"
    return saved(show)


def sheets(*row: object) -> bytes:
    book = openpyxl.Workbook()
    book.active.title = "Sizes"
    book.active.append(row)
    return saved(book)


def open_document(kind: str, title: str, *content: odfdo.Element) -> bytes:
    document = odfdo.Document(kind)
    document.body.clear()
    for element in content:
        document.body.append(element)
    document.meta.title = title
    return saved(document)


def open_text() -> bytes:
    table = odfdo.Table("Table1", width=2, height=1)
    table.set_values([["finger", "short"]])
    return open_document("text", "", odfdo.Header(1, "Of hands"), odfdo.Paragraph("Short\tfingers"), table)


def open_slides() -> bytes:
    frames = [
        odfdo.Frame.text_frame(text, presentation_class=style)
        for text, style in (("All", "outline"), ("Toes", "title"))
    ]
    pages = [odfdo.DrawPage(f"page{number}") for number in range(2)]
    for page, frame in zip(pages, frames, strict=True):
        page.append(frame)
    return open_document("presentation", "", *pages)


def open_sheets() -> bytes:
    tables = [odfdo.Table(name) for name in ("Sizes", "Empty")]
    tables[0].set_values([["finger", 7.5, None, "cm"]])
    return open_document("spreadsheet", "All sizes", *tables)


def mail() -> bytes:
    message = EmailMessage()
    message["Subject"], message["From"] = "Grüße", "a@example.org"
    message["Date"] = "Sun, 17 May 2020 12:00:00 +0000"
    message.set_content("Plain words.\n")
    message.add_alternative("<p>Marked words.</p>", subtype="html")
    message.add_attachment(b"x", maintype="application", subtype="zip", filename="all.zip")
    return bytes(message)


def book() -> bytes:
    container = '<container><rootfiles><rootfile full-path="in/b.opf"/></rootfiles></container>'
    items = "".join(f'<item id="{id}" href="{id}%20x.xhtml"/>' for id in "ab")
    title = '<dc:title xmlns:dc="http://purl.org/dc/elements/1.1/">Bones</dc:title>'
    order = '<spine><itemref idref="b"/><itemref idref="a"/></spine>'
    package = f"<package><metadata>{title}</metadata><manifest>{items}</manifest>{order}</package>"
    chapters = {f"in/{id} x.xhtml": f"<html><body><p>chapter {id}</p></body></html>" for id in "ab"}
    return zipped({"META-INF/container.xml": container, "in/b.opf": package, **chapters})


PAGE = """<html><head><title>Hands</title><script>let hidden</script></head><body><nav>Menu</nav>
<table><tr><td>finger</td><td>short</td></tr></table><pre>for x in y:
    print(x)</pre><p>Naïve</p></body></html>"""
REVISED = (
    "<w:p><w:ins><w:r><w:t>inserted</w:t></w:r></w:ins><w:del><w:r><w:delText>gone</w:delText></w:r></w:del></w:p>"
)
BEFORE_TITLE = "\n" * 6
FRENCH = "Les élèves français préfèrent déjà la crème brûlée à Noël, où leur mère âgée la fait répéter."
CELLS = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("finger", "short"))
FILES: dict[str, str | bytes] = {
    "a.pdf": pdf("first page", "", "third page", title="Of bones"),
    "b.docx": docx(f"{paragraph('Words')}{REVISED}<w:tbl><w:tr>{CELLS}</w:tr></w:tbl>"),
    "c.pptx": slides(),
    "d.xlsx": sheets("finger", 7.5, None, "cm"),
    "e.html": PAGE,
    "f.md": "---\r\ntitle: 'Front'\r\n---\r\n# First\r\nText.",
    "g.rst": "#######\nHeading\n#######\n\nText.",
    "h.txt": "G\bG\x1b[1mröße\x1b[0m".encode("utf-16"),
    "i.eml": mail(),
    "j.epub": book(),
    "k.rtf": r"{\rtf1\ansi{\info{\title Rich}}Some {\b bold} text.}",
    "sub/50% of #1 file.md": "## A long\tname\nText.",
    "l.htm": FRENCH.encode("latin-1"),
    "m.odt": open_text(),
    "n.ods": open_sheets(),
    "o.odp": open_slides(),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write files by path, with old times, to a folder."""

    def write(files: dict[str, str | bytes]) -> Path:
        folder = tmp_path / "files"
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            os.utime(path, ns=(10**18, 10**18))
        return folder

    return write


def test_every_format_becomes_a_document(write) -> None:
    found = records(write(FILES), base_url="https://example.org/x/")
    titles = {id: record.title for id, record in found.items()}
    assert titles == {
        **{"a.pdf": "Of bones", "b.docx": "b", "c.pptx": "Short fingers", "d.xlsx": "d", "e.html": "Hands"},
        **{"f.md": "Front", "g.rst": "Heading", "h.txt": "h", "i.eml": "Grüße", "j.epub": "Bones", "k.rtf": "Rich"},
        **{"l.htm": "l", "m.odt": "Of hands", "n.ods": "All sizes", "o.odp": "Toes"},
        **{"sub/50%25%20of%20%231%20file.md": "A long name"},
    }
    text = {id: record.text for id, record in found.items()}
    assert text["a.pdf"] == "first page\n\f\n\fthird page"
    assert text["b.docx"].split() == ["Words", "inserted", "finger", "short"]
    assert text["c.pptx"].split("\f") == [
        "Short fingers\n\nnotes on Short fingers\n",
        f"{BEFORE_TITLE}Long toes\n\nnotes on Long toes",
    ]
    assert text["d.xlsx"] == "Sizes\n\nfinger\t7.5\tcm"
    assert "Menu" not in text["e.html"] and "hidden" not in text["e.html"] and "Hands" not in text["e.html"]
    assert all(each in text["e.html"] for each in ("finger\tshort", "for x in y:\n    print(x)", "Naïve"))
    assert text["h.txt"] == "Größe"
    assert "From: a@example.org" in text["i.eml"] and "Plain words." in text["i.eml"] and "all.zip" in text["i.eml"]
    assert text["j.epub"].split() == ["chapter", "b", "chapter", "a"]
    assert text["k.rtf"] == "Some bold text."
    assert text["l.htm"] == FRENCH
    assert re.split(r"[\n\t]+", text["m.odt"]) == ["Of hands", "Short", "fingers", "finger", "short"]
    assert text["n.ods"].split() == ["Sizes", "finger", "7.5", "cm", "Page"]  # a footer
    assert text["o.odp"] == "All\n\fToes" and found["o.odp"].metadata["pages"] == 2
    metadata = found["a.pdf"].metadata
    assert metadata == {
        **{"path": "a.pdf", "type": "pdf", "modified": "2020-05-17", "size": len(FILES["a.pdf"]), "pages": 3},
        **{"url": "https://example.org/x/a.pdf"},
    }
    last = found["sub/50%25%20of%20%231%20file.md"].metadata
    assert last["url"] == "https://example.org/x/sub/50%25%20of%20%231%20file.md"
    assert (last["path"], last["modified"]) == ("sub/50% of #1 file.md", "2001-09-09")


def test_a_title_that_says_nothing_gives_way_to_the_name_of_the_file(write) -> None:
    """The fault: all manual pages are called NAME."""
    nothing = ("NAME", "Table of contents", "them.", "PowerPoint Presentation", "Microsoft Word - x.doc", "a b.tex")
    files = {f"{number}.md": f"# {title}\ncp copies" for number, title in enumerate(nothing)}
    files |= {"ls.1.html": "<h1>NAME</h1><p>ls lists", "a.pdf": pdf("x", title="Contents")}
    found = records(write(files))
    assert {id: record.title for id, record in found.items()} == {name: Path(name).stem for name in files}


def test_a_title_that_says_something_stays(write) -> None:
    titles = ["Names of things", "Introduction to PowerPoint", "Node.js", "Debian Reference 2.100", "1984", "猫"]
    files = {}
    for number, title in enumerate(titles):
        files[f"{number}.html"] = f"<title>{title}</title><p>x"
        files[f"{number}-front.md"] = f'+++\ntitle = "{title}"\n+++\n# x'
        files[f"{number}-heading.md"] = (
            f"```\n# comment\n```\n<h1><img></h1><h1 align=center><b>{title}</b></h1>\n\n## x"
        )
    assert {id: record.title for id, record in records(write(files)).items()} == {
        name: titles[int(name[0])] for name in files
    }


def test_passages_know_their_page(write) -> None:
    folder = write({"a.pdf": pdf("one two three", "", "four five", "six"), "b.txt": "one two three four"})
    collection = opened(folder, passages=2)
    assert collection.metadata["page"] == "number"
    found = {record.id: (record.text, record.metadata.get("page")) for record in collection.records()}
    assert found["a.pdf#0"] == ("one two ", 1)
    assert found["a.pdf#1"] == ("three\n\f\n\f", 1)
    assert found["a.pdf#2"] == ("four five\n\f", 3)
    assert found["a.pdf#3"] == ("six", 4)
    assert found["b.txt#1"] == ("three four", None)
    assert "page" not in opened(folder).metadata


def test_the_folder_chooses_the_reader(write, tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The fault: a collection in BEIR's format with a README becomes two documents."""
    caplog.set_level(logging.INFO)
    assert type(load_collection(str(tiny))) is BeirFolder
    line = '{"_id": "d", "text": "x"}'
    folder = write({"README.md": "x", "part-0.jsonl": line})
    assert [document.id for document in load_collection(str(folder)).documents()] == ["d"]
    (folder / "part-0.jsonl").rename(folder / "documents.csv")
    with pytest.raises(CaiError, match=r"no file .*corpus.jsonl"):
        list(load_collection(str(folder)).documents())
    write({"a.html": "<p>x", "b.png": "", ".hidden.md": "x", "runs/x/report.md": "x", "runs/x/results.json": "{}"})
    assert list(records(folder)) == ["README.md", "a.html", "documents.csv"]
    assert f"{folder}: every file is a document: 1 md, 1 html, 1 csv; not read: 1 .png" in caplog.text
    write({"queries.jsonl": '{"_id": "q", "text": "x"}', "qrels/test.tsv": "q\tREADME.md\t1\n"})
    collection = opened(folder)
    assert collection.topics("test") == {"q": "x"} and collection.qrels("test") == {"q": {"README.md": 1}}
    assert len([*collection.documents()]) == 3
    for key in ("columns", "metadata"):
        with pytest.raises(CaiError, match=f"{key} does not apply"):
            opened(folder, **{key: {"id": "x"} if key == "columns" else {"x": "number"}})
    with pytest.raises(CaiError, match="base_url applies to a folder of files"):
        open_collection(IndexConfig(name="tiny", source=str(tiny), base_url="https://example.org"))


def bomb() -> bytes:
    """An archive that says that it unpacks to 1 GiB."""
    size = b"sixteen".ljust(16)
    return zipped({"x": size}).replace(b"\x10\0\0\0\1\0", b"\0\0\0\x40\1\0")


LAUGHS = "".join(f'<!ENTITY l{number} "{f"&l{number - 1};" * 10 if number else "lol"}">' for number in range(10))
LAUGH = f'<?xml version="1.0"?><!DOCTYPE x [{LAUGHS}]>'
BROKEN: dict[str, tuple[str | bytes, str]] = {
    "broken.pdf": (b"%PDF-1.4\nnothing", "is broken"),
    "broken.docx": (docx("")[:-30], "is broken"),
    "bomb.xlsx": (bomb(), "unpacks to more than"),
    "empty.txt": ("", "is empty"),
    "laugh.epub": (zipped({"META-INF/container.xml": f"{LAUGH}<container>&l9;</container>"}), "."),
    "laugh.odt": (zipped({"META-INF/manifest.xml": "", "content.xml": f"{LAUGH}<a><body><p>&l9;</p></body></a>"}), "."),
    "bomb.odt": (bomb(), "unpacks to more than"),
    "locked.odt": (zipped({"META-INF/manifest.xml": "<encryption-data/>", "content.xml": b"x"}), "is encrypted"),
    "formula.xlsx": (sheets("=1+1"), r"has no text \(1 cell without a saved value\)"),
    "image.docx": (docx("<w:p/>"), "has no text"),
    "locked.pdf": (pdf("x", encryption=pikepdf.Encryption(owner="a", user="b")), "is encrypted"),
    "old.docx": (b"\xd0\xcf\x11\xe0" + b"x" * 1000, "is encrypted, or in a format older"),
    "scanned.pdf": (pdf("", ""), r"has no text \(scanned\?\)"),
    "zeros.txt": ("a\0b", "is not text"),
}


def test_files_that_cannot_be_read_are_named_and_left_out(write, caplog: pytest.LogCaptureFixture) -> None:
    folder = write({"good.txt": "good", **{name: content for name, (content, _) in BROKEN.items()}})
    (folder / "out.txt").symlink_to("/etc/hostname")
    (folder / "away").symlink_to("/etc")
    (folder / "same.txt").symlink_to("good.txt")
    os.mkfifo(folder / "pipe.txt")
    found = opened(folder)
    assert {record.id for record in found.records()} == {"good.txt"}
    listing = max(text_cache.cache_folder().glob("unread-*.tsv"), key=lambda path: path.stat().st_mtime_ns)
    reasons = dict(line.split("\t") for line in listing.read_text().splitlines())
    link = "is a link to what is not read in this folder"
    expected = {name: reason for name, (_, reason) in BROKEN.items()}
    expected |= {"out.txt": link, "away": link, "pipe.txt": "is not a regular file"}
    assert reasons.keys() == expected.keys() >= BROKEN.keys()
    for name, reason in expected.items():
        assert re.search(reason, reasons[name]), (name, reasons[name])
    total = len(expected) + 1
    said = f"of {total} files, {total - 1} are left out: away {link}; b"
    assert said in caplog.text and str(listing) in caplog.text
    with pytest.raises(CaiError, match=rf"away {link} \(\d+ such files\); move them away"):
        list(opened(folder, strict=True).documents())


def test_nothing_is_fetched(write) -> None:
    """The fault: a document makes its reader fetch an image, a style sheet, a DTD or an entity from a network."""
    asked = []

    class Web(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)

    server = HTTPServer(("127.0.0.1", 0), Web)
    url = f"http://127.0.0.1:{server.server_port}/x"
    entity = f'<!DOCTYPE x SYSTEM "{url}" [<!ENTITY e SYSTEM "{url}"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    page = f'<html><head><link rel="stylesheet" href="{url}"></head><body><img src="{url}">text &e;&f;</body></html>'
    manifest = "<manifest><item id='a' href='a.xhtml'/></manifest><spine><itemref idref='a'/></spine>"
    package = f"<package><metadata/>{manifest}</package>"
    files = {
        "a.html": page,
        "b.xhtml": f'<?xml version="1.0"?>{entity}{page}',
        "c.epub": zipped(
            {
                "META-INF/container.xml": f"{entity}<container><rootfile full-path='b.opf'/>&e;&f;</container>",
                **{"b.opf": f"{entity}{package}", "a.xhtml": f"{entity}{page}"},
            }
        ),
    }
    with answering(server):
        found = records(write(files))
    assert not asked
    assert found.keys() == files.keys() and not any("root:" in record.text for record in found.values())


def test_only_what_changes_is_read_again(write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: a file that was only touched, copied or moved is read again; a changed one is not."""
    read = []
    real = module.isolated

    def counted(program, calls, *limits):
        read.extend(Path(os.fsdecode(path)).name for path, _ in calls)
        return real(program, calls, *limits)

    monkeypatch.setattr(module, "isolated", counted)
    folder = write({"a.md": "once", "b.md": "two", "c.md": "three"})

    def digests() -> tuple[str, list[str | None], str | None]:
        collection = opened(folder)
        assert [*collection.documents()]
        return collection.fingerprint("documents"), collection.documents_digest, collection.metadata_fingerprint

    first = digests()
    assert sorted(read) == ["a.md", "b.md", "c.md"]
    read.clear()
    assert digests() == first
    os.utime(folder / "a.md")
    assert digests() == first and not read
    (folder / "c.md").rename(folder / "d.md")
    moved = digests()
    assert moved[0] != first[0] and moved[1] != first[1] and not read
    (folder / "d.md").rename(folder / "c.md")
    assert digests() == first and not read
    write({"b.md": "owt"})
    os.utime(folder / "b.md", ns=(10**18, 10**18 + 1))
    assert digests()[0] != first[0] and read == ["b.md"]
    (folder / "b.md").unlink()
    assert list(records(folder)) == ["a.md", "c.md"]
    write({"b.md": "two"})
    assert digests() == first and read == ["b.md"]  # its text was kept for a day
    (cached,) = text_cache.cache_folder().glob("*.sqlite")
    with closing(sqlite3.connect(cached)) as database, database:
        database.execute("UPDATE files SET gone = 1 WHERE gone IS NOT NULL")
    (folder / "b.md").unlink()
    assert len(records(folder)) == 2
    monkeypatch.setattr("cai_pyserini.core.identity.changed_stages", lambda: {"text md": "0" * 16})
    read.clear()
    assert digests()[0] != first[0] and sorted(read) == ["a.md", "c.md"]


def test_a_file_that_changes_during_a_run_makes_no_mixture(write) -> None:
    folder = write({"a.md": "before", "b.md": "before"})
    collection = opened(folder)
    before = collection.fingerprint("documents")
    write({"a.md": "after!"})
    os.utime(folder / "a.md")
    (folder / "b.md").unlink()
    assert [record.text for record in collection.records()] == ["before", "before"]
    assert opened(folder).fingerprint("documents") != before == collection.fingerprint("documents")


@pytest.mark.slow
def test_a_reader_that_hangs_crashes_or_grows_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile.py").write_text(
        "import os, time\n"
        "from cai_pyserini.collections import isolated\n"
        "def act(call):\n"
        "    if call == 'wait': time.sleep(600)\n"
        "    while call == 'hang': pass\n"
        "    if call == 'crash': os.abort()\n"
        "    if call == 'grow': return len(bytearray(1 << 33))\n"
        "    if call == 'deep': return act('deep')\n"
        "    return call.upper()\n"
        "isolated.serve(act)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    calls = ["wait", "hang", "crash", "grow", "deep", "fine", "well"]
    results = dict(isolated.isolated("hostile", calls, 2, seconds=5, cpu_seconds=0.5))
    assert results["wait"] == isolated.Failed("took more than 5 seconds")
    assert results["hang"] == isolated.Failed("takes more than 0.5 seconds of processor time", lasts=True)
    assert results["crash"].reason == "crashed its reader (SIGABRT)"
    assert results["grow"].reason == "needs more than 1.5 GiB of memory"
    assert results["deep"].reason == "is nested too deeply"
    assert (results["fine"], results["well"]) == ("FINE", "WELL")
    (tmp_path / "hostile.py").write_text("import absent")
    with pytest.raises(CaiError, match="a process failed to start"):
        list(isolated.isolated("hostile", calls, 2))
