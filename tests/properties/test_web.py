"""Pages, mails and e-books with a marked word wherever people can write: each is in the text, or said to be left out.

The faults: an empty plain part hides the HTML; the text after an image, a forwarded mail, a chapter in other case, and
everything after an empty <title/>, </html>, a bad byte, or 256 nested elements is gone without a word.
"""

import base64
import binascii
import os
import quopri
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cai_pyserini.collections import file_text
from cai_pyserini.collections.formats import Text
from cai_pyserini.collections.isolated import Failed
from tests.collections.test_file_folder import zipped

Read = Callable[[str, bytes], Text]
MARK = re.compile(r"\bmark\d+x\b")

# Where people write; each {} becomes a marked word.
IN_BODY = (
    "<p>{}</p>{}<div>a <b>{}</b> c</div>",
    "<pre>  x\n    {}</pre>",
    "<table><caption>{}</caption><tr><td>{}<th>{}<tfoot><tr><td>{}</table>",
    "<table><tr><td><table><tr><td>{}</table><td><p>{}<p>{}</table>",
    "<table>{} <tr>{} <td>{}</table>",
    "<ul><li>{}<ul><li>{}</ul><li><p>{}</ul><ol start=7><li>{}</ol><dl><dt>{}<dd>{}</dl>",
    "<textarea placeholder='{}'>a <b> {}</textarea>",
    "<select><optgroup label='{}'><option>{}<option label='{}'>x</select><datalist><option value=x>{}</datalist>",
    "<button title={}>{}</button><input value={}><input type=submit value='{}'><input type=email placeholder={}>",
    "<input type=image alt={}><fieldset><legend>{}</legend><label>{}</label> <output>{}</output></fieldset>",
    "<progress>{}</progress><meter>{}</meter><details><summary>{}</summary>{}</details><dialog>{}</dialog>",
    "<img alt={} title={}><map><area alt='{}'></map><abbr title='a {} b'>x</abbr><i aria-label='{}'></i>",
    "<figure><img alt={}><figcaption>{}</figcaption></figure>",
    "<noscript>{}<img alt={}></noscript><noembed><p>{}</p></noembed>",
    "<iframe srcdoc='&lt;p&gt;{}&lt;iframe srcdoc=&quot;{}&quot;>&lt;/iframe>'></iframe><iframe><p>{}</p></iframe>",
    "<svg><title>{}</title><desc>{}</desc><text>{}<tspan>{}</tspan></text><foreignObject>{}</foreignObject></svg>",
    "<svg><text><![CDATA[{}]]></text><style>x</style><script>y</script><g/><text>{}</text></svg>",
    "<math alttext={}><mi>{}</mi><mo>=</mo><mtable><mtr><mtd>{}</mtd></mtr></mtable><annotation>{}</annotation></math>",
    "<ruby>{}<rp>(</rp><rt>{}</rt><rp>)</rp></ruby> <del>{}</del> <ins>{}</ins>",
    "<div hidden>{}</div><div style='display:none'>{}</div><center>{}</center>",
    "<object data=x>{}</object><video><source src=y><track label={}>{}</video><audio>{}</audio><canvas>{}</canvas>",
    "<embed src=x>{}<my-element>{}</my-element><my-element>{}</my-element>",
    "<template shadowrootmode=open>{}</template><xmp><b> {}</xmp><listing>{}</listing>",
    "<a href=x>{}</a> <a name=y/>{} <a id='z'/>{}<div/>{}<title/>{}<script src='x'/> <i>{}</i>",
    "<h1>{}</h1><h3>{}</h3><header><h2>{}</h2></header><footer>{}</footer><aside>{}</aside><main>{}</main>",
    "<div class=menu><p>{} with words</p><a href=x>y</a></div><p>{}<ul><li><a href=x>{}</a><li><a href=y>{}</a></ul>",
    "&#{}; {} &unknown; {} <? x ?>{}</p></i></div>{}",
    "<aside role=doc-endnotes><p>1. <a href=x>{}</a></aside><p>{}<script type='math/tex'>{}</script>",
    "<div class='page-header'><h1>{}</h1><a href=x>{}</a></div>",
)
AROUND = (
    *("<div>{}</div>", "<table><tr><td>{}</td></tr></table>", "<ul><li>{}", "<p><font color=red>{}", "{}<!-- -->"),
    *(
        "<form>{}</form>",
        "<details open>{}</details>",
        "<blockquote>{}",
        "<b><i>{}",
        "<section class='page'>{}</section>",
    ),
    *("<font>" * 300 + "{}", "<div>" * 3000 + "{}", "<my-box>{}</my-box>", "<span dir=rtl>{}</span>"),
)
IN_HEAD = (
    "<title>{}</title>",
    "<title>{} " + "long " * 60 + "{}</title>",
    "<title>{} and Node.js</title>",
    "<meta name=description content='{}'><meta content={} name=Keywords><meta property='og:description' content={}>",
    "<title>x</title><title>{}</title>",
)
NOT_TEXT = (
    *("<!-- {} -->", "<script>{}</script>", "<style>{}</style>", "<template>{}</template>", "<nav>{}</nav>"),
    *("<div role=navigation>{}</div>", "<div class='main nav'>{}</div>", "<input type=hidden value={}>"),
    *("<footer class=page><a href=x>{}</a></footer>", "<h4>x<a class=headerlink title={} href=x>¶</a></h4>"),
    "<ul class='side-menu'><li><a href=x>{}</a></ul>",
    "<ul class=docnav><li><a href=x>{}</a></ul>",
    "<div class=menu-bar><button title='{}'>x</button></div>",
)
BODY = "<p>" + "A page has more text than navigation, or else its navigation is its text. " * 9


