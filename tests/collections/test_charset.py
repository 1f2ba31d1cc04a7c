"""Characters of pages, mails and text files: as Chromium decodes them, or better where a label is plainly wrong."""

import base64
import codecs
import re
from typing import TYPE_CHECKING

import pytest

from cai_pyserini.collections.text.charset import decoded
from cai_pyserini.collections.text.mail import read_mail
from cai_pyserini.collections.text.web import html_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WORDS = {
    "windows-1252": "“Gasket” isn’t sealed — 40 € – naïve café Straße Ærø",
    "windows-1250": "Příliš žluťoučký kůň úpěl ďábelské ódy — źdźbło ő",
    "windows-1251": "Насос на мосту требует ремонта до пятницы, „срочно“ № 5",
    "windows-1253": "Η αντλία στη γέφυρα χρειάζεται επισκευή ως την Παρασκευή",
    "windows-1254": "Köprüdeki pompanın cumaya kadar onarılması gerekiyor, İş Şu",
    "windows-1255": "המשאבה על הגשר זקוקה לתיקון עד יום שישי",
    "windows-1256": "المضخة على الجسر بحاجة إلى إصلاح قبل الجمعة",
    "windows-1257": "Sūknim uz tilta līdz piektdienai nepieciešams remonts",
    "windows-1258": "Sửa máy bơm".replace("ử", "ư\u0309"),
    "windows-874": "ปั๊มบนสะพานต้องซ่อมภายในวันศุกร์",
    "iso-8859-2": "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "koi8-r": "Насос на мосту требует ремонта до пятницы",
    "koi8-u": "Насос на мосту потребує ремонту до п'ятниці, ґ",
    "ibm866": "Насос на мосту требует ремонта до пятницы",
    "macintosh": "“Gasket” isn’t sealed — naïve café",
    "gbk": "请朱镕基先生和喆女士检查桥的水泵。",
    "gb18030": "请朱镕基先生和喆女士检查桥的水泵 𠀀。",
    "big5": "請檢查橋上的水泵，著名的凜冽。",
    "euc-kr": "다리의 펌프를 금요일까지 수리해야 합니다 똠방각하",
    "shift_jis": "橋のポンプ①は金曜日までに修理が必要です髙㈱～",
    "euc-jp": "橋のポンプ①は金曜日までに修理が必要です髙㈱～",
    "iso-2022-jp": "橋のポンプは金曜日までに修理が必要です",
    "utf-8": "Насос 请 café 🔧",
}
PYTHON = {"gbk": "gb18030", "euc-kr": "cp949", "shift_jis": "cp932", "windows-874": "cp874", "ibm866": "cp866"}
PYTHON |= {"macintosh": "mac-roman", "big5": "big5hkscs"}
SEVEN_BITS = ("us-ascii", "ANSI_X3.4-1968")  # which say nothing on other bytes, so that <meta> has a say
LABELS = {  # other labels of the same encodings
    **{"windows-1252": ["iso-8859-1", "latin1", *SEVEN_BITS], "gbk": ["gb2312", "GB_2312-80"]},
    **{"shift_jis": ["x-sjis", "windows-31j", "ms_kanji"], "euc-kr": ["ks_c_5601-1987", "iso-ir-149"]},
    **{"big5": ["x-x-big5", "big5-hkscs"], "windows-874": ["tis-620", "iso-8859-11"], "windows-1254": ["iso-8859-9"]},
    **{"windows-1251": ["cp1251"], "macintosh": ["x-mac-roman"], "windows-1255": ["cp1255"], "utf-8": ["UTF8"]},
}


def euc(text: str) -> bytes:
    """Text in EUC-JP with the characters of NEC and IBM, which Python's codec lacks."""
    data = b""
    for character in text:
        pair = character.encode("cp932")
        if len(pair) == 2:
            row, cell = pair[0] - (0x81 if pair[0] < 0xA0 else 0xC1), pair[1] - (pair[1] > 0x7F)
            second = cell >= 0x9E
            pair = bytes([0xA1 + 2 * row + second, cell + (3 if second else 0x61)])
        data += pair
    return data


def bytes_of(encoding: str) -> bytes:
    text = WORDS[encoding]
    return euc(text) if encoding == "euc-jp" else text.encode(PYTHON.get(encoding, encoding))


def pages() -> dict[str, tuple[bytes, str]]:
    """Pages by name, each with its Content-Type."""
    made = {}
    for encoding in WORDS:
        data = bytes_of(encoding)
        bad = data + b"<p>\xff bad \x81 after" if encoding not in ("macintosh", "ibm866", "iso-2022-jp") else data
        for label in [encoding, *LABELS.get(encoding, [])]:
            quoted = f'<meta charset="{label}">'
            made[f"meta {label}"] = f"{quoted}<p>".encode() + bad, "text/html"
            if label not in SEVEN_BITS:
                made[f"header {label}"] = b"<meta charset=koi8-r><p>" + data, f"text/html; charset={label}"
        told = f"<meta http-equiv=content-type content='text/html; charset={encoding}'>"
        made[f"equivalent {encoding}"] = (f"<!-- <meta charset=utf-8> -->{told}<p>".encode() + data, "text/html")
    declared = b"<?xml version='1.0' encoding='windows-1251'?><html><p>" + bytes_of("windows-1251")
    made["xml"] = declared, "text/html"
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        made[f"mark {encoding}"] = mark + "<meta charset=gbk><p>Насос".encode(encoding), "text/html; charset=big5"
    made["utf-16 in bytes"] = b"<meta charset=utf-16><p>" + "Насос".encode(), "text/html"
    made["user-defined"] = b"<meta charset=x-user-defined><p>caf\xe9", "text/html"
    made["far"] = b"<!--" + b"x" * 1500 + b"--><meta charset=windows-1251><p>" + bytes_of("windows-1251"), "text/html"
    return made


SCRIPT = """(pages) => Promise.all(pages.map(([data, type]) => new Promise((resolve, reject) => {
    const frame = document.createElement("iframe");
    const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
    frame.onload = () => frame.contentDocument ? resolve(frame.contentDocument.body.textContent) : reject(type);
    frame.src = URL.createObjectURL(new Blob([bytes], {type}));
    document.body.append(frame);
})))"""


@pytest.mark.slow
def test_pages_and_mails_are_decoded_as_in_chromium(browser: "Browser") -> None:
    """The faults: text ends at the first bad byte, labels are taken literally, and quotes become control characters."""
    made = pages()
    page = browser.new_page()
    page.route("**/*", lambda route: route.fulfill(body="", content_type="text/html"))
    page.goto("http://pages.example/")  # frames of a blank page are not for its scripts
    sent = [[base64.b64encode(data).decode(), type] for data, type in made.values()]
    expected = dict(zip(made, page.evaluate(SCRIPT, sent), strict=True))
    page.close()
    assert len(made) > 100
    for name, (data, type) in made.items():
        label = type.partition("charset=")[2] or None
        read = html_text(data, label)[1]
        assert normal(read) == normal(expected[name]), name
        head = f"Subject: A page\nContent-Type: {type}\nContent-Transfer-Encoding: base64\n\n"
        read = read_mail(head.encode() + base64.encodebytes(data)).text
        assert normal(read) == normal(expected[name]), name


def normal(text: str) -> str:
    """A text without white space, and with one U+FFFD for several in a row."""
    return re.sub("\ufffd+", "\ufffd", "".join(text.split()))


@pytest.mark.parametrize("encoding", WORDS)
def test_a_wrong_label_gives_way(encoding: str) -> None:
    """The faults: UTF-8 under another label, and another encoding under the label of UTF-8, is unreadable."""
    text = WORDS[encoding] + " "
    utf_8 = text.encode()
    assert decoded(utf_8, encoding) == text
    assert decoded(utf_8, "us-ascii") == text
    assert decoded(b"<meta charset=%s>" % encoding.encode() + utf_8, markup=True).endswith(text)
    if encoding in (
        "windows-1252",
        "windows-1251",
        "koi8-r",
        "ibm866",
        "windows-1253",
        "windows-1256",
        "gbk",
        "shift_jis",
    ):
        for label in ("utf-8", "us-ascii", "iso-2022-jp", "nonsense", None):
            assert decoded((bytes_of(encoding) + b". ") * 3, label) == f"{WORDS[encoding]}. " * 3, label


def test_text_that_names_no_encoding() -> None:
    """The faults: UTF-8 with one bad byte becomes mojibake; UTF-16 without a mark, and Japanese mail, are no text."""
    assert decoded(("Grüße " * 9).encode() + b"\xff end") == "Grüße " * 9 + "\ufffd end"
    for encoding in ("utf-16-le", "utf-16-be"):
        assert decoded("Größe und Maß".encode(encoding)) == "Größe und Maß"
        assert decoded(codecs.BOM_UTF32_LE + "Größe".encode("utf-32-le")) == "Größe"
    assert decoded("橋の水泵".encode("utf-16-le"), "utf-16") == "橋の水泵"
    assert decoded(bytes_of("iso-2022-jp")) == WORDS["iso-2022-jp"]
    assert decoded("abc 中文".encode("hz"), "hz-gb-2312") == "abc 中文"
    assert decoded("다리의".encode("iso2022_kr"), "iso-2022-kr") == "다리의"
    assert decoded("ÄÖÜ ÀÁÂ «»".encode("cp1252")) == "ÄÖÜ ÀÁÂ «»"
    assert decoded(b"") == ""