class Marks:
    """Numbers marked words."""

    def __init__(self) -> None:
        self.made: set[str] = set()

    def fill(self, template: str) -> str:
        def mark() -> str:
            self.made.add(f"mark{len(self.made)}x")
            return f"mark{len(self.made) - 1}x"

        return re.sub(r"\{\}", lambda _: mark(), template)


def marked(text: Text) -> set[str]:
    return {*MARK.findall(f"{text.title} {text.text}")}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Read a file of a format."""
    path = tmp_path_factory.mktemp("read") / "file"

    def read(format: str, data: bytes) -> Text:
        path.write_bytes(data)
        text = file_text.read_file((os.fsencode(path), format))[1]
        assert isinstance(text, Text), text
        return text

    return read


places = st.tuples(st.sampled_from(IN_BODY), st.lists(st.sampled_from(AROUND), max_size=3))


@given(
    head=st.lists(st.sampled_from(IN_HEAD), max_size=2),
    body=st.lists(places, min_size=1, max_size=12),
    end=st.sampled_from(
        [
            "",
            "</body></html>",
            "<plaintext>{}<b>",
            "</html>{}</body> {}<html><head><title>{}</title><body>{}",
            "<noframes><p>{}",
        ]
    ),
)
def test_every_marked_word_of_a_page_is_read(read: Read, head, body, end) -> None:
    marks = Marks()
    parts = []
    for template, around in body:
        for each in around:
            template = each.replace("{}", template)
        parts.append(marks.fill(template))
    page = (
        "<!doctype html><html><head>" + "".join(map(marks.fill, head)) + BODY + " ".join(parts) + " " + marks.fill(end)
    )
    text = read("html", page.encode())
    assert marks.made - marked(text) == set(), page[:3000]


@pytest.mark.parametrize("template", NOT_TEXT)
def test_what_is_not_text_is_not_read(read: Read, template: str) -> None:
    """The faults: scripts, comments and menus are found, and menus outrank the pages they lead to."""
    marks = Marks()
    page = BODY + marks.fill(f"<p>{{}}</p>{template}<p>{{}}</p>") + BODY
    assert marks.made - marked(read("html", page.encode())) == {"mark1x"}


def test_bars_of_links_at_both_ends_are_not_read(read: Read) -> None:
    """The faults: bars of links are found instead of the pages they lead to; or lists of references vanish."""
    bar = "<p><a href=a.html>{}</a> | <a href=b.html>{}</a> | <a href=c.html>{}</a></p>"
    lists = "<p>{}</p><ul><li><a href=a.html>{}</a><li><a href=b.html>{}</a></ul>"
    table = "<table><tr><th>{}<tr><td><a href=a.html>{}</a><td><a href=b.html>{}</a></table>"
    sources = "<p><a href=https://example.org/a>{}</a> <a href=https://example.org/b>{}</a></p>"
    for start, end, read_marks in (
        (bar, bar, 0),
        ("<h1><a href=a>{}</a></h1>", "", 1),
        ("", lists, 3),
        ("", table, 3),
        ("", f"<h2>See also</h2>{bar}", 3),
        ("", sources, 2),
    ):
        marks = Marks()
        page = marks.fill(start) + BODY + marks.fill(end)
        assert len(marked(read("html", page.encode()))) == read_marks, page
    marks = Marks()
    assert marked(read("html", marks.fill(f"<p>{{}}</p>{bar * 9}").encode())) == marks.made  # most of the page


@pytest.mark.parametrize(
    "word",
    [
        *("Smith<sup>1</sup>", "Smith<sup><a href=x>1</a></sup>", "Smith<a href=x><sup>1,2</sup></a>"),
        *("<a href=x>Smith</a><a href=y>Wesson</a>", "<b>Smith</b><i class='label label-info'>new</i>"),
        *("<b>Smith</b><i class=classifier>str</i>", "<i class=linenos>1</i>Smith", "Smith<time>2020</time>"),
    ],
)
def test_what_stands_beside_a_word_is_no_part_of_it(read: Read, word: str) -> None:
    """The faults: authors with a note, typed parameters and the first words of numbered lines are not found."""
    page = f"<p>{word}, H<sub>2</sub>O, km<sup>2</sup>, XIX<sup>e</sup>, 1<sup>st</sup>, foot<a href=x>ball</a>"
    found = {*re.findall(r"\w+", read("html", page.encode()).text)}
    assert {"Smith", "H2O", "km2", "XIXe", "1st", "football"} <= found


def test_frames_have_no_body(read: Read) -> None:
    page = "<html><head><title>x</title></head><frameset><frame src=a><noframes><body>{}<p>{}</noframes></frameset>"
    marks = Marks()
    assert marked(read("html", marks.fill(page).encode())) == marks.made


CALENDAR = (
    "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:{}\nDESCRIPTION;LANGUAGE=en:{}\\n{}\\, and\n  {}\nLOCATION:{}\n"
    'ATTENDEE;CN="{}";ROLE=X:mailto:a@example.org\nORGANIZER;CN={}:mailto:{}@example.org\nEND:VEVENT\nEND:VCALENDAR\n'
)
RTF = "{\\rtf1\\ansi {} {\\b {}}}"
STATUS = "Reporting-MTA: dns; {}\n\nFinal-Recipient: rfc822; {}@example.org\nDiagnostic-Code: smtp; 550 {}\n"
ARMOURED = "{}\n-----BEGIN PGP MESSAGE-----\n\nhQEMA\n-----END PGP MESSAGE-----\n{}\n"
# Headers of parts, and what they contain.
TEXTS = (
    ("", "{}\n\n{}\n"),
    ("Content-Type: text/plain; charset=us-ascii", "{} Grüße {}\n"),
    ("Content-Type: text/plain; charset=iso-8859-1", "{} Grüße {}\n"),
    ("Content-Type: text/plain; charset*=utf-8''gb2312", "{} 朱镕基 {}\n"),
    ("Content-Type: text/plain; charset=nonsense", "{} Grüße\n"),
    ("Content-Type: text/plain; charset=utf-8; format=flowed; delsp=yes", "{}, wor \nds {}\n"),
    ("Content-Type: text/html; charset=windows-1251", "<p>{} Насос<p>{}<img alt={}><title>{}</title>"),
    ("Content-Type: text/html", "<meta charset=koi8-r><p>{} Насос<p>{}"),
    ("Content-Type: TEXT/HTML; charset=utf-8", "<html><head><title/></head><body>{} Grüße"),
    ("Content-Type: text/calendar; method=REQUEST; charset=utf-8", CALENDAR),
    ("Content-Type: application/ics; name=a.ics", CALENDAR),
    ("Content-Type: text/csv; name=a.csv\nContent-Disposition: attachment; filename={}.csv", "a,{}\n{},2\n"),
    ("Content-Type: text/x-patch\nContent-Disposition: inline; filename=a.patch", "--- a\n+++ b\n+{}\n"),
    ("Content-Type: text/rtf", RTF),
    ("Content-Type: application/rtf", RTF),
    ("Content-Type: text/enriched", "<bold>{}</bold> {}"),
    ("Content-Type: message/delivery-status", STATUS),
    ("Content-Type: message/rfc822", "From: {} <a@example.org>\nSubject: =?utf-8?q?{}?=\n\n{}\n"),
    ("Content-Type: message/rfc822\nContent-Disposition: attachment", "Subject: x\nContent-Type: text/html\n\n<p>{}"),
    ("Content-Type: text/rfc822-headers", "Subject: {}\n"),
    ("Content-Type: multipart/mixed", "{} without a boundary\n"),
    ("Content-Type: image/png; name={}.png", ""),
)
SAID = (
    ("Content-Type: application/pdf; name={}.pdf", "%PDF"),
    ("Content-Type: application/ms-tnef; name=winmail.dat", "x"),
    ("Content-Type: application/pkcs7-mime; smime-type=enveloped-data; name=smime.p7m", "x"),
    ("Content-Type: multipart/encrypted; boundary=secret", "--secret\n\nx\n--secret--"),
    ("Content-Type: text/plain", ARMOURED),
    ("Content-Type: text/rtf", "{\\rtf1 {}{\\object{\\*\\objdata 00}}}"),
)
TRANSFER = ("", "8bit", "base64", "quoted-printable", "x-uuencode")


def encoded(headers: str, content: str, transfer: str) -> bytes:
    """A part of a mail, in the charset that it names, or UTF-8."""
    named = re.search(r"koi8-r|windows-1251|iso-8859-1|gb2312", headers + content)
    data = content.encode({"gb2312": "gb18030"}.get(named[0], named[0]) if named else "utf-8")
    if "multipart/" in headers or ("message/" in headers and transfer != "base64"):  # which are not encoded
        return headers.encode() + b"\n\n" + data
    if transfer == "base64":
        data = base64.encodebytes(data)
    elif transfer == "quoted-printable":
        data = quopri.encodestring(data)
    elif transfer == "x-uuencode":
        lines = [binascii.b2a_uu(data[start : start + 45]) for start in range(0, len(data), 45)]
        data = b"begin 644 a\n" + b"".join(lines) + b"`\nend\n"
    return f"{headers}\nContent-Transfer-Encoding: {transfer} \n\n".lstrip().encode() + data


leaves = st.tuples(st.sampled_from(TEXTS + SAID), st.sampled_from(TRANSFER))
kinds = st.sampled_from(["mixed", "alternative", "related", "signed", "parallel", "x-unknown"])
mails = st.recursive(leaves, lambda parts: st.tuples(kinds, st.lists(parts, min_size=1, max_size=4)), max_leaves=8)


@given(mail=mails, subject=st.sampled_from(["x", "{}", "Re: {}.doc", "{} " + "long " * 50 + "{}"]))
def test_every_marked_word_of_a_mail_is_read_or_said_to_be_left_out(read: Read, mail, subject) -> None:
    marks, said, boundaries = Marks(), [], []

    def written(part) -> bytes:
        if isinstance(part[0], str):
            kind, parts = part
            boundaries.append(boundary := f"b{len(boundaries)}".encode())
            inner = b"".join(b"--%s\n%s\n" % (boundary, written(each)) for each in parts)
            return b"Content-Type: multipart/%s; boundary=%s\n\n%s--%s--\n" % (kind.encode(), boundary, inner, boundary)
        (headers, content), transfer = part
        said.extend([headers] if part[0] in SAID else [])
        return encoded(marks.fill(headers), marks.fill(content), transfer)

    head = marks.fill(
        "From: =?iso-8859-1?q?{}?= <{}@example.org>\nTo: {} Grüße Насос =?utf-8?q?{}?=\nCc: \x1b$B66\x1b(B\n"
        f"Keywords: {{}}\nSubject: {subject}\n"
    )
    data = head.encode() + written(mail)
    text = read("eml", data)
    assert marks.made - marked(text) == set(), data.decode(errors="replace")
    assert bool(said) == bool(text.left_out), (said, text.left_out)
    for words in ("Grüße", "Насос", "朱镕基"):
        assert (words in text.text) >= (words.encode() in head.encode())
    assert "橋" in text.text and "\ufffd" not in text.text, data


CHAPTER = "<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><head><title/></head><body>{}</body></html>"
CONTAINER = "<container><rootfiles><rootfile full-path='OEBPS/a%20b.opf'/></rootfiles></container>"
ABOUT = "".join(
    f"<dc:{name} xmlns:dc='http://purl.org/dc/elements/1.1/'>{{}}</dc:{name}>"
    for name in ("title", "title", "creator", "contributor", "subject", "description", "publisher")
)
ITEMS = (  # of a manifest and the spine, the names of their files, and what these contain
    ("<item id='{id}' href='{id}.xhtml'/>", "<itemref idref='{id}'/>", "{id}.xhtml", CHAPTER),
    ("<item id='{id}' href='{id}.html'/>", "<itemref idref='{id}'/>", "{id}.html", "<title>{}</title><p>{}"),
    ("<item id='{id}' href='{id}.XHTML'/>", "<itemref idref='{id}' linear='no'/>", "{id}.xhtml", CHAPTER),
    (
        "<item id='{id}' href='Text\\{id}%20%C3%BC.html#x'/>",
        "<itemref idref='{id}'/>",
        "text/{id} u\u0308.html",
        CHAPTER,
    ),
    ("<item id='{id}' href='{id}%2Fb.html'/>", "<itemref idref='{id}'/>", "{id}%2Fb.html", CHAPTER),
    ("<item id='{id}' href='{id}' media-type='application/xhtml+xml'/>", "", "{id}", CHAPTER),
    (
        "<item id='{id}' href='{id}' media-type='image/svg+xml'/>",
        "",
        "{id}",
        "<svg><text>{}</text><desc>{}</desc></svg>",
    ),
    (
        "<item id='{id}' href='{id}.pdf' media-type='application/pdf' fallback='{id}f'/>"
        "<item id='{id}f' href='{id}.xml'/>",
        *("<itemref idref='{id}'/>", "{id}.xml", CHAPTER),
    ),
)
MISSING = (
    ("", "<itemref idref='{id}'/>", "x", ""),
    ("<item id='{id}' href='{id}.html'/>", "<itemref idref='{id}'/>", "x", ""),
    ("<item id='{id}' href='{id}' media-type='application/pdf'/>", "<itemref idref='{id}'/>", "{id}", "%PDF"),
)


@given(chosen=st.lists(st.sampled_from(ITEMS + MISSING), min_size=1, max_size=6))
def test_every_marked_word_of_a_book_is_read_or_said_to_be_left_out(read: Read, chosen) -> None:
    marks = Marks()
    items, order, files = [], [], {"meta-inf/Container.xml": CONTAINER}
    for number, (item, reference, name, content) in enumerate(chosen):
        items.append(item.replace("{id}", f"i{number}"))
        order.append(reference.replace("{id}", f"i{number}"))
        files["OEBPS/" + name.replace("{id}", f"i{number}")] = marks.fill(content)
    manifest = f"<manifest>{''.join(items)}</manifest><spine>{''.join(order)}</spine>"
    files["OEBPS/a b.opf"] = f"<package><metadata>{marks.fill(ABOUT)}</metadata>{manifest}</package>"
    text = read("epub", zipped(files))
    assert marks.made - marked(text) == set(), manifest
    assert bool(text.left_out) == any(each in MISSING for each in chosen), manifest


def test_encrypted_chapters_are_said(read: Read, tmp_path: Path) -> None:
    """The fault: the bytes of encrypted chapters are indexed; or a book with an obfuscated font is refused."""
    reference = "<EncryptedData><EncryptionMethod Algorithm='{}'/><CipherReference URI='{}'/></EncryptedData>"
    items = "<item id='a' href='a.html'/><item id='b' href='b.html'/>"
    book = f"<package><manifest>{items}</manifest><spine><itemref idref='a'/><itemref idref='b'/></spine></package>"
    files = {"META-INF/container.xml": CONTAINER, "OEBPS/a b.opf": book, "OEBPS/a.html": "<p>x", "OEBPS/b.html": "<p>y"}

    def locked(*names: str, how: str = "http://www.w3.org/2001/04/xmlenc#aes128-cbc") -> bytes:
        listed = "".join(reference.format(how, f"OEBPS/{name}") for name in names)
        return zipped({**files, "META-INF/encryption.xml": f"<encryption>{listed}</encryption>"})

    text = read("epub", locked("b.html"))
    assert (text.text, text.left_out) == ("x", ("1 encrypted chapter",))
    assert read("epub", locked("font.otf", how="http://www.idpf.org/2008/embedding")).text == "x\n\ny"
    (tmp_path / "a").write_bytes(locked("a.html", "b.html"))
    failed = file_text.read_file((os.fsencode(tmp_path / "a"), "epub"))[1]
    assert failed == Failed("is encrypted")
